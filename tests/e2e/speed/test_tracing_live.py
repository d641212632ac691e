"""A trace from the HTTP call to the row: real gateway, Kafka, Spark and PostgreSQL, and a collector's stand-in."""

import json

import pytest
from confluent_kafka import Consumer

from include.contracts.headers import parse
from include.integrity.commands import text_of
from include.integrity.pages.whereabouts import find
from tests.e2e.speed.test_pipeline_live import Stream
from tests.fakes.events import board, member
from tests.servers import wait_until
from tests.support.certifying import nothing_waits
from tests.support.collector import Collector
from tests.support.gateway_process import LONG_DEADLINE, GatewayProcess
from tests.support.http import HTTP
from tests.support.pipeline import environment, produce, rows, with_topics

PARENT = "b7ad6b7169203331"
KNOWN, PENDING, UNSAMPLED, BROKEN, SLOW = (digit * 32 for digit in "abcde")
ROWS = "SELECT board_id FROM board_detail ORDER BY board_id"
SOURCE_HEADERS = ["event-id", "accepted-at", "board-at", "member-at"]


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.close()


def post(gateway, topic, value, trace_id="", flags="01"):
    headers = {"Authorization": f"Bearer {gateway.settings.gateway.token}"}
    if trace_id:
        headers["traceparent"] = f"00-{trace_id}-{PARENT}-{flags}"
    answer = HTTP.post(f"{gateway.url}/topics/{topic}/events", json=value, headers=headers)
    assert answer.is_success, answer.text


def headers_of_output(kafka):
    """The headers of each record of the output topic, by key."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "test", "enable.auto.commit": False,
                         "auto.offset.reset": "earliest"})  # fmt: skip
    consumer.subscribe(["board-detail"])
    found = {}

    def have_come():
        for message in consumer.consume(100, timeout=1):
            found[int(message.key())] = message.headers()
        return {10, 11, 12, 13, 14, 15} <= set(found)

    try:
        wait_until(have_come, 30, "the records of the output topic")
    finally:
        consumer.close()
    return found


@pytest.mark.timeout(600)
def test_a_trace_is_followed_from_the_call_to_the_row(kafka, postgres, collector, tmp_path):
    variables = environment(kafka, postgres, "tracing_live", tmp_path)
    settings = with_topics(kafka, postgres, "tracing_live", tmp_path)
    gateway = GatewayProcess.over(tmp_path, kafka.bootstrap_servers, **LONG_DEADLINE, **collector.variables())
    stream = Stream({**variables, **collector.variables()}, tmp_path / "stream.log")
    try:
        gateway.start()
        stream.start()
        post(gateway, "member", member(1))
        post(gateway, "board", board(10, 1), KNOWN)
        post(gateway, "board", board(11, 2), PENDING)
        post(gateway, "board", board(12, 1), UNSAMPLED, flags="00")
        produce(settings, [("board", 13, board(13, 1))])
        produce(settings, [("board", 14, board(14, 1))], headers={"traceparent": f"00-{BROKEN}-{PARENT}-01-more"})
        escaped = json.dumps(board(15, 1, title="Abc")).replace('"Abc"', '"\\u0041bc"').encode()  # takes the slow path
        produce(settings, [("board", 15, escaped)], headers={"traceparent": f"00-{SLOW}-{PARENT}-01"})
        wait_until(lambda: rows(settings, ROWS) == [(10,), (12,), (13,), (14,), (15,)], 60, "the rows")
        wait_until(lambda: rows(settings, "SELECT board_id FROM pending_record") == [(11,)], 30, "a board waits")
        assert parse(rows(settings, "SELECT traceparent FROM pending_record")[0][0].encode()).trace_id == PENDING
        waiting = find(settings, key=11, ask_gateways=nothing_waits)
        assert {trace.trace_id for trace in waiting.traces if trace.place == "accepted"} == {PENDING}
        post(gateway, "member", member(2))
        wait_until(lambda: (11,) in rows(settings, ROWS), 60, "its member has come")

        output = headers_of_output(kafka)
        contexts = {key: parse(dict(headers).get("traceparent")) for key, headers in output.items()}
        assert {key: found and found.trace_id for key, found in contexts.items()} == {
            10: KNOWN, 11: PENDING, 12: UNSAMPLED, 13: None, 14: None, 15: SLOW,
        }  # fmt: skip
        for key, headers in output.items():
            names = [name for name, _ in headers]
            given = [name for name in SOURCE_HEADERS if key < 13 or name != "accepted-at"]
            assert names == [*given, *(["traceparent"] if contexts[key] else [])]

        # the pending board was in a batch of the join before its member had come
        for key, trace_id, joins in ((10, KNOWN, 1), (11, PENDING, 2)):
            [send] = collector.wait_for(trace_id, "send board")
            assert contexts[key] == (trace_id, send.span_id, 1)
            wait_until(lambda trace_id=trace_id: collector.linked_to(trace_id, "serve board-detail"), 30, "its span")
            found = [collector.linked_to(trace_id, name) for name in ("join board", "serve board-detail")]
            assert [len(spans) for spans in found] == [joins, 1]
            for span in (span for spans in found for span in spans):
                assert (span.kind, span.service, span.parent_id) == ("consumer", "stream", "")
                assert (trace_id, send.span_id) in span.links
                assert send.began_ns < span.ended_ns
        assert not [span for span in collector.spans if UNSAMPLED in dict(span.links)]

        found = find(settings, key=10, ask_gateways=nothing_waits)
        assert {trace.place: trace.trace_id for trace in found.traces} == {"accepted": KNOWN, "live": None}
        assert KNOWN in text_of(found)
        unsampled = find(settings, key=12, ask_gateways=nothing_waits)
        assert UNSAMPLED in {trace.trace_id for trace in unsampled.traces}
        assert stream.stop() == 0
    finally:
        stream.kill()
        gateway.kill()
