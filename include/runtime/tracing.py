"""Spans as OpenTelemetry spans, sent over OTLP/HTTP by the SDK, whose standard variables configure it.

Off without an endpoint: then the SDK is not even imported. A collector that is slow or out loses spans and nothing
else.
"""

import logging
import os
import random
import threading
from collections.abc import Mapping
from typing import Any

from include.contracts.headers import SAMPLED, TraceContext
from include.runtime.settings import TRACING_SECRETS, TracingSettings
from include.runtime.spans import Span, Tracer, new_ids, new_span_id

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 2.0
DEFAULT_RATIO = 0.01  # of new traces that are recorded without OTEL_TRACES_SAMPLER, see docs/adr/0044
_SCOPE = "board-detail-pipeline"


def tracer_of(settings: TracingSettings, service: str) -> Tracer | None:
    """Return the tracer of a process; None if tracing is off. `service` is its name unless OTEL_SERVICE_NAME is set."""
    return OtlpTracer(service, settings.headers) if settings.is_on else None


class OtlpTracer(Tracer):
    """Implements `include.runtime.spans.Tracer`. Thread-safe.

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
