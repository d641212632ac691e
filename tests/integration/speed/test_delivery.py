"""Exactly-once delivery: what was committed, who may commit, and what readers of the output see, on a real broker."""

import json
import threading
import time
from collections import Counter
from contextlib import closing

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

from include.contracts.errors import DriverFenced, PipelineError
from include.contracts.offsets import OffsetRange
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.kafka.reader import TopicTail
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.retry import retry_transient
from spark_jobs.speed import delivery
from spark_jobs.speed.delivery import Committed, DeliveryInDoubt, ExactlyOnce, RecordTooLarge
from tests.servers import wait_until
from tests.support.topic_log import TopicLog

SOURCE, OUTPUT = PIPELINE.stream.name, PIPELINE.output.name
RECORDS = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


@pytest.fixture
def log(kafka):
    """Both topics, empty."""
    made = TopicLog(kafka.bootstrap_servers)
    for topic in (SOURCE, OUTPUT):
        made.make(topic, 2)
    return made


@pytest.fixture
def connection(kafka):
    """The connection of both drivers."""
    return KafkaConnection(kafka.bootstrap_servers)


def opened(connection, log, timeline="1"):
    """Return the delivery of a driver that just took the lease, and what it found."""
    made = ExactlyOnce(connection, PIPELINE)
    found = retry_transient(lambda: made.open([0, 1], log.offsets.topic_id(SOURCE), timeline), 30)
    return made, found


def records(*keys, value=b"{}", headers=()):
    """Return records with these keys, as Spark gives them."""
    rows = [{"key": str(key).encode(), "value": value, "headers": [*headers]} for key in keys]
    return pa.Table.from_pylist(rows, RECORDS)


def delivered(connection, log, is_settled=True):
    """Return the committed records of the output, as any reader sees them."""
    # the broker answers a commit before its markers are written
    wait_until(
        lambda: not is_settled or log.offsets.ends(OUTPUT) == log.offsets.high_watermarks(OUTPUT),
        30,
        "the markers are written",
    )
    ends = log.offsets.ends(OUTPUT)
    with closing(TopicTail(connection, OUTPUT)) as tail:
        tail.begin(dict.fromkeys(ends, 0))
        return tail.read_to(ends)


def keys(connection, log, is_settled=True):
    """Return how often each key is in the output."""
    return Counter(int(each.key()) for each in delivered(connection, log, is_settled))


def test_a_group_that_never_committed_has_nothing(connection, log):
    _, found = opened(connection, log)
    assert found == Committed({})


def test_records_and_offsets_are_committed_together(connection, log):
    first, _ = opened(connection, log)
    first.commit(records(1, 2), OffsetRange({0: 0, 1: 0}, {0: 5, 1: 7}))
    first.commit(records(3), OffsetRange({0: 5, 1: 7}, {0: 6, 1: 7}))
    _, found = opened(connection, log)
    assert found == Committed({0: 6, 1: 7}, 0, "1")
    assert keys(connection, log) == {1: 1, 2: 1, 3: 1}


def test_keys_values_tombstones_and_headers_arrive_as_they_are(connection, log):
    mine, _ = opened(connection, log)
    headers = [{"key": "event-id", "value": b"e"}, {"key": "accepted-at", "value": "초".encode()}]
    parts = [records(1, value=b'{"a": 1}', headers=headers), records(2, value=None), records(3, headers=headers[:1])]
    table = pa.concat_tables(parts).combine_chunks().slice(0, 3)
    mine.commit(pa.concat_tables([records(9).slice(1), table]), OffsetRange({}, {0: 3}))
    found = {each.key(): (each.value(), each.headers()) for each in delivered(connection, log)}
    assert found == {
        b"1": (b'{"a": 1}', [("event-id", b"e"), ("accepted-at", "초".encode())]),
        b"2": (None, None),
        b"3": (b"{}", [("event-id", b"e")]),
    }


def test_a_part_of_a_table_keeps_its_headers(connection, log):
    mine, _ = opened(connection, log)
    table = pa.concat_tables([records(each, headers=[{"key": "k", "value": str(each).encode()}]) for each in range(6)])
    mine.commit(table.combine_chunks().slice(2, 3), OffsetRange({}, {0: 3}))
    assert {each.key(): each.headers()[0][1] for each in delivered(connection, log)} == {
        b"2": b"2",
        b"3": b"3",
        b"4": b"4",
    }


def test_a_driver_that_dies_before_the_commit_leaves_nothing(connection, log, monkeypatch):
    dies, _ = opened(connection, log)
    dies.commit(records(1), OffsetRange({0: 0, 1: 0}, {0: 1, 1: 0}))

    def die(name):
        if name == "transaction.before_commit":
            dies._producer.flush(10)  # all is in the topic
            raise InterruptedError

    monkeypatch.setattr(delivery, "failpoint", die)
    with pytest.raises(InterruptedError):
        dies.commit(records(2), OffsetRange({0: 1, 1: 0}, {0: 2, 1: 0}))
    monkeypatch.undo()
    assert keys(connection, log, is_settled=False) == {1: 1}
    follows, found = opened(connection, log)
    assert found.offsets == {0: 1, 1: 0}
    follows.commit(records(2), OffsetRange({0: 1, 1: 0}, {0: 2, 1: 0}))
    assert keys(connection, log) == {1: 1, 2: 1}


def test_a_later_driver_fences_an_earlier_one(connection, log):
    earlier, _ = opened(connection, log)
    earlier.commit(records(1), OffsetRange({}, {0: 1, 1: 0}))
    later, found = opened(connection, log)
    assert found.offsets == {0: 1, 1: 0}
    with pytest.raises(DriverFenced) as raised:
        earlier.commit(records(2), OffsetRange({0: 1}, {0: 2}))
    assert raised.value.exit_code == 76
    later.commit(records(2), OffsetRange({0: 1}, {0: 2}))
    assert keys(connection, log) == {1: 1, 2: 1}


def test_the_number_of_a_page_is_committed_with_it(connection, log):
    mine, _ = opened(connection, log)
    mine.commit(records(1), OffsetRange({}, {0: 1, 1: 0}))
    planned = []
    mine.commit_page(records(5), planned.append)
    _, found = opened(connection, log)
    assert [found.page] == planned
    assert found.offsets == {0: 1, 1: 0}
    assert keys(connection, log) == {1: 1, 5: 1}


def test_a_page_that_was_planned_only_is_not_committed(connection, log):
    mine, _ = opened(connection, log)

    def plan(page):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        mine.commit_page(records(5), plan)
    _, found = opened(connection, log)
    assert found.page == 0
    assert not keys(connection, log)


def test_offsets_of_a_former_topic_are_not_used(connection, log):
    former = ExactlyOnce(connection, PIPELINE)
    former.open([0, 1], "another-id", "1")
    former.commit(None, OffsetRange({}, {0: 5, 1: 5}))
    _, found = opened(connection, log)
    assert found == Committed({})


@pytest.mark.parametrize("metadata", ["", "by hand", "[]", json.dumps({"topic_id": 7})])
def test_offsets_that_a_person_committed_are_not_used(connection, log, metadata):
    consumer = Consumer({"bootstrap.servers": connection.bootstrap_servers, "group.id": f"{PIPELINE.name}.join"})
    consumer.commit(offsets=[TopicPartition(SOURCE, 0, 3, metadata=metadata)], asynchronous=False)
    consumer.close()
    _, found = opened(connection, log)
    assert found == Committed({})


def test_a_range_that_does_not_follow_is_refused(connection, log):
    mine, _ = opened(connection, log)
    mine.commit(None, OffsetRange({}, {0: 3, 1: 3}))
    for wrong in (OffsetRange({0: 2, 1: 3}, {0: 5, 1: 3}), OffsetRange({0: 4, 1: 3}, {0: 5, 1: 3})):
        with pytest.raises(DeliveryInDoubt):
            mine.commit(records(1), wrong)
    assert not keys(connection, log)


def test_a_range_that_is_committed_is_known(connection, log):
    mine, _ = opened(connection, log)
    taken = OffsetRange({0: 0, 1: 0}, {0: 3, 1: 3})
    assert not mine.has(taken)
    mine.commit(None, taken)
    assert mine.has(taken)
    assert not mine.has(OffsetRange({0: 3, 1: 3}, {0: 3, 1: 4}))
    assert not mine.has(OffsetRange({0: 3, 1: 3}, {0: 3, 1: 3}))  # an empty batch is tried, not skipped


def test_a_record_that_is_too_large_is_the_records_fault_and_leaves_no_transaction(connection, log):
    mine, _ = opened(connection, log)
    with pytest.raises(RecordTooLarge) as raised:
        mine.commit(records(1, 2, value=b"x" * ((1 << 20) + 1)), OffsetRange({}, {0: 2, 1: 0}))
    assert not isinstance(raised.value, PipelineError)
    mine.commit(records(3), OffsetRange({}, {0: 2, 1: 0}))
    assert keys(connection, log) == {3: 1}


def test_a_client_that_does_not_return_ends_in_doubt(connection, log, monkeypatch):
    mine, _ = opened(connection, log)
    monkeypatch.setattr(delivery, "CALL_S", 0.1)
    monkeypatch.setattr(delivery, "_GRACE_S", 0.1)
    released = threading.Event()
    real = mine._producer

    class Hangs:
        def __getattr__(self, name):
            return getattr(real, name)

        def send_offsets_to_transaction(self, *given):
            released.wait(30)

    mine._producer = Hangs()
    try:
        with pytest.raises(DeliveryInDoubt, match="does not return"):
            mine.commit(records(1), OffsetRange({}, {0: 1, 1: 0}))
    finally:
        released.set()


def test_offsets_are_committed_again_before_kafka_forgets_them(connection, log, monkeypatch):
    mine, _ = opened(connection, log)
    mine.commit(records(1), OffsetRange({}, {0: 1, 1: 0}))
    committed_at = mine._committed_at
    mine.renew()
    assert mine._committed_at == committed_at
    monkeypatch.setattr(delivery, "RENEWAL_S", 0.0)
    time.sleep(0.01)
    mine.renew()
    assert mine._committed_at > committed_at
    assert opened(connection, log)[1].offsets == {0: 1, 1: 0}
