"""Exactly-once delivery: what was committed, who may commit, and what readers of the output see, on a real broker."""

import json
import random
import threading
import time
from collections import Counter
from contextlib import closing
from types import MappingProxyType, SimpleNamespace

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from include.contracts.errors import BrokerUnavailable, ConfigurationError, DriverFenced
from include.contracts.offsets import OffsetRange
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.kafka.committed import Committed
from include.kafka.reader import TopicTail
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.retry import retry_transient
from spark_jobs.speed import delivery
from spark_jobs.speed.delivery import DeliveryInDoubt, ExactlyOnce
from spark_jobs.speed.detail_records import MAX_REQUEST_BYTES, packed, sizes_of
from tests.servers import wait_until
from tests.support.broker import proxied_broker
from tests.support.topic_log import TopicLog

SOURCE, OUTPUT = PIPELINE.stream.name, PIPELINE.output.name
HEADERS = ("event-id", "accepted-at")
RECORDS = pa.schema([(name, pa.binary()) for name in ("key", "value", *HEADERS)])


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


def opened(connection, log, timeline="1", repaired_at=MappingProxyType({})):
    """Return the delivery of a driver that just took the lease, and what it found."""
    made = ExactlyOnce(connection, PIPELINE)
    found = retry_transient(lambda: made.open([0, 1], log.offsets.topic_id(SOURCE), timeline, repaired_at), 30)
    return made, found


def table(*keys, value=b"{}", **headers):
    """Return records with these keys."""
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    rows = [{"key": str(key).encode(), "value": value} | named for key in keys]
    return pa.Table.from_pylist(rows, RECORDS)


def records(*keys, **columns):
    """Return records with these keys, as tasks return them."""
    return [packed(table(*keys, **columns))]


def send(delivery, rows, range_):
    """Commit, and wait until it is done."""
    delivery.commit(rows, range_)
    delivery.settle()


def delivered(connection, log, is_settled=True):
    """Return the committed records of the output, as any reader sees them."""
    if is_settled:
        log.wait_for_markers(OUTPUT)
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
    send(first, records(1, 2), OffsetRange({0: 0, 1: 0}, {0: 5, 1: 7}))
    send(first, records(3), OffsetRange({0: 5, 1: 7}, {0: 6, 1: 7}))
    _, found = opened(connection, log)
    assert found == Committed({0: 6, 1: 7}, 0, "1")
    assert keys(connection, log) == {1: 1, 2: 1, 3: 1}


def test_keys_values_tombstones_and_headers_arrive_as_they_are(connection, log):
    mine, _ = opened(connection, log)
    first = table(1, value=b'{"a": 1}', event_id=b"e", accepted_at="초".encode())
    parts = [table(9).slice(1), pa.concat_tables([first, table(2, value=None)]), table(3, event_id=b"e")]
    send(mine, [packed(each) for each in parts], OffsetRange({}, {0: 3}))
    found = {each.key(): (each.value(), each.headers()) for each in delivered(connection, log)}
    assert found == {
        b"1": (b'{"a": 1}', [("event-id", b"e"), ("accepted-at", "초".encode())]),
        b"2": (None, None),
        b"3": (b"{}", [("event-id", b"e")]),
    }


def test_a_part_of_a_table_keeps_its_headers(connection, log):
    mine, _ = opened(connection, log)
    every = pa.concat_tables([table(each, event_id=str(each).encode()) for each in range(6)])
    send(mine, [packed(every.combine_chunks().slice(2, 3))], OffsetRange({}, {0: 3}))
    assert {each.key(): each.headers()[0][1] for each in delivered(connection, log)} == {
        b"2": b"2",
        b"3": b"3",
        b"4": b"4",
    }


def test_a_driver_that_dies_before_the_commit_leaves_nothing(connection, log, monkeypatch):
    dies, _ = opened(connection, log)
    send(dies, records(1), OffsetRange({0: 0, 1: 0}, {0: 1, 1: 0}))

    def die(name):
        if name == "transaction.before_commit":
            dies._producer.flush(10)  # all is in the topic
            raise InterruptedError

    monkeypatch.setattr(delivery, "failpoint", die)
    with pytest.raises(InterruptedError):
        send(dies, records(2), OffsetRange({0: 1, 1: 0}, {0: 2, 1: 0}))
    monkeypatch.undo()
    assert keys(connection, log, is_settled=False) == {1: 1}
    follows, found = opened(connection, log)
    assert found.offsets == {0: 1, 1: 0}
    send(follows, records(2), OffsetRange({0: 1, 1: 0}, {0: 2, 1: 0}))
    assert keys(connection, log) == {1: 1, 2: 1}


def test_a_later_driver_fences_an_earlier_one(connection, log):
    earlier, _ = opened(connection, log)
    send(earlier, records(1), OffsetRange({}, {0: 1, 1: 0}))
    later, found = opened(connection, log)
    assert found.offsets == {0: 1, 1: 0}
    with pytest.raises(DriverFenced) as raised:
        send(earlier, records(2), OffsetRange({0: 1}, {0: 2}))
    assert raised.value.exit_code == 76
    send(later, records(2), OffsetRange({0: 1}, {0: 2}))
    assert keys(connection, log) == {1: 1, 2: 1}


def test_a_driver_that_is_fenced_while_it_sends_says_so(connection, log, monkeypatch):
    earlier, _ = opened(connection, log)
    send(earlier, records(1), OffsetRange({}, {0: 1, 1: 0}))
    later = []

    def at(name):
        if name == "transaction.sending" and later:
            earlier._producer.flush(10)  # the broker refuses them
        elif name == "transaction.sending":
            later.extend(opened(connection, log)[:1])

    monkeypatch.setattr(delivery, "failpoint", at)
    with pytest.raises(DriverFenced):
        send(earlier, records(*range(2, 20_002)), OffsetRange({0: 1}, {0: 20_001}))
    monkeypatch.undo()
    send(later[0], records(2), OffsetRange({0: 1}, {0: 2}))
    assert keys(connection, log) == {1: 1, 2: 1}


def test_the_number_of_a_page_is_committed_with_it(connection, log):
    mine, _ = opened(connection, log)
    send(mine, records(1), OffsetRange({}, {0: 1, 1: 0}))
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
    former.open([0, 1], "another-id", "1", {})
    send(former, (), OffsetRange({}, {0: 5, 1: 5}))
    _, found = opened(connection, log)
    assert found == Committed({})


@pytest.mark.parametrize("metadata", ["", "by hand", "[]", json.dumps({"topic_id": 7})])
def test_offsets_that_a_person_committed_are_not_used(connection, log, metadata):
    consumer = Consumer({"bootstrap.servers": connection.bootstrap_servers, "group.id": f"{PIPELINE.name}.join"})
    consumer.commit(offsets=[TopicPartition(SOURCE, 0, 3, metadata=metadata)], asynchronous=False)
    consumer.close()
    _, found = opened(connection, log)
    assert found == Committed({})


def test_offsets_from_before_a_repair_of_the_ledger_are_not_used(connection, log):
    first, _ = opened(connection, log, repaired_at={0: 5})
    send(first, records(1), OffsetRange({}, {0: 3, 1: 4}))
    later, found = opened(connection, log, repaired_at={0: 5})
    assert found == Committed({0: 3, 1: 4}, 0, "1")
    later.commit_page(records(2), lambda page: None)
    repaired, found = opened(connection, log, repaired_at={0: 7})
    assert found == Committed({1: 4}, later.committed.page, "1", frozenset({0}))
    send(repaired, (), OffsetRange({1: 4}, {0: 1, 1: 4}))
    _, found = opened(connection, log, repaired_at={0: 7})
    assert (found.offsets, found.overruled) == ({0: 1, 1: 4}, frozenset())
    _, found = opened(connection, log, repaired_at={0: 6})  # a database of before the repair
    assert found.offsets == {0: 1, 1: 4}


def test_an_offset_that_kafka_does_not_tell_is_asked_for_again(connection, log, monkeypatch):
    mine, _ = opened(connection, log)
    send(mine, records(1), OffsetRange({}, {0: 3, 1: 4}))

    class Untold(Consumer):
        def committed(self, partitions, timeout):
            first, *others = super().committed(partitions, timeout)
            error = KafkaError(KafkaError.UNSTABLE_OFFSET_COMMIT)
            return [SimpleNamespace(partition=first.partition, offset=-1001, error=error, metadata=None), *others]

    monkeypatch.setattr(delivery, "Consumer", Untold)
    with pytest.raises(BrokerUnavailable, match="UNSTABLE_OFFSET_COMMIT"):
        ExactlyOnce(connection, PIPELINE).open([0, 1], log.offsets.topic_id(SOURCE), "1", {})


def test_a_topic_that_takes_smaller_batches_is_an_error_of_its_settings(connection, log):
    log.make(OUTPUT, 2, {"max.message.bytes": "2000"})
    mine, _ = opened(connection, log)
    with pytest.raises(ConfigurationError, match=r"set max.message.bytes of the topic to 1048588 or more"):
        send(mine, records(1, value=bytes(random.Random(1).randbytes(5_000))), OffsetRange({}, {0: 1, 1: 0}))


def test_a_timeout_that_the_broker_refuses_is_an_error_of_its_settings(connection, log, monkeypatch):
    monkeypatch.setitem(delivery.TRANSACTION_SETTINGS, "transaction.timeout.ms", 1_000_000_000)
    with pytest.raises(ConfigurationError, match=r"set transaction.max.timeout.ms of the brokers to 60000 or more"):
        ExactlyOnce(connection, PIPELINE).open([0, 1], log.offsets.topic_id(SOURCE), "1", {})


def test_a_range_that_does_not_follow_is_refused(connection, log):
    mine, _ = opened(connection, log)
    send(mine, (), OffsetRange({}, {0: 3, 1: 3}))
    for wrong in (OffsetRange({0: 2, 1: 3}, {0: 5, 1: 3}), OffsetRange({0: 4, 1: 3}, {0: 5, 1: 3})):
        with pytest.raises(DeliveryInDoubt):
            send(mine, records(1), wrong)
    assert not keys(connection, log)


def test_what_is_committed_is_not_left_of_a_range(connection, log):
    mine, _ = opened(connection, log)
    taken = OffsetRange({0: 0, 1: 0}, {0: 3, 1: 3})
    assert mine.left_of(taken) == taken
    send(mine, (), taken)
    nothing = OffsetRange({0: 3, 1: 3}, {0: 3, 1: 3})
    assert mine.left_of(taken) == mine.left_of(nothing) == mine.left_of(OffsetRange({0: 1}, {0: 1, 1: 2})) == nothing
    for more in ({0: 3, 1: 4}, {0: 5, 1: 4}):
        assert mine.left_of(OffsetRange({0: 1}, more)) == OffsetRange({0: 3, 1: 3}, more)


def test_the_largest_record_passes(connection, log):
    mine, _ = opened(connection, log)
    largest = table(2, value=b"x" * ((1 << 20) - 1_200), event_id=b"e" * 1_000)
    assert MAX_REQUEST_BYTES - 300 < sizes_of(largest).max() <= MAX_REQUEST_BYTES
    every = pa.concat_tables([table(0), table(1, value=None), largest])
    send(mine, [packed(every.combine_chunks().slice(1, 2))], OffsetRange({}, {0: 2, 1: 0}))
    assert keys(connection, log) == {1: 1, 2: 1}


def test_a_batch_is_sent_in_a_thread_and_the_next_one_waits_for_it(connection, log, monkeypatch):
    mine, _ = opened(connection, log)
    released, done = threading.Event(), []
    monkeypatch.setattr(delivery, "failpoint", lambda name: name == "transaction.before_commit" and released.wait(30))
    mine.commit(records(1), OffsetRange({}, {0: 1, 1: 0}), lambda: done.append((1, keys(connection, log, False)[1])))
    assert (mine.committed.offsets, done) == ({}, [])
    mine.check()
    threading.Timer(0.5, released.set).start()
    mine.commit(records(2), OffsetRange({0: 1, 1: 0}, {0: 2, 1: 0}), lambda: done.append((2, None)))
    assert done[0][0] == 1
    mine.settle()
    assert mine.committed.offsets == {0: 2, 1: 0}
    assert [number for number, _ in done] == [1, 2]
    assert keys(connection, log) == {1: 1, 2: 1}


def test_no_batch_follows_one_that_failed(connection, log):
    mine, _ = opened(connection, log)

    def fail():
        raise InterruptedError

    mine.commit(records(1), OffsetRange({}, {0: 1, 1: 0}), fail)
    for call in (mine.settle, mine.check, lambda: send(mine, records(2), OffsetRange({0: 1, 1: 0}, {0: 2, 1: 0})),
                 lambda: mine.commit_page(records(5), print)):  # fmt: skip
        with pytest.raises(InterruptedError):
            call()
    assert keys(connection, log) == {1: 1}


def test_a_driver_that_stops_waits_for_its_transaction(connection, log, monkeypatch):
    mine, _ = opened(connection, log)
    monkeypatch.setattr(delivery, "failpoint", lambda name: name == "transaction.before_commit" and time.sleep(0.5))
    mine.commit(records(1), OffsetRange({}, {0: 1, 1: 0}))
    mine.close()
    assert keys(connection, log) == {1: 1}


def test_a_client_that_does_not_return_ends_in_doubt(connection, log, monkeypatch):
    mine, _ = opened(connection, log)
    monkeypatch.setattr(delivery, "CALL_S", 0.1)
    monkeypatch.setattr(delivery, "GRACE_S", 0.1)
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
            send(mine, records(1), OffsetRange({}, {0: 1, 1: 0}))
    finally:
        released.set()


def test_offsets_are_committed_again_before_kafka_forgets_them(connection, log, monkeypatch):
    mine, _ = opened(connection, log)
    send(mine, records(1), OffsetRange({}, {0: 1, 1: 0}))
    committed_at = mine._committed_at
    mine.renew()
    assert mine._committed_at == committed_at
    monkeypatch.setattr(delivery, "RENEWAL_S", 0.0)
    time.sleep(0.01)
    mine.renew()
    assert mine._committed_at > committed_at
    assert opened(connection, log)[1].offsets == {0: 1, 1: 0}


@pytest.fixture(scope="module")
def proxied(tmp_path_factory):
    """A broker and the proxy in front of it."""
    with proxied_broker(tmp_path_factory.mktemp("proxied")) as (kafka, proxy):
        yield kafka, proxy


@pytest.fixture
def far(proxied, monkeypatch):
    """A delivery behind the proxy that waits 3 s for a commit, `lose(call)` to make a call when only the second commit
    is left, the connection past the proxy, and the topics."""
    kafka, proxy = proxied
    log, direct = TopicLog(kafka.bootstrap_servers), KafkaConnection(kafka.bootstrap_servers)
    for topic in (SOURCE, OUTPUT):
        log.make(topic, 2)
    mine, _ = opened(KafkaConnection(proxy.address), log)
    send(mine, records(1), OffsetRange({}, {0: 1, 1: 0}))
    monkeypatch.setattr(delivery, "TRANSACTION_S", 3.0)

    def lose(call):
        def at(name):
            if name == "transaction.before_commit":
                assert mine._producer.flush(10) == 0  # the records are acknowledged
                monkeypatch.setattr(delivery, "failpoint", lambda name: None)
                call()

        monkeypatch.setattr(delivery, "failpoint", at)

    yield mine, lose, direct, log
    proxy.let_requests_go()
    proxy.bring_answers()


def is_committed(direct, log):
    """True if the offsets of a second batch are committed, as another client of the group reads them."""
    with closing(Consumer({"bootstrap.servers": direct.bootstrap_servers, "group.id": f"{PIPELINE.name}.join",
                           "isolation.level": "read_uncommitted"})) as consumer:  # fmt: skip
        return consumer.committed([TopicPartition(SOURCE, 0)], 10)[0].offset == 2


SECOND = OffsetRange({0: 1, 1: 0}, {0: 2, 1: 0})


def test_a_commit_whose_answer_is_lost_is_found_by_the_next_driver(proxied, far):
    mine, lose, direct, log = far
    _, proxy = proxied
    lose(proxy.lose_answers)
    with pytest.raises(DeliveryInDoubt) as raised:
        send(mine, records(2), SECOND)
    assert raised.value.exit_code == 75
    follows, found = opened(direct, log)
    assert found.offsets == SECOND.end
    proxy.bring_answers()  # the earlier driver's client may ask again
    send(follows, records(3), OffsetRange(SECOND.end, {0: 3, 1: 0}))
    assert keys(direct, log) == {1: 1, 2: 1, 3: 1}


def test_a_commit_that_arrives_after_the_next_driver_came_commits_nothing(proxied, far):
    mine, lose, direct, log = far
    _, proxy = proxied
    lose(proxy.hold_requests)
    with pytest.raises(DeliveryInDoubt):
        send(mine, records(2), SECOND)
    follows, found = opened(direct, log)
    assert found.offsets == SECOND.start
    proxy.let_requests_go()
    with pytest.raises(KafkaException) as raised:
        mine._producer.commit_transaction(30)  # goes on with the call whose time was over
    assert raised.value.args[0].fatal()
    send(follows, records(2), SECOND)
    assert keys(direct, log) == {1: 1, 2: 1}


def test_a_connection_that_ends_before_the_answer_is_opened_again(proxied, far, monkeypatch):
    mine, lose, direct, log = far
    _, proxy = proxied

    def cut_when_committed():
        wait_until(lambda: is_committed(direct, log), 30, "the commit arrived")
        proxy.bring_answers()

    def lose_the_answer():
        proxy.lose_answers()
        cutting.start()

    monkeypatch.setattr(delivery, "TRANSACTION_S", 30.0)
    cutting = threading.Thread(target=cut_when_committed)
    lose(lose_the_answer)
    send(mine, records(2), SECOND)
    cutting.join()
    send(mine, records(3), OffsetRange(SECOND.end, {0: 3, 1: 0}))
    assert keys(direct, log) == {1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize("place", ["sending", "before_commit", "after_commit"])
def test_connections_that_end_in_any_transaction_are_opened_again(proxied, far, monkeypatch, place):
    mine, _, direct, log = far
    _, proxy = proxied

    def end_all(name):
        if name == f"transaction.{place}":
            proxy.fall_silent()
            proxy.forget()

    monkeypatch.setattr(delivery, "TRANSACTION_S", 30.0)
    monkeypatch.setattr(delivery, "failpoint", end_all)
    for key in range(2, 6):
        send(mine, records(key), OffsetRange({0: key - 1, 1: 0}, {0: key, 1: 0}))
    assert keys(direct, log) == dict.fromkeys(range(1, 6), 1)
