"""A stand-in for an OpenTelemetry collector: takes spans over OTLP/HTTP, decoded by the protocol's own types."""

import gzip
import http.server
import threading
import zlib
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtoSpan

from tests.servers import wait_until


@dataclass(frozen=True)
class Received:
    """A span as the collector got it; ids are hex digits, `links` are traceparents without their flags."""

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    began_ns: int
    ended_ns: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    error: str


class Collector:
    """Keeps all spans that it gets, unless `keeps_spans` is False.

    With `status` other than 200 it refuses them; while not `is_open`, it hangs.
    """

    def __init__(self, keeps_spans: bool = True) -> None:
        self.spans: list[Received] = []
        self.status = 200
        self.requests = 0
        self.headers: dict[str, str] = {}  # of the last request, names in lower case
        self.is_open = threading.Event()
        self.is_open.set()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                match self.headers.get("Content-Encoding"):
                    case "gzip":
                        body = gzip.decompress(body)
                    case "deflate":
                        body = zlib.decompress(body)
                assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
                collector.headers = {name.lower(): value for name, value in self.headers.items()}
                collector.requests += 1
                collector.is_open.wait()
                if collector.status == 200 and keeps_spans:
                    collector.spans += _spans(ExportTraceServiceRequest.FromString(body))
                self.send_response(collector.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, name="collector", daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def variables(self, **more: str) -> dict[str, str]:
        """The environment of a process that sends all its spans here, every tenth of a second."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_TRACES_SAMPLER": "parentbased_always_on",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            **more,
        }

    def of_trace(self, trace_id: str) -> list[Received]:
        """The spans of a trace, by their begin."""
        return sorted((span for span in list(self.spans) if span.trace_id == trace_id), key=lambda span: span.began_ns)

    def linked_to(self, trace_id: str, name: str) -> list[Received]:
        """The spans of that name with a link to the trace."""
        return [span for span in list(self.spans) if span.name == name and trace_id in dict(span.links)]

    def wait_for(self, trace_id: str, *names: str) -> list[Received]:
        """Wait until the trace has spans of these names; return them by name, in the order given."""
        wait_until(lambda: set(names) <= {each.name for each in self.of_trace(trace_id)}, 30, f"{names} are sent")
        by_name = {each.name: each for each in self.of_trace(trace_id)}
        return [by_name[name] for name in names]

    def close(self) -> None:
        self.is_open.set()
        self._server.shutdown()
        self._server.server_close()


def _spans(request: ExportTraceServiceRequest) -> list[Received]:
    return [
        Received(
            _values(resource.resource.attributes)["service.name"], span.name,
            ProtoSpan.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(), span.trace_id.hex(),
            span.span_id.hex(), span.parent_span_id.hex(), span.start_time_unix_nano, span.end_time_unix_nano,
            _values(span.attributes), tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
            span.status.message,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]  # fmt: skip


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
