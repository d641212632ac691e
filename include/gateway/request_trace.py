"""The trace of one request: what its records carry, and its spans."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from include.contracts.trace_context import TraceContext, parse
from include.gateway.ports import Record
from include.spans import Attributes, Span, Tracer, messaging, new_span_id


@dataclass(slots=True)
class RequestTrace:
    """A request's place in its trace.

    `header` is the `traceparent` of its records. While tracing is off, that is the caller's. `spans` are those below
    the request's span that have ended; they are collected only if the trace is recorded.
    """

    context: TraceContext
    parent: TraceContext | None
    sending: TraceContext
    header: bytes
    spans: list[Span] = field(default_factory=list)

    @property
    def is_recorded(self) -> bool:
        """True if the spans of this request are sent."""
        return self.context is not self.parent and self.context.is_sampled

    def sent(self, records: Sequence[Record], began_ns: int, error: str = "") -> None:
        """Add the span of records that were sent to Kafka and then acknowledged, or failed."""
        name, attributes = f"send {records[0].topic}", _attributes(records)
        self.spans.append(
            Span(name, "producer", self.sending, self.context, began_ns, time.time_ns(), attributes, (), error)
        )

    def stored(self, records: Sequence[Record], reason: str, began_ns: int, error: str = "") -> None:
        """Add the span of records that were put into the fallback store, with the reason."""
        context = self.context._replace(span_id=new_span_id())
        attributes = {**_attributes(records), "pipeline.fallback.reason": reason}
        name = f"store {records[0].topic}"
        self.spans.append(
            Span(name, "internal", context, self.context, began_ns, time.time_ns(), attributes, (), error)
        )


def _attributes(records: Sequence[Record]) -> dict[str, str | int]:
    attributes = messaging(records[0].topic, "send", len(records))
    if len(records) == 1:
        attributes["messaging.message.id"] = records[0].event_id
    return attributes


def begin(tracer: Tracer | None, traceparent: bytes | None) -> RequestTrace | None:
    """Return the trace of a request with that header.

    None if tracing is off and the request has no valid header: then its records belong to no trace.
    """
    parent = None if traceparent is None else parse(traceparent)
    if tracer is None:
        return None if parent is None else RequestTrace(parent, parent, parent, parent.header)
    context = tracer.begin(parent)
    sending = context._replace(span_id=new_span_id()) if context.is_sampled else context
    return RequestTrace(context, parent, sending, sending.header)


def finish(
    tracer: Tracer, trace: RequestTrace, name: str, method: str, status: int, client: str, seconds: float
) -> None:
    """Record the spans of a request that was answered `seconds` after its first byte."""
    ended_ns = time.time_ns()
    attributes: Attributes = {"http.request.method": method, "http.route": name.partition(" ")[2],
                  "http.response.status_code": status, "client": client}  # fmt: skip
    error = str(status) if status >= 500 else ""
    began_ns = ended_ns - int(seconds * 1e9)
    tracer.record(Span(name, "server", trace.context, trace.parent, began_ns, ended_ns, attributes, (), error))
    for span in trace.spans:
        tracer.record(span)
