"""The trace of a request: from the HTTP header to the record and the collector, of real gateways and a real broker."""

import itertools
import json
from pathlib import Path

import pytest

from include.contracts.headers import parse
from stack.machine import unused
from tests.fakes.events import board
from tests.servers import wait_until
from tests.support.collector import Collector
from tests.support.gateway_process import LONG_DEADLINE, GatewayProcess
from tests.support.http import HTTP

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"
EVENTS = "POST /topics/{topic}/events"
board_ids = itertools.count(7_000_000)


@pytest.fixture(scope="module")
def broker(gateway_broker):
    yield gateway_broker
    gateway_broker.mend()


@pytest.fixture(scope="module")
def collector():
    made = Collector()
    yield made
    made.close()


@pytest.fixture(scope="module")
def gateway(broker, collector, tmp_path_factory):
    folder = tmp_path_factory.mktemp("traced")
    process = GatewayProcess.over(folder, broker.bootstrap_servers, LOG_FORMAT="json", GATEWAY_ACCESS_LOG="on",
                                  **LONG_DEADLINE, **collector.variables())  # fmt: skip
    yield process.start_sending()
    process.kill()


@pytest.fixture(scope="module")
def untraced(broker, tmp_path_factory):
    process = GatewayProcess.over(tmp_path_factory.mktemp("untraced"), broker.bootstrap_servers, **LONG_DEADLINE)
    yield process.start_sending()
    process.kill()


def post(gateway, values, *traceparents):
    headers = [("Authorization", f"Bearer {gateway.settings.gateway.token}")]
    headers += [("traceparent", each) for each in traceparents]
    answer = HTTP.post(f"{gateway.url}/topics/board/events", json=values, headers=headers)
    assert answer.is_success, answer.text
    results = answer.json()["results"] if isinstance(values, list) else [answer.json()]
    return [each["eventId"] for each in results], {each["keptIn"] for each in results}


def one():
    return board(next(board_ids))


def records_of(broker, event_ids):
    """The headers of the events' records, in the order of their ids."""
    found = [dict(message.headers()) for message in broker.messages("board")]
    by_id = {headers["event-id"].decode(): headers for headers in found}
    return [by_id[each] for each in event_ids]


def context_of(broker, event_id):
    return parse(records_of(broker, [event_id])[0].get("traceparent"))


def test_a_trace_goes_from_the_request_to_the_record_and_the_collector(broker, gateway, collector):
    [event_id], _ = post(gateway, one(), SAMPLED)
    request, send = collector.wait_for(TRACE, EVENTS.replace("{topic}", "board"), "send board")

    assert (request.kind, request.parent_id, request.service) == ("server", SPAN, "gateway")
    assert (request.attributes["http.response.status_code"], request.attributes["client"]) == (201, "data")
    assert (send.kind, send.parent_id) == ("producer", request.span_id)
    assert send.attributes["messaging.destination.name"] == "board"
    assert send.attributes["messaging.message.id"] == event_id
    assert request.began_ns <= send.began_ns <= send.ended_ns <= request.ended_ns
    assert context_of(broker, event_id) == (TRACE, send.span_id, 1)


def test_the_records_of_an_array_share_the_span_of_their_sending(broker, gateway, collector):
    trace_id = "1" * 32
    event_ids, _ = post(gateway, [one() for _ in range(5)], f"00-{trace_id}-{SPAN}-01")
    [send] = collector.wait_for(trace_id, "send board")
    assert send.attributes["messaging.batch.message_count"] == 5
    contexts = {parse(headers["traceparent"]) for headers in records_of(broker, event_ids)}
    assert contexts == {(trace_id, send.span_id, 1)}


@pytest.mark.parametrize("invalid", [["garbage"], [SAMPLED.upper()], [SAMPLED, SAMPLED], ["ff" + SAMPLED[2:]], []])
def test_without_a_valid_header_a_new_trace_begins(broker, gateway, collector, invalid):
    [event_id], _ = post(gateway, one(), *invalid)
    context = context_of(broker, event_id)
    assert context.trace_id != TRACE
    request, _ = collector.wait_for(context.trace_id, EVENTS.replace("{topic}", "board"), "send board")
    assert request.parent_id == ""


def test_an_unsampled_trace_is_passed_on_and_not_recorded(broker, gateway, collector):
    trace_id = "2" * 32
    [event_id], _ = post(gateway, one(), UNSAMPLED.replace(TRACE, trace_id))
    context = context_of(broker, event_id)
    assert (context.trace_id, context.is_sampled) == (trace_id, False)
    post(gateway, one(), f"00-{'3' * 32}-{SPAN}-01")
    collector.wait_for("3" * 32, "send board")  # sent later, and arrived
    assert collector.of_trace(trace_id) == []


def test_log_entries_of_the_request_name_its_trace(gateway):
    trace_id = "4" * 32
    post(gateway, one(), f"00-{trace_id}-{SPAN}-01")
    logged = [json.loads(line) for line in gateway.log.read_text().splitlines()]
    assert [each["logger"] for each in logged if each.get("trace_id") == trace_id] == ["include.gateway.access"]


def test_refused_requests_and_operational_calls_have_no_spans(gateway, collector):
    headers = {"traceparent": f"00-{'5' * 32}-{SPAN}-01"}
    assert HTTP.get(f"{gateway.url}/healthz", headers=headers).is_success
    assert HTTP.post(f"{gateway.url}/topics/board/events", headers=headers).status_code == 401
    post(gateway, one(), f"00-{'6' * 32}-{SPAN}-01")
    collector.wait_for("6" * 32, "send board")
    assert collector.of_trace("5" * 32) == []


@pytest.mark.parametrize(("given", "expected"), [([SAMPLED], SAMPLED), ([UNSAMPLED], UNSAMPLED), (["garbage"], None),
                                                 ([SAMPLED, SAMPLED], None), ([], None)])  # fmt: skip
def test_without_a_collector_a_valid_header_is_passed_on_as_it_is(broker, untraced, given, expected):
    [event_id], _ = post(untraced, one(), *given)
    header = records_of(broker, [event_id])[0].get("traceparent")
    assert header == (None if expected is None else expected.encode())


def test_without_a_collector_the_sdk_is_not_loaded(gateway, untraced):
    exporter_needs = "google/_upb"  # the extension of protobuf
    loaded = [Path(f"/proc/{each.process.pid}/maps").read_text() for each in (gateway, untraced)]
    assert [exporter_needs in maps for maps in loaded] == [True, False]


def test_a_record_of_the_fallback_store_keeps_its_trace_through_the_replay(broker, gateway, collector):
    trace_id = "7" * 32
    broker.kill()
    try:
        event_ids, kept_in = post(gateway, [one(), one()], f"00-{trace_id}-{SPAN}-01")
    finally:
        broker.start()
    assert kept_in == {"fallback"}
    [store] = collector.wait_for(trace_id, "store board")
    assert (store.attributes["messaging.batch.message_count"], store.error) == (2, "")
    # not sent at all if the outage was noticed before the request
    assert all(span.error for span in collector.of_trace(trace_id) if span.name == "send board")
    with gateway.client() as client:
        wait_until(lambda: client.fallback()["backlog"] == 0, 60, "the backlog is drained")
    wait_until(lambda: collector.linked_to(trace_id, "replay"), 30, "the span of the replay")
    for headers in records_of(broker, event_ids):
        assert "replayed-at" in headers
        assert parse(headers["traceparent"])[:2] in {
            link[:2] for link in collector.linked_to(trace_id, "replay")[0].links
        }


@pytest.mark.parametrize("kind", ["out", "refuses", "hangs"])
def test_a_collector_that_takes_nothing_costs_no_event(broker, tmp_path, kind):
    collector = Collector()
    variables = collector.variables()
    if kind == "out":
        variables["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{unused(1)[0]}"
    elif kind == "refuses":
        collector.status = 400
    else:
        collector.is_open.clear()
    gateway = GatewayProcess.over(tmp_path, broker.bootstrap_servers, **LONG_DEADLINE, **variables).start_sending()
    try:
        event_ids = [post(gateway, one(), SAMPLED)[0][0] for _ in range(20)]
        assert len(records_of(broker, event_ids)) == 20
        assert gateway.terminate() == 0
    finally:
        collector.close()
        gateway.kill()


def test_a_protocol_that_is_not_there_is_refused_at_the_start(tmp_path):
    gateway = GatewayProcess.over(tmp_path, "127.0.0.1:1", OTEL_EXPORTER_OTLP_ENDPOINT="http://collector:4317",
                                  OTEL_EXPORTER_OTLP_PROTOCOL="grpc")  # fmt: skip
    assert gateway.launch().wait(30) == 78
    assert "OTEL_EXPORTER_OTLP_PROTOCOL='grpc': not one of http/protobuf" in gateway.log.read_text()
