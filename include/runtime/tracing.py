"""Spans of traces, the port that records them, and its adapter: OpenTelemetry's SDK, which sends them over OTLP/HTTP.

The SDK's standard variables configure it. Without an endpoint nothing is sent, and the SDK is not imported. A collector
that is slow or out loses spans and nothing else.
"""

import logging
import os
import random
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from include.contracts.headers import SAMPLED, TraceContext, parse
from include.runtime.settings import TRACING_SECRETS, TracingSettings

log = logging.getLogger(__name__)

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


CLOSE_TIMEOUT_S = 2.0
DEFAULT_RATIO = 0.01  # of new traces that are recorded without OTEL_TRACES_SAMPLER, see docs/adr/0044
_SCOPE = "board-detail-pipeline"


def tracer_of(settings: TracingSettings, service: str) -> Tracer | None:
    """Return the tracer of a process; None if tracing is off. `service` is its name unless OTEL_SERVICE_NAME is set."""
    return OtlpTracer(service, settings.headers) if settings.is_on else None


class OtlpTracer(Tracer):
    """Implements `include.runtime.tracing.Tracer`. Thread-safe.

    The SDK's span begins when it has ended: most requests are not sampled, and need nothing but their ids.
    """

    def __init__(self, service: str, headers: Mapping[str, str] | None = None) -> None:
        """Start the exporter's thread, which sends these headers. Opens no connection yet."""
        for name in [name for name, value in os.environ.items() if name.startswith("OTEL_") and not value]:
            del os.environ[name]  # compose sets all; by the specification an empty variable is as good as none
        for name in TRACING_SECRETS:
            os.environ.pop(name, None)
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider, sampling
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        class GivenIds(RandomIdGenerator):
            """Returns the ids of the span that this thread records."""

            def generate_trace_id(self) -> int:
                return int(given.context.trace_id, 16)

            def generate_span_id(self) -> int:
                return int(given.context.span_id, 16)

        given = self._given = threading.local()
        self._trace = trace
        self._kinds = {kind.name.lower(): kind for kind in trace.SpanKind}
        resource = Resource.create()
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: service}))
        self._is_default = not os.environ.get("OTEL_TRACES_SAMPLER")
        default = sampling.TraceIdRatioBased(DEFAULT_RATIO) if self._is_default else None
        self._recorded = sampling.Decision.RECORD_AND_SAMPLE
        self._sampler = TracerProvider(default, resource, shutdown_on_exit=False).sampler
        self._provider = TracerProvider(
            sampling.ALWAYS_ON, resource, shutdown_on_exit=False, id_generator=GivenIds()
        )  # fmt: skip
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(headers=headers)))
        self._tracer = self._provider.get_tracer(_SCOPE)

    def begin(self, parent: TraceContext | None) -> TraceContext:
        """See Tracer.begin."""
        if parent is not None and self._is_default:  # as parentbased_traceidratio decides, in a fifth of the time
            return parent._replace(span_id=new_span_id())
        if parent is None:
            (trace_id, span_id), context, flags = new_ids(), None, 0
            number = int(trace_id, 16)
        else:
            trace_id, span_id = parent.trace_id, new_span_id()
            context, flags = self._under(parent), parent.flags & ~SAMPLED
            number = random.getrandbits(128)  # a ratio of ids that the caller chooses would be the caller's choice
        decision = self._sampler.should_sample(context, number, "").decision
        is_sampled = decision is self._recorded
        return TraceContext(trace_id, span_id, flags | (SAMPLED if is_sampled else 0))

    def record(self, span: Span) -> None:
        """See Tracer.record."""
        trace = self._trace
        self._given.context = span.context
        made = self._tracer.start_span(
            span.name,
            context=trace.Context() if span.parent is None else self._under(span.parent),
            kind=self._kinds[span.kind],
            attributes=span.attributes,
            links=[trace.Link(self._span_context(each)) for each in span.links],
            start_time=span.began_ns,
        )
        if span.error:
            made.set_status(trace.Status(trace.StatusCode.ERROR, span.error))
        made.end(span.ended_ns)

    def close(self) -> None:
        """See Tracer.close. The exporter's own retries may take longer, in a thread that ends with the process."""
        ending = threading.Thread(target=self._provider.shutdown, name="tracing", daemon=True)
        ending.start()
        ending.join(CLOSE_TIMEOUT_S)
        if ending.is_alive():
            log.warning("the last spans were not sent within %g s; is the collector down?", CLOSE_TIMEOUT_S)

    def _under(self, parent: TraceContext) -> Any:
        """Return the SDK's context in which the parent is the current span."""
        trace = self._trace
        return trace.set_span_in_context(trace.NonRecordingSpan(self._span_context(parent)), trace.Context())

    def _span_context(self, context: TraceContext) -> Any:
        trace = self._trace
        flags = trace.TraceFlags(context.flags)
        return trace.SpanContext(int(context.trace_id, 16), int(context.span_id, 16), True, flags)
