"""The serve query's batches, read from a real Kafka and written to a real PostgreSQL."""

import datetime as dt
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from include.contracts import headers as h
from include.contracts.errors import BrokerUnavailable, LedgerConflict, MissingRange
from include.contracts.offsets import OffsetRange
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.kafka.reader import TopicTail
from include.kafka.record_table import record_table
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.speed import serve as serve_module
from spark_jobs.speed.health.state import DriverState
from spark_jobs.speed.serve import Serve
from spark_jobs.speed.served_batch import DetailDecoder, live_columns
from tests.servers import wait_until
from tests.support.driver import bounded, driver_context
from tests.support.pipeline import rows, with_topics
from tests.support.sending import Sender, sending
from tests.support.serving import NOON, opened_store
from tests.support.sessions import is_waiting, locked
from tests.support.topic_log import TopicLog

TOPIC = "board-detail"
ZONE = "Asia/Seoul"
VIEW = "SELECT board_id, title, kafka_offset FROM board_detail ORDER BY board_id"
LEDGER = "SELECT next_offset FROM offset_ledger"
MOST = 1 << 20


def detail(board_id, **fields):
    return {
        "boardId": board_id, "memberId": 7, "nickname": "하늘", "city": "서울", "phone": None, "title": "title",
        "body": "one\n\\.\n\ttwo \\N \\", "modifiedAt": "2026-11-20T03:00:00.000000Z",
        "createdAt": "2026-11-20T03:00:00.000000Z", "kafkaPartition": None, "kafkaOffset": None, **fields,
    }  # fmt: skip


@pytest.fixture
def settings(kafka, postgres, tmp_path):
    made = with_topics(kafka, postgres, f"serve_{abs(hash(tmp_path))}", tmp_path)
    TopicLog(kafka.bootstrap_servers).make(TOPIC, 1)
    return made


@pytest.fixture
def served_by(settings):
    """Return a function that opens the query, which is closed after the test."""
    opened = []

    def open_(max_bytes=MOST, **more):
        context = driver_context(bounded(settings, max_bytes))
        opened.append(Serve(context, PIPELINE, opened_store(settings), **more))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


@pytest.fixture
def serve(served_by):
    return served_by()


@pytest.fixture
def send(settings):
    """Return a function that sends (key, value) to the topic, and returns their range."""
    sender = Sender(settings.kafka.bootstrap_servers)
    ends = TopicLog(settings.kafka.bootstrap_servers).offsets.ends

    def send(*records):
        start = ends(TOPIC)
        for offset, (key, value) in enumerate(records, start[0]):
            encoded = json.dumps(value).encode() if isinstance(value, dict) else value
            headers = {h.EVENT_ID: f"e{offset}", h.ACCEPTED_AT: "2026-11-20T03:00:00.000000Z",
                       "board-at": f"board/0/{offset}", "member-at": "member/1/5"}  # fmt: skip
            sender.send(TOPIC, encoded, str(key).encode(), 0, headers=headers)
        sender.finish()
        return OffsetRange(start, ends(TOPIC))

    return send


def test_records_of_the_topic_are_decoded_with_their_rejects(settings, send):
    send((1, detail(1)), (2, None), (3, b"{nonsense"))
    without_source = {h.EVENT_ID: "e3", h.ACCEPTED_AT: "2026-11-20T03:00:00.000000Z"}
    with sending(settings.kafka.bootstrap_servers) as sender:
        sender.send(TOPIC, json.dumps(detail(4)).encode(), b"4", 0, headers=without_source)
    send((5, detail(5, createdAt="9999-12-31T20:00:00.000000Z")))
    with closing(TopicTail(settings.kafka.connection, TOPIC)) as tail:
        tail.begin({0: 0})
        batch = DetailDecoder(PIPELINE, ZONE).read(record_table(tail.read_to({0: 5}))).sort_by("kafka_offset")

    assert tuple(batch.column_names[: len(live_columns(PIPELINE))]) == live_columns(PIPELINE)
    board, tombstone, *rejects = batch.to_pylist()
    assert (board["title"], board["day"], board["stream_offset"], board["deleted"]) == (
        "title", dt.date(2026, 11, 20), 0, False,
    )  # fmt: skip
    assert (tombstone["board_id"], tombstone["day"], tombstone["modified_at"], tombstone["deleted"]) == (
        2, None, NOON, True,
    )  # fmt: skip
    assert [row["reason"] for row in (board, tombstone)] == [None, None]
    assert [row["record_value"] for row in (board, tombstone)] == [
        None,
        None,
    ]  # a valid row carries its record no further
    assert [row["reason"].split(":")[0] for row in rejects] == ["/", "headers/board-at", "/createdAt"]
    assert [row["record_key"] for row in rejects] == [b"3", b"4", b"5"]
    assert rejects[0]["record_value"] == b"{nonsense"


def written(serve):
    """True if the last batch was written. Raises the error of its writing."""
    serve.check()
    return not serve.is_writing


def test_batches_are_written_one_after_the_other_while_the_next_is_read(settings, serve, send):
    def batch(number):
        again = detail(1, title=f"again {number}", modifiedAt=f"2026-11-20T03:0{number}:00.000000Z")
        return send((number, detail(number, title=f"t{number}")), (number, b"bad"), (1, again))

    with ThreadPoolExecutor(1) as spark_thread:
        with locked(settings, "offset_ledger"):
            serve.process(batch(1), 1)  # returns while the batch is still being written
            wait_until(lambda: is_waiting(settings, "serve"), 20, "the first batch waits for the ledger")
            second = spark_thread.submit(serve.process, batch(2), 2)
            assert serve.is_writing
        second.result()
    serve.process(batch(3), 3)
    wait_until(lambda: written(serve), 60, "the last batch is written")
    assert rows(settings, VIEW) == [(1, "again 3", 8), (2, "t2", 3), (3, "t3", 6)]
    assert rows(settings, "SELECT body FROM board_detail WHERE board_id = 2") == [(detail(2)["body"],)]
    assert rows(settings, 'SELECT "offset", rejected_by FROM reject ORDER BY 1') == [(o, "serve") for o in (1, 4, 7)]
    assert rows(settings, LEDGER) == [(9,)]


def test_a_failed_batch_is_heard_of_and_none_comes_after_it(settings, serve, send):
    serve.process(send((1, detail(1))), 1)
    wait_until(lambda: written(serve), 60, "the first batch is written")
    rows(settings, "DELETE FROM offset_ledger")
    serve.process(send((2, detail(2))), 2)
    wait_until(lambda: not serve.is_writing, 60, "the second batch has failed")
    with pytest.raises(LedgerConflict):
        serve.check()
    with pytest.raises(LedgerConflict):
        serve.process(send((3, detail(3))), 3)
    assert rows(settings, VIEW) == [(1, "title", 0)]


def test_a_batch_of_more_bytes_than_a_transaction_takes_is_written_in_parts(settings, served_by, send):
    sizes = [100, 60_000, 100, 60_000, 60_000, 60_000, 100]
    range_ = send(*((n + 1, detail(n + 1, body="x" * size)) for n, size in enumerate(sizes)))
    parts = []
    serve = served_by(140_000, guard=lambda write, records: (parts.append(records["body"].to_pylist()), write()))
    serve.process(range_, 1)
    wait_until(lambda: written(serve), 60, "the last part is written")
    assert rows(settings, "SELECT board_id, length(body) FROM board_detail ORDER BY 1") == [
        (n + 1, size) for n, size in enumerate(sizes)
    ]
    assert [len(body) for part in parts for body in part] == sizes
    assert len(parts) >= 2
    assert all(sum(map(len, part)) <= 140_000 for part in parts)
    assert rows(settings, LEDGER) == [(7,)]


def test_a_record_of_more_bytes_than_a_transaction_takes_is_one_by_itself(settings, served_by, send):
    range_ = send(*((n, detail(n, body="x" * 5_000)) for n in (1, 2)))
    serve = served_by(1_000)
    serve.process(range_, 1)
    wait_until(lambda: written(serve), 60, "both are written")
    assert rows(settings, LEDGER) == [(2,)]


def test_a_range_ends_where_it_says_and_the_next_one_may_begin_anywhere(settings, serve, send):
    send(*((n, detail(n)) for n in range(10)))
    serve.process(OffsetRange({0: 0}, {0: 4}), 1)
    wait_until(lambda: written(serve), 60, "the first four are written")
    assert rows(settings, LEDGER) == [(4,)]
    serve.process(OffsetRange({0: 4}, {0: 5}), 2)
    serve.wait()
    serve.take(OffsetRange({0: 5}, {0: 7}))
    assert rows(settings, LEDGER) == [(7,)]
    serve.process(OffsetRange({0: 7}, {0: 10}), 3)
    wait_until(lambda: written(serve), 60, "the rest is written")
    assert [row[0] for row in rows(settings, VIEW)] == [*range(10)]
    assert rows(settings, LEDGER) == [(10,)]


def test_records_that_a_person_rejected_are_left_out(settings, served_by, send):
    range_ = send(*((n, detail(n)) for n in range(4)))
    serve = served_by(excluded=[(0, 1), (0, 3)])
    serve.process(range_, 1)
    wait_until(lambda: written(serve), 60, "the others are written")
    assert [row[0] for row in rows(settings, VIEW)] == [0, 2]


def test_a_read_waits_while_kafka_does_not_respond_and_a_stop_ends_it(settings, monkeypatch):
    monkeypatch.setattr(serve_module, "READ_TIMEOUT_S", 0.5)
    state, stop = DriverState(), threading.Event()
    nowhere = replace(settings, kafka=replace(settings.kafka, connection=KafkaConnection("127.0.0.1:1")))
    serve = Serve(driver_context(nowhere, state=state, stop=stop), PIPELINE, opened_store(settings))
    try:
        with ThreadPoolExecutor(1) as spark_thread:
            process = spark_thread.submit(serve.process, OffsetRange({0: 0}, {0: 1}), 1)
            wait_until(lambda: state.waiting_for("serve") is not None, 20, "the query waits")
            assert state.waiting_for("serve")[0].startswith("BrokerUnavailable")
            stop.set()
            with pytest.raises(BrokerUnavailable):
                process.result(20)
        assert state.waiting_for("serve") is None
    finally:
        serve.close()


def test_records_that_kafka_no_longer_has_are_an_error(kafka, settings, serve, send):
    range_ = send(*((n, detail(n)) for n in range(4)))
    TopicLog(kafka.bootstrap_servers).delete_before(TOPIC, 0, 2)
    with pytest.raises(MissingRange):
        serve.process(range_, 1)
    assert rows(settings, VIEW) == []
