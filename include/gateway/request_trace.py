"""The trace of one request: what its records carry, and its spans."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from include.contracts.headers import TraceContext, parse
from include.gateway.ports import Record
from include.runtime.tracing import Attributes, Span, Tracer, messaging, new_span_id


@dataclass(slots=True)
class RequestTrace:
    """A request's place in its trace.

    `header` is the `traceparent` of its records. While tracing is off, that is the caller's. `is_recorded`: the spans
    of this request are sent. `spans` are those below the request's span that have ended; None if they are not sent.
    """

    context: TraceContext
    parent: TraceContext | None
    sending: TraceContext
    header: bytes
    is_recorded: bool
    spans: list[Span] | None = None

    def sent(self, records: Sequence[Record], began_ns: int, error: str = "") -> None:
        """Add the span of records that were sent to Kafka and then acknowledged, or failed."""
        name, attributes = f"send {records[0].topic}", _attributes(records)
        self._add(Span(name, "producer", self.sending, self.context, began_ns, time.time_ns(), attributes, (), error))

    def stored(self, records: Sequence[Record], reason: str, began_ns: int, error: str = "") -> None:
        """Add the span of records that were put into the fallback store, with the reason."""
        context = self.context._replace(span_id=new_span_id())
        attributes = {**_attributes(records), "pipeline.fallback.reason": reason}
        name = f"store {records[0].topic}"
        self._add(Span(name, "internal", context, self.context, began_ns, time.time_ns(), attributes, (), error))

    def _add(self, span: Span) -> None:
        if self.spans is not None:
            self.spans.append(span)


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
        return None if parent is None else RequestTrace(parent, parent, parent, parent.header, False)
    context = tracer.begin(parent)
    if not context.is_sampled:
        return RequestTrace(context, parent, context, context.header, False)
    sending = context._replace(span_id=new_span_id())
    return RequestTrace(context, parent, sending, sending.header, True, [])


def finish(
    tracer: Tracer, trace: RequestTrace, name: str, method: str, status: int, client: str, seconds: float
) -> None:
    """Record the spans of a request that was answered `seconds` after its first byte."""
    ended_ns = time.time_ns()
    attributes: Attributes = {"http.request.method": method, "http.route": name.partition(" ")[2],
                  "http.response.status_code": status, "client": client}  # fmt: skip
    error = str(status) if status >= 500 else ""
    spans = trace.spans or ()
    # the server's clock counts milliseconds: by it, a request could begin after its records were sent
    began_ns = min([ended_ns - int(seconds * 1e9), *(span.began_ns for span in spans)])
    tracer.record(Span(name, "server", trace.context, trace.parent, began_ns, ended_ns, attributes, (), error))
    for span in spans:
        tracer.record(span)
