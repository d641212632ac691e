"""Sampling, links and settings of tracing, and a collector that hangs at the end of a process."""

import time

import pytest

from include.contracts.errors import ConfigurationError
from include.contracts.headers import TraceContext
from include.gateway.ports import Record
from include.gateway.request_trace import RequestTrace, finish
from include.runtime import tracing
from include.runtime.settings import TracingSettings, tracing_settings
from include.runtime.tracing import DEFAULT_RATIO, MAX_LINKS, OtlpTracer, Span, Tracer, links_of, new_trace, tracer_of
from tests.servers import wait_until
from tests.support.collector import Collector

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
SAMPLED, UNSAMPLED = (TraceContext("a" * 32, "b" * 16, flags) for flags in (1, 0))


@pytest.fixture
def tracer(monkeypatch):
    """A function that makes a tracer with an environment."""
    made = []
    monkeypatch.setattr(tracing, "CLOSE_TIMEOUT_S", 0.2)

    def make(headers=None, /, **variables):
        for name, value in {**ENDPOINT, **variables}.items():
            monkeypatch.setenv(name, value)
        made.append(OtlpTracer("test", headers))
        return made[-1]

    yield make
    for each in made:
        each.close()


def share(tracer, count=20_000):
    return sum(tracer.begin(None).is_sampled for _ in range(count)) / count


def test_by_default_few_new_traces_are_recorded_and_callers_decide_about_theirs(tracer):
    made = tracer(OTEL_TRACES_SAMPLER="")
    assert DEFAULT_RATIO / 2 < share(made) < DEFAULT_RATIO * 2
    for parent in (SAMPLED, UNSAMPLED):
        child = made.begin(parent)
        assert (child.trace_id, child.flags) == (parent.trace_id, parent.flags)
        assert child.span_id != parent.span_id


@pytest.mark.parametrize(
    ("sampler", "argument", "new", "of_sampled", "of_unsampled"),
    [
        ("always_on", "", 1.0, True, True),
        ("always_off", "", 0.0, False, False),
        ("parentbased_always_on", "", 1.0, True, False),
        ("parentbased_always_off", "", 0.0, True, False),
        ("parentbased_traceidratio", "0.5", 0.5, True, False),
    ],
)
def test_the_sampler_of_the_environment_decides(tracer, sampler, argument, new, of_sampled, of_unsampled):
    made = tracer(OTEL_TRACES_SAMPLER=sampler, OTEL_TRACES_SAMPLER_ARG=argument)
    assert share(made, 2000) == pytest.approx(new, abs=0.1)
    assert [made.begin(parent).is_sampled for parent in (SAMPLED, UNSAMPLED)] == [of_sampled, of_unsampled]


def test_a_caller_cannot_choose_an_id_that_is_always_recorded(tracer):
    made = tracer(OTEL_TRACES_SAMPLER="traceidratio", OTEL_TRACES_SAMPLER_ARG="0.1")
    for flags in (0, 1):
        chosen = TraceContext("1" + "0" * 30 + "1", "b" * 16, flags)
        recorded = [made.begin(chosen).is_sampled for _ in range(2000)]
        assert sum(recorded) / 2000 == pytest.approx(0.1, abs=0.05)


def test_ids_are_valid_and_differ(tracer):
    made = tracer()
    contexts = [made.begin(None) for _ in range(1000)]
    assert len({context.trace_id for context in contexts}) == len({context.span_id for context in contexts}) == 1000
    assert {(len(context.trace_id), len(context.span_id)) for context in contexts} == {(32, 16)}


def test_links_are_of_sampled_traces_once_each_and_limited():
    sampled = [new_trace().header for _ in range(MAX_LINKS + 50)]
    headers = [None, b"garbage", UNSAMPLED.header, *sampled[:1], *sampled]
    links = links_of(headers)
    assert [link.header for link in links] == sampled[:MAX_LINKS]


def test_the_span_of_a_batch_has_links_and_there_is_none_without():
    class Recorded(Tracer):
        def __init__(self):
            self.spans = []

        def record(self, span):
            self.spans.append(span)

    tracer, sampled, began_ns = Recorded(), [new_trace().header for _ in range(2)], time.time_ns()
    tracer.record_batch("a batch", "process", "board", 3, [None, UNSAMPLED.header], began_ns)
    assert not tracer.spans
    tracer.record_batch("a batch", "process", "board", 3, [*sampled, None], began_ns)
    tracer.record_batch("another", "send", "board", 3, sampled, began_ns, **{"pipeline.acknowledged": 2})
    (span, sent) = tracer.spans
    assert (span.name, span.kind, span.parent, span.began_ns) == ("a batch", "consumer", None, began_ns)
    assert (span.links, span.ended_ns >= began_ns) == (links_of(sampled), True)
    assert span.attributes["messaging.destination.name"] == "board"
    assert (span.attributes["messaging.operation.name"], span.attributes["messaging.batch.message_count"]) == (
        "process", 3
    )  # fmt: skip
    assert (sent.kind, sent.attributes["messaging.operation.name"], sent.attributes["pipeline.acknowledged"]) == (
        "producer", "send", 2
    )  # fmt: skip


def test_a_request_begins_no_later_than_the_sending_of_its_records():
    class Spans(list):
        record = list.append

    recorded, began_ns = Spans(), time.time_ns()
    trace = RequestTrace(SAMPLED, None, SAMPLED, SAMPLED.header, True, [])
    trace.sent([Record("board", b"1", b"{}", [], 0)], began_ns)
    finish(recorded, trace, "POST /boards", "POST", 201, "data", seconds=0.0)  # as the server's coarse clock may say
    assert [(span.name, span.began_ns) for span in recorded] == [("POST /boards", began_ns), ("send board", began_ns)]


def test_a_collector_that_hangs_delays_the_end_by_the_timeout_only(tracer, caplog):
    collector = Collector()
    collector.is_open.clear()
    made = tracer(**collector.variables())
    made.record(Span("a span", "internal", new_trace(), None, 1, 2, {}))
    began = time.monotonic()
    made.close()
    assert time.monotonic() - began < 10
    assert "the last spans were not sent" in caplog.text
    collector.close()


@pytest.mark.parametrize(
    ("variables", "is_on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://collector/v1/traces"}, True),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"}, False),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, False),
    ],
)
def test_tracing_is_on_with_an_endpoint(variables, is_on):
    assert tracing_settings(variables).is_on == is_on
    assert is_on or tracer_of(TracingSettings(), "test") is None


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "ftp://x"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"),
    ],
)
def test_what_cannot_be_sent_is_refused(variables, name):
    with pytest.raises(ConfigurationError, match=name):
        tracing_settings(variables)


HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"


def test_headers_come_from_a_variable_or_a_file_and_those_for_traces_win(tmp_path):
    file = tmp_path / "headers"
    file.write_text("Authorization=Bearer%20hunter2, x-team = a=b\n")
    settings = tracing_settings({**ENDPOINT, f"{HEADERS}_FILE": str(file)})
    assert settings.headers == {"authorization": "Bearer hunter2", "x-team": "a=b"}
    assert "hunter2" not in repr(settings)
    both = {HEADERS: "a=1", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "b=2"}
    assert tracing_settings({**ENDPOINT, **both}).headers == {"b": "2"}


@pytest.mark.parametrize("value", ["Authorization: Bearer hunter2", "a=1,hunter2", "=hunter2", "a=hunter2%0D%0Ab: c"])
def test_malformed_headers_are_refused_without_their_value(value, tracer, caplog):
    with pytest.raises(ConfigurationError, match=f"{HEADERS}: not name=value") as raised:
        tracing_settings({**ENDPOINT, HEADERS: value})
    assert "hunter2" not in str(raised.value)
    tracer(**{HEADERS: value})
    assert "hunter2" not in caplog.text


def test_the_collector_gets_the_headers(tracer):
    collector = Collector()
    made = tracer({"api-key": "hunter2"}, **collector.variables())
    made.record(Span("a span", "internal", new_trace(), None, 1, 2, {}))
    wait_until(lambda: collector.requests, 10, "the span is sent")
    assert collector.headers["api-key"] == "hunter2"
    collector.close()
