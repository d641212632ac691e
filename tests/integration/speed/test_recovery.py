"""Recovery beside a database that is behind Kafka: records that wait are saved again, each once, and no others."""

import datetime as dt
from collections import Counter
from contextlib import closing
from dataclasses import replace

import pyarrow as pa
import pytest

from include.contracts.errors import BrokerUnavailable
from include.contracts.offsets import OffsetRange
from include.contracts.validation import Reject
from include.database.driver_lease import DriverLease
from include.database.offset_ledger import OffsetLedger, replaced_partition
from include.kafka.access import KafkaAccessDenied
from include.kafka.committed import Committed
from include.kafka.offsets import OffsetReader
from include.runtime.settings import AT_LEAST_ONCE, EXACTLY_ONCE
from spark_jobs.speed.delivery import ExactlyOnce
from spark_jobs.speed.detail_records import iter_messages, unpacked
from spark_jobs.speed.join import JoinQuery
from spark_jobs.speed.pending_store import PendingStore
from spark_jobs.speed.sent_records import Sent, sent_records
from tests.fakes.events import board, member
from tests.property.test_stream import Driver
from tests.support.broker import remove_topics
from tests.support.driver import driver_context
from tests.support.fenced import refuse_unfenced
from tests.support.pipeline import produce, rows, with_topics
from tests.support.spark import SENT, RawRecord, encoded
from tests.support.topic_log import TopicLog, advance

KNOWN, LATE = 1, 2


@pytest.fixture
def settings(kafka, postgres, tmp_path):
    remove_topics(kafka.bootstrap_servers)
    made = with_topics(kafka, postgres, "recovery", tmp_path)
    refuse_unfenced(made)
    return made


def context_of(settings, delivery=EXACTLY_ONCE):
    """The context of a driver that leads."""
    settings = replace(settings, stream=replace(settings.stream, delivery=delivery))
    lease = DriverLease(settings.database, "test")
    lease.take()
    return driver_context(settings, lease=lease, ledger=OffsetLedger(settings.database),
                          store=PendingStore(settings.database, lease),
                          offset_reader=OffsetReader(settings.kafka.connection))  # fmt: skip


def places(*offsets):
    return pa.table({"partition": pa.array([0] * len(offsets), pa.int32()), "offset": pa.array(offsets, pa.int64())})


def waiting(settings):
    return {at for (at,) in rows(settings, 'SELECT "offset" FROM pending_record WHERE sent_at IS NULL')}


def test_only_records_that_wait_are_saved_again(spark, settings):
    produce(settings, [("member", KNOWN, member(KNOWN))])
    late = SENT + dt.timedelta(hours=1)
    drawn = [
        RawRecord("board", 0, 0, "10", encoded(board(10, KNOWN))),  # sent
        RawRecord("board", 0, 1, "10", None, accepted_at="2026-11-21T09:00:00Z"),  # served, and no longer looked for
        RawRecord("board", 0, 2, "12", encoded(board(12, LATE)), timestamp=late),  # waits
        RawRecord("board", 0, 3, "13", encoded(board(13, KNOWN))),  # rejected by the isolation
        RawRecord("board", 0, 4, "14", b"{broken"),
        RawRecord("board", 0, 5, "15", encoded(board(15, LATE))),  # as old as details that expired
    ]
    with closing(Driver(spark, settings, EXACTLY_ONCE)) as driver:
        driver.start()
        driver.draw(drawn)
        driver.store.save_rejects([Reject("board", 0, 3, "/: of a test; wait", b"13", b"", None)], rejected_by="join")
        range_ = OffsetRange({0: 0}, {0: len(drawn)})
        driver._join.save_unsent(range_, Sent(places(0), late))
        assert waiting(settings) == {2}
        driver._join.save_unsent(range_, Sent(places(0), None))
        assert waiting(settings) == {2, 5}
    assert rows(settings, 'SELECT "offset" FROM reject ORDER BY 1') == [(3,), (4,)]


def test_tombstones_that_a_driver_left_unsent_are_returned(spark, settings):
    drawn = [
        RawRecord("board", 0, offset, str(offset), None, accepted_at="2026-11-21T09:00:00Z") for offset in range(3)
    ]
    drawn.append(RawRecord("board", 0, 3, "13", encoded(board(13, KNOWN))))
    with closing(Driver(spark, settings, EXACTLY_ONCE)) as driver:
        driver.start()
        driver.draw(drawn)
        found = driver._join.unsent_tombstones(OffsetRange({0: 0}, {0: len(drawn)}), Sent(places(1), None))
        records = [message for each in found for message in iter_messages(unpacked(each))]
    assert [(key, value) for key, value, _ in records] == [(b"0", None), (b"2", None)]


def test_what_a_driver_with_another_delivery_sent_last_is_found_although_it_is_served(spark, settings, kafka):
    topic, output = settings.pipeline.stream.name, settings.pipeline.output.name
    produce(settings, [(topic, key, board(key, KNOWN)) for key in range(9)])
    reader = OffsetReader(settings.kafka.connection)
    ends = reader.ends(topic)
    partition = max(ends, key=lambda each: ends[each])
    produce(settings, [(output, 1, b"{}")], headers={settings.pipeline.stream.source_header: f"{topic}/{partition}/1"})
    at = dict.fromkeys(ends, 0)
    with closing(Driver(spark, settings, EXACTLY_ONCE)) as driver:
        driver.start()
        advance(settings, TopicLog(kafka.bootstrap_servers), output, reader.ends(output))
        driver._join._context = context_of(settings)
        for committed, is_after_tasks, end in (
            (Committed(at), False, 0), (Committed(at), True, 2), (Committed({}), True, 2),
            (Committed({}, overruled=frozenset(at)), True, 0),
        ):  # fmt: skip
            range_, _ = driver._join.unsettled(committed, at, at, is_after_tasks)
            assert range_.end == at | {partition: end}


def test_what_was_sent_is_read_from_before_what_was_served(settings):
    topic, output = settings.pipeline.stream.name, settings.pipeline.output.name
    produce(settings, [(topic, key, board(key, KNOWN)) for key in range(4)])
    produce(settings, [(output, 1, b"{}")], headers={settings.pipeline.stream.source_header: f"{topic}/0/7"})
    context = context_of(settings)
    ends, served = context.offset_reader.ends(topic), context.offset_reader.ends(output)
    context.ledger.open("serve", output, context.offset_reader.topic_id(output), served, context.lease)
    every = OffsetRange(dict.fromkeys(ends, 0), ends)
    found = sent_records(context, settings.pipeline, every)
    assert (found.places.to_pylist(), found.known_from) == ([{"partition": 0, "offset": 7}], None)
    assert found.within(OffsetRange({0: 7}, {0: 8})).places.num_rows == 1
    assert found.within(OffsetRange({0: 8, 1: 0}, {0: 9, 1: 9})).places.num_rows == 0
    nothing = sent_records(context, settings.pipeline, OffsetRange(ends, ends))
    assert nothing.places.num_rows == 0  # *serve* has it


def test_what_was_sent_of_lost_records_does_not_count(settings):
    topic, output = settings.pipeline.stream.name, settings.pipeline.output.name
    context = context_of(settings)
    produce(settings, [(topic, key, board(key, KNOWN)) for key in range(4)])

    def sent(*at):
        for place in at:
            headers = {settings.pipeline.stream.source_header: f"{topic}/{place}"}
            produce(settings, [(output, key, b"{}") for key in range(9)], headers=headers)

    sent("0/7", "1/7")
    ends = context.offset_reader.ends(output)
    context.ledger.open(
        replaced_partition(0), output, context.offset_reader.topic_id(output), ends, context.lease
    )  # fmt: skip
    sent("0/3")
    ends = context.offset_reader.ends(topic)
    found = sent_records(context, settings.pipeline, OffsetRange(dict.fromkeys(ends, 0), ends))
    places = {(row["partition"], row["offset"]) for row in found.places.to_pylist()}
    assert places == {(1, 7), (0, 3)}
    assert [found.next_offset(partition) for partition in (0, 1)] == [4, 8]


def test_pending_records_of_a_former_topic_that_were_sent_are_marked(spark, settings):
    """Not those of a partition whose records were set aside twice: which of two records was sent is not known."""
    pipeline, far = settings.pipeline, 10**17
    for partition, reason in ((0, "TopicReplaced: "), (1, "LedgerBeyondEnd: "), (1, "TopicReplaced: "), (0, "Other: ")):
        rows(settings, "INSERT INTO ledger_repair (consumer, topic, partition, from_topic_id, to_topic_id, to_offset, "
             "reason, repaired_by) VALUES ('join', 'board', %s, 'a', 'b', 0, %s, 'test')",
             (partition, reason))  # fmt: skip
    for key, partition, offset in ((1, 0, 1), (2, 0, 2), (3, 1, 1)):
        rows(settings, 'INSERT INTO pending_record (topic, partition, "offset", board_id, member_id, day, value, '
             "kafka_timestamp, version_at) VALUES ('board@a', %s, %s, %s, 7, '2026-11-20', '{}', now(), now())",
             (-1 - partition, offset - far, key))  # fmt: skip
        if key != 2:
            headers = {pipeline.stream.source_header: f"{pipeline.stream.name}/{-1 - partition}/{offset - far}"}
            produce(settings, [(pipeline.output.name, 1, b"{}")], headers=headers)
    with closing(Driver(spark, settings, EXACTLY_ONCE)) as driver:
        driver.start()
        driver._join._context = context_of(settings)
        driver._join.unsettled(Committed({}), {0: 0}, {0: 0})
    assert rows(settings, "SELECT board_id FROM pending_record WHERE sent_at IS NULL ORDER BY 1") == [(2,), (3,)]


def test_the_first_details_that_have_not_expired_bound_what_is_known(settings, kafka):
    topic, output = settings.pipeline.stream.name, settings.pipeline.output.name
    for key in range(2):
        produce(settings, [(topic, 1, board(1, KNOWN)), (output, 1, b"{}")],
                headers={settings.pipeline.stream.source_header: f"{topic}/0/{key}"})  # fmt: skip
    context = context_of(settings)
    ends = context.offset_reader.ends(topic)
    (partition,) = (each for each, end in context.offset_reader.ends(output).items() if end)
    TopicLog(kafka.bootstrap_servers).delete_before(output, partition, 1)
    found = sent_records(context, settings.pipeline, OffsetRange(dict.fromkeys(ends, 0), ends))
    assert found.places.to_pylist() == [{"partition": 0, "offset": 1}]
    assert found.known_from == context.offset_reader.first_times(output)[partition]


def test_a_driver_that_changes_the_delivery_waits_for_what_kafka_has(settings, monkeypatch):
    once, committed = context_of(settings, EXACTLY_ONCE), Committed({0: 0}, timeline="1")
    once.ledger.note_delivery(EXACTLY_ONCE, once.lease)
    calls = Counter()

    def answer(name, found, error):
        def call(*_):
            calls[name] += 1
            if calls[name] == 1 or isinstance(error, KafkaAccessDenied):
                raise error
            return found

        return call

    def position(error):
        calls.clear()
        monkeypatch.setattr(OffsetReader, "committed", answer("group", [], error))
        monkeypatch.setattr(ExactlyOnce, "open", answer("transactions", committed, error))
        query = JoinQuery(context_of(settings, AT_LEAST_ONCE), settings.pipeline)
        with closing(query):
            query._group = query._retry(query._committing_group)
            query.take_position()
            return query._group, query._committed

    assert position(BrokerUnavailable("not now")) == (f"{settings.pipeline.name}.join", committed)
    assert calls["transactions"] == 2
    assert position(KafkaAccessDenied("no rights")) == ("", None)
