"""The serve query's batches, decoded by a real Spark and written to a real PostgreSQL."""

import datetime as dt
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from include.adapters.postgres.served_batch import live_columns
from include.contracts import headers as h
from include.contracts.site import BOARD_DETAIL_PIPELINE as PIPELINE
from include.errors import LedgerConflict
from spark_jobs.schemas import RECORD
from spark_jobs.speed.detail_decoder import DetailDecoder
from spark_jobs.speed.driver_state import DriverState
from spark_jobs.speed.serve import Serve
from tests.servers import wait_until
from tests.support.pipeline import migrated, rows
from tests.support.serving import NOON, opened_store
from tests.support.sessions import is_waiting, locked
from tests.support.spark import part_of, range_of

ZONE = "Asia/Seoul"
VIEW = "SELECT board_id, title, kafka_offset FROM board_detail ORDER BY board_id"
LEDGER = "SELECT next_offset FROM offset_ledger"


def detail(board_id, **fields):
    return {
        "boardId": board_id, "memberId": 7, "nickname": "하늘", "city": "서울", "phone": None, "title": "title",
        "body": "one\n\\.\n\ttwo \\N \\", "modifiedAt": "2026-11-20T03:00:00.000000Z",
        "createdAt": "2026-11-20T03:00:00.000000Z", "kafkaPartition": None, "kafkaOffset": None, **fields,
    }  # fmt: skip


def record(key, value, offset, source=True):
    """A record of board-detail in partition 0; the board record it was made from has the same offset."""
    encoded = json.dumps(value).encode() if isinstance(value, dict) else value
    names = {h.EVENT_ID: f"e{offset}", h.ACCEPTED_AT: "2026-11-20T03:00:00.000000Z"}
    if source:
        names |= {
            "board-partition": "0",
            "board-offset": str(offset),
            "member-partition": "1",
            "member-offset": "5",
        }
    headers = [(name, text.encode()) for name, text in names.items()]
    return str(key).encode(), encoded, "board-detail", 0, offset, NOON, headers


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "serving_spark", tmp_path)


@pytest.fixture
def serve(settings):
    query = served_by(settings, 1 << 20)
    yield query
    query.close()


class Topic:
    """A topic's records, as Spark gives any range of them."""

    def __init__(self, spark, records):
        self.records = spark.createDataFrame(records, RECORD)
        self.range = range_of((each[3], each[4]) for each in records)
        self.parts = []

    def read(self, range_):
        self.parts.append(range_)
        return part_of(self.records, range_)


def served_by(settings, max_bytes, topic=None):
    read = topic.read if topic else None
    return Serve(opened_store(settings), read, PIPELINE, ZONE, DriverState(), threading.Event(), max_bytes)


def process(serve, spark, records, number):
    topic = Topic(spark, records)
    serve.process(topic.records, topic.range, number)


def written(serve):
    """True if the last batch was written. Raises the error of its writing."""
    serve.check()
    return not serve.is_writing


def test_a_batch_is_decoded_with_its_rejects(spark):
    records = [
        record(1, detail(1), 0),
        record(2, None, 1),
        record(3, b"{nonsense", 2),
        record(4, detail(4), 3, source=False),
        record(5, detail(5, createdAt="9999-12-31T20:00:00.000000Z"), 4),
    ]
    batch = DetailDecoder(PIPELINE, ZONE).read(spark.createDataFrame(records, RECORD).toArrow())
    batch = batch.sort_by("kafka_offset")
    assert tuple(batch.column_names[: len(live_columns(PIPELINE))]) == live_columns(PIPELINE)
    board, tombstone, *rejects = batch.to_pylist()
    assert (board["title"], board["day"], board["stream_offset"], board["deleted"]) == (
        "title",
        dt.date(2026, 11, 20),
        0,
        False,
    )
    assert (tombstone["board_id"], tombstone["day"], tombstone["modified_at"], tombstone["deleted"]) == (
        2,
        None,
        NOON,
        True,
    )
    assert [row["reason"] for row in (board, tombstone)] == [None, None]
    assert [row["record_value"] for row in (board, tombstone)] == [
        None,
        None,
    ]  # a valid row carries its record no further
    assert [row["reason"].split(":")[0] for row in rejects] == ["/", "headers/board-partition", "/createdAt"]
    assert [row["record_key"] for row in rejects] == [b"3", b"4", b"5"]
    assert rejects[0]["record_value"] == b"{nonsense"


def test_batches_are_written_one_after_the_other_while_spark_decodes_the_next(settings, spark, serve):
    def batch(number):
        return [
            record(number, detail(number, title=f"t{number}"), 3 * number), record(number, b"bad", 3 * number + 1),
            record(1, detail(1, title=f"again {number}", modifiedAt=f"2026-11-20T03:0{number}:00.000000Z"),
                   3 * number + 2)]  # fmt: skip

    serve.warm_up(spark.createDataFrame([], RECORD))

    with ThreadPoolExecutor(1) as spark_thread:
        with locked(settings, "offset_ledger"):
            process(serve, spark, batch(1), 1)  # returns while the batch is still being written
            wait_until(lambda: is_waiting(settings, "serve"), 20, "the first batch waits for the ledger")
            second = spark_thread.submit(process, serve, spark, batch(2), 2)
            assert serve.is_writing
        second.result()
    process(serve, spark, batch(3), 3)
    wait_until(lambda: written(serve), 60, "the last batch is written")
    assert rows(settings, VIEW) == [(1, "again 3", 11), (2, "t2", 6), (3, "t3", 9)]
    assert rows(settings, "SELECT body FROM board_detail WHERE board_id = 2") == [(detail(2)["body"],)]
    assert rows(settings, 'SELECT "offset", rejected_by FROM reject ORDER BY 1') == [(o, "serve") for o in (4, 7, 10)]
    assert rows(settings, LEDGER) == [(12,)]


def test_a_failed_batch_is_heard_of_and_none_comes_after_it(settings, spark, serve):
    process(serve, spark, [record(1, detail(1), 0)], 1)
    wait_until(lambda: written(serve), 60, "the first batch is written")
    rows(settings, "DELETE FROM offset_ledger")
    process(serve, spark, [record(2, detail(2), 1)], 2)
    wait_until(lambda: not serve.is_writing, 60, "the second batch has failed")
    with pytest.raises(LedgerConflict):
        serve.check()
    with pytest.raises(LedgerConflict):
        process(serve, spark, [record(3, detail(3), 2)], 3)
    assert rows(settings, VIEW) == [(1, "title", 0)]


def test_a_batch_of_more_bytes_than_the_driver_takes_is_written_in_parts(settings, spark):
    sizes = [100, 60_000, 100, 60_000, 60_000, 60_000, 100]
    values = [detail(n + 1, body="x" * size) for n, size in enumerate(sizes)]
    topic = Topic(spark, [record(n + 1, value, n) for n, value in enumerate(values)])
    serve = served_by(settings, 140_000, topic)
    try:
        serve.process(topic.records, topic.range, 1)
        wait_until(lambda: written(serve), 60, "the last part is written")
    finally:
        serve.close()
    assert rows(settings, "SELECT board_id, length(body) FROM board_detail ORDER BY 1") == [
        (n + 1, size) for n, size in enumerate(sizes)
    ]
    assert [(part.start, part.end) for part in topic.parts] == [({0: 0}, {0: 4}), ({0: 4}, {0: 7})]
    assert rows(settings, LEDGER) == [(7,)]
