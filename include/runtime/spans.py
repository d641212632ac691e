"""Spans of traces, and the port of the adapter that sends them (`include.runtime.tracing`)."""

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from include.contracts.headers import SAMPLED, TraceContext, parse

MAX_LINKS = 128  # the SDK's own limit

Kind = Literal["server", "producer", "consumer", "internal"]
Operation = Literal["process", "send"]
Attributes = Mapping[str, str | int]


class Span(NamedTuple):
    """A span that has ended. Times are nanoseconds since the epoch; `error` is empty for a success."""

    name: str
    kind: Kind
    context: TraceContext
    parent: TraceContext | None
    began_ns: int
    ended_ns: int
    attributes: Attributes
    links: Sequence[TraceContext] = ()
    error: str = ""


class Tracer(Protocol):
    """Decides which traces are recorded, and sends their spans."""

    def begin(self, parent: TraceContext | None) -> TraceContext:
        """Return the context of a new span: of the parent's trace, or of a new trace without one."""
        ...

    def record(self, span: Span) -> None:
        """Queue a span, whose context must be sampled. Never blocks and never raises; a full queue drops spans."""
        ...

    def record_batch(
        self, name: str, operation: Operation, topic: str, count: int, headers: Iterable[bytes | None], began_ns: int,
        **attributes: str | int,
    ) -> None:  # fmt: skip
        """Queue the span of a batch of `count` records that ends now, a trace of its own with links to the records'.

        `headers` are the records' values of `traceparent`. There is no span if none of them is recorded.
        """
        links = links_of(headers)
        if links:
            kind: Kind = "consumer" if operation == "process" else "producer"
            found = {**messaging(topic, operation, count), **attributes}
            self.record(Span(name, kind, new_trace(), None, began_ns, time.time_ns(), found, links))

    def close(self) -> None:
        """Send the queued spans, for a few seconds at most. Blocks."""
        ...


def new_span_id() -> str:
    """Return a random span id."""
    return f"{random.getrandbits(64) or 1:016x}"


def new_ids() -> tuple[str, str]:
    """Return a random trace id and a random span id."""
    digits = f"{random.getrandbits(192):048x}"
    trace_id, span_id = digits[:32], digits[32:]
    return (trace_id, span_id) if trace_id.strip("0") and span_id.strip("0") else new_ids()


def new_trace() -> TraceContext:
    """Return the context of the first span of a new trace that is recorded."""
    return TraceContext(*new_ids(), SAMPLED)


def links_of(headers: Iterable[bytes | None]) -> list[TraceContext]:
    """Return the sampled contexts among values of `traceparent`, each once, MAX_LINKS at most."""
    found: dict[TraceContext, None] = {}
    for header in headers:
        context = parse(header)
        if context is not None and context.is_sampled:
            found[context] = None
            if len(found) == MAX_LINKS:
                break
    return list(found)


def messaging(topic: str, operation: Operation, count: int) -> dict[str, str | int]:
    """Return the attributes of a span about records of a topic, by OpenTelemetry's names."""
    return {
        "messaging.system": "kafka",
        "messaging.destination.name": topic,
        "messaging.operation.name": operation,
        "messaging.batch.message_count": count,
    }
