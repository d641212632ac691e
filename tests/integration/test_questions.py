"""Between any two questions to Kafka or PostgreSQL something may happen: a record, a batch of a driver, retention.

Each case runs once for each question that it asks. The whole of a rebuild, an archive run, a repair and a start is in
`tests/faults/questions.py`.
"""

import dataclasses
import datetime as dt
import itertools
import tempfile
from contextlib import closing, suppress
from pathlib import Path

import pytest

from include.archive.catalogue import ArchiveStore, Batch
from include.contracts.clock import SystemClock, epoch_ms
from include.contracts.day import Day
from include.contracts.errors import DriverSuperseded, TableReplaced
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.generation_store import GenerationStore
from include.database.offset_ledger import OffsetLedger
from include.integrity.days.due_days import days_in_topic
from include.integrity.watch.conditions import _unarchived
from include.kafka.admin import misplaced_records
from include.kafka.offsets import OffsetReader
from include.kafka.reader import TopicTail
from spark_jobs.archive.archiver import next_range
from spark_jobs.batch.sources import MARGIN, ArchiveSource, Known, archive_sources, fix_ranges
from spark_jobs.connectors.archive_files import ArchiveFolder
from spark_jobs.repair import ManualReject, Place
from spark_jobs.speed.positions import position_of
from spark_jobs.state.table_state import TableState
from tests.fakes.events import member
from tests.support.broker import make_pipeline_topics, remove_topics
from tests.support.pipeline import migrated, produce, rows
from tests.support.questions import WAIT_S, before_question
from tests.support.sending import Sender
from tests.support.serving import opened_store, row, serve
from tests.support.topic_log import TopicLog, taken_lease

STREAM, TABLE, OUTPUT = PIPELINE.stream.name, PIPELINE.table.name, PIPELINE.output.name
DAY = Day.of(SystemClock().now(), "Asia/Seoul").before(4)
LONG_AGO, LATER = DAY.start - dt.timedelta(days=3), DAY.end + dt.timedelta(hours=3)
PARTITIONS = 40  # one of them for each question of a case
_TABLES = ("offset_ledger", "archive_file", "archive_batch", "detail_live", "reject")


class World:
    """Topics with records from before the day and of it in partition 0, old ones alone in the others; a database."""

    def __init__(self, kafka, settings):
        self.settings = settings
        self.log = TopicLog(kafka.bootstrap_servers)
        self.admin = OffsetReader(settings.kafka.connection)
        self.ledger = OffsetLedger(settings.database)
        self.of_driver = OffsetLedger(settings.database)  # of another process
        self.quiet = 0  # the partition of the next event
        self._sender = Sender(kafka.bootstrap_servers)

    def begin(self):
        """Make the topics anew."""
        remove_topics(self.log.bootstrap_servers)
        make_pipeline_topics(dataclasses.replace(self.settings.kafka, partitions=PARTITIONS))
        for topic in (STREAM, TABLE, OUTPUT):
            for partition in range(PARTITIONS):
                self.produce(topic, partition, LONG_AGO, 3)
            self.produce(topic, 0, LATER)
        self._sender.finish()

    def go_on(self, number):
        """Take a partition that is quiet, and empty the tables."""
        self.quiet = number
        rows(self.settings, "; ".join(f"DELETE FROM {table}" for table in _TABLES))

    def produce(self, topic, partition, at, count=1):
        for _ in range(count):
            self._sender.send(topic, b"{}", b"1", partition, timestamp=epoch_ms(at))

    def send(self, topic, at=None, count=1):
        """Send records to the quiet partition, of now unless a time is given."""
        self.produce(topic, self.quiet, at or SystemClock().now(), count)
        self._sender.finish()

    def ends(self, topic):
        return self.admin.ends(topic)

    def records(self, topic):
        """(partition, offset, time) of each record."""
        tail = TopicTail(self.settings.kafka.connection, topic)
        try:
            whole = self.admin.available(topic)
            tail.begin(whole.start)
            return [(m.partition(), m.offset(), dt.datetime.fromtimestamp(m.timestamp()[1] / 1000, dt.UTC))
                    for m in tail.read_to(whole.end)]  # fmt: skip
        finally:
            tail.close()

    def forget(self, topic):
        """Two records arrive, and retention removes all that the partition has but the last."""
        self.send(topic, count=2)
        self.log.delete_before(topic, self.quiet, self.ends(topic)[self.quiet] - 1)

    def archive(self, *topics):
        """An archive run: its transaction, without files."""
        for topic in topics:
            store, topic_id, ends = ArchiveStore(self.settings.database), self.admin.topic_id(topic), self.ends(topic)
            before = store.position(topic, topic_id).ends
            starts = {p: before.get(p, 0) for p in ends}
            store.add("r", Batch(topic, topic_id, starts, ends, {}, 0, SystemClock().now()), [], before)

    def advance(self, consumer, topic, lease=None):
        """A driver takes all that the topic has."""
        lease = lease or taken_lease(self.settings)
        topic_id, ends = self.admin.topic_id(topic), self.ends(topic)
        at = self.of_driver.open(consumer, topic, topic_id, dict.fromkeys(ends, 0), lease)
        self.of_driver.advance(consumer, topic, topic_id, at, ends, lease)


@pytest.fixture(scope="module")
def world(kafka, postgres, tmp_path_factory):
    return World(kafka, migrated(kafka, postgres, "questions", tmp_path_factory.mktemp("questions")))


def every_question(world, ask, happen, check, prepare=lambda: None, wait_s=WAIT_S):
    """Ask once for each question, with the event before it, and check each answer."""
    world.begin()
    for number in range(1, PARTITIONS):
        world.go_on(number)
        prepare()
        with before_question(number, happen, wait_s) as questions:
            answer = ask()
        if not questions.has_happened:
            assert number > 2, "it asks at least two questions"
            return
        check(answer)
    raise AssertionError(f"{PARTITIONS} questions or more: give the topics more partitions")


RECORDS = {
    "a record": lambda world, topic: world.send(topic),
    "an old record": lambda world, topic: world.send(topic, at=LONG_AGO),
    "a record of the day": lambda world, topic: world.send(topic, at=DAY.start + dt.timedelta(hours=1)),
    "records, and retention": lambda world, topic: world.forget(topic),
}  # fmt: skip
events = pytest.mark.parametrize("event", RECORDS)


@events
def test_no_record_as_new_is_before_the_offset_of_a_time(world, event):
    def check(at):
        assert [(p, o) for p, o, time in world.records(STREAM) if time >= DAY.start and o < at[p]] == []

    every_question(world, lambda: world.log.offsets.at(STREAM, DAY.start), lambda: RECORDS[event](world, STREAM), check)


@events
def test_no_range_of_a_topic_starts_beyond_its_end(world, event):
    def check(whole):
        assert whole.start.keys() == whole.end.keys()
        assert all(whole.start[p] <= end for p, end in whole.end.items())

    every_question(world, lambda: world.log.offsets.available(STREAM), lambda: RECORDS[event](world, STREAM), check)


@pytest.mark.parametrize("topic", [STREAM, *(pytest.param(each, marks=pytest.mark.long) for each in (TABLE, OUTPUT))])
@events
def test_a_rebuild_reads_all_records_before_its_cut_that_may_be_of_the_day(world, topic, event):
    def check(ranges):
        for name, (starts, ends) in ((STREAM, ranges.stream), (TABLE, ranges.table), (OUTPUT, ranges.output)):
            assert all(starts[p] <= end for p, end in ends.items())
            since = dt.datetime.min.replace(tzinfo=dt.UTC) if name == TABLE else DAY.start - MARGIN
            left_out = [(p, o) for p, o, time in world.records(name) if time >= since and o < min(starts[p], ends[p])]
            assert left_out == []

    def ask():
        return fix_ranges(world.log.offsets, DAY, PIPELINE)

    every_question(world, ask, lambda: RECORDS[event](world, topic), check)


def test_a_record_that_is_served_while_a_rebuild_looks_is_beyond_its_cut_or_known(world, tmp_path):
    """Its Kafka timestamp is days before its day, so that only its row says where it is."""
    store, folder = GenerationStore(world.settings.database), ArchiveFolder(str(tmp_path))

    def happen():
        world.send(STREAM, at=LONG_AGO)
        offset = world.ends(STREAM)[world.quiet] - 1
        with closing(opened_store(world.settings)) as sink:
            serve(sink, [row(1, 0, day=DAY.date, stream_partition=world.quiet, stream_offset=offset)])

    def ask():
        source = ArchiveSource(ArchiveStore(world.settings.database), folder, world.log.offsets, PIPELINE)
        return archive_sources(world.log.offsets, DAY, PIPELINE, 14, SystemClock().now(),
                               lambda: Known(store.known_offsets(DAY, STREAM)[0]), source)  # fmt: skip

    def check(found):
        offset = world.ends(STREAM)[world.quiet] - 1
        assert offset >= found.cut[STREAM][world.quiet] or offset >= found.starts[STREAM][world.quiet]

    every_question(world, ask, happen, check)


@pytest.mark.parametrize("is_gone", [False, True], ids=["whole", "the table's first records are gone"])
def test_an_archive_run_beside_a_rebuild_leaves_it_its_members(world, tmp_path, is_gone):
    folder = ArchiveFolder(str(tmp_path))

    def prepare():
        world.archive(STREAM, TABLE, OUTPUT)
        if is_gone and world.quiet == 1:
            for partition in range(PARTITIONS):
                world.log.delete_before(TABLE, partition, 2)

    def happen():
        world.send(TABLE)
        world.archive(STREAM, TABLE, OUTPUT)

    def ask():
        source = ArchiveSource(ArchiveStore(world.settings.database), folder, world.log.offsets, PIPELINE)
        return archive_sources(world.log.offsets, DAY, PIPELINE, 14, SystemClock().now(), Known, source)

    def check(found):
        """The members before the archive's end are not read from the topic."""
        assert all(split.start > 0 for split in found.table)

    every_question(world, ask, happen, check, prepare)


@pytest.mark.parametrize("event", ["a record", "an old record"])
def test_a_day_without_records_stays_without(world, event):
    days = [DAY, DAY.before(10)]
    every_question(
        world, lambda: days_in_topic(world.settings, days), lambda: RECORDS[event](world, STREAM),
        lambda found: pytest.fail(str(found)) if found else None,
    )  # fmt: skip


@pytest.mark.parametrize("retention", [False, True], ids=["", "and retention"])
def test_a_ledger_that_a_driver_advances_fits_its_topic(world, retention):
    def happen():
        world.send(OUTPUT, count=2)
        world.advance("serve", OUTPUT)
        if retention:
            world.log.delete_before(OUTPUT, world.quiet, world.ends(OUTPUT)[world.quiet] - 1)

    def check(position):
        assert position.mismatches == []

    every_question(
        world, lambda: position_of(world.ledger, world.log.offsets, "serve", OUTPUT), happen, check,
        lambda: world.advance("serve", OUTPUT),
    )  # fmt: skip


@pytest.mark.parametrize("event", RECORDS)
def test_an_archive_run_takes_each_record_once_and_counts_each_loss_once(world, event):
    """As `_Run.archive` asks, and then once more."""
    store = ArchiveStore(world.settings.database)

    def ask():
        topic_id = world.log.offsets.topic_id(STREAM)
        position = store.position(STREAM, topic_id)
        return topic_id, position, next_range(world.log.offsets, STREAM, position, "accepted")

    def check(answer):
        topic_id, position, wanted = answer
        assert all(wanted.starts[p] <= end for p, end in wanted.ends.items())
        store.add("r", Batch(STREAM, topic_id, wanted.starts, wanted.ends, {}, 0, wanted.taken_at, wanted.gap), [],
                  position.ends)  # fmt: skip
        *_, rest = ask()
        taken = [range_holding(one) for one in (wanted, rest)]
        gaps = [offset for one in (wanted, rest) if one.gap for offset in gap_offsets(one.gap)]
        before = {(p, o) for p, end in first_ends.items() for o in range(end)}
        found = [*before, *itertools.chain.from_iterable(taken), *gaps]
        assert len(found) == len(set(found))
        assert set(found) == {(p, o) for p, end in world.ends(STREAM).items() for o in range(end)}

    first_ends: dict[int, int] = {}

    def prepare():
        world.archive(STREAM)
        first_ends.update(world.ends(STREAM))

    every_question(world, ask, lambda: RECORDS[event](world, STREAM), check, prepare)


def range_holding(wanted):
    return [(p, o) for p, end in wanted.ends.items() for o in range(wanted.starts[p], end)]


def gap_offsets(gap):
    return [(p, o) for p, (first, end) in gap.offsets.items() for o in range(first, end)]


def test_records_that_the_archive_takes_are_not_missing_in_it(world):
    limits = dataclasses.replace(world.settings.alerts, archive_age_s=3600.0)
    settings = dataclasses.replace(world.settings, alerts=limits)

    def happen():
        world.send(STREAM, at=LONG_AGO)
        world.archive(STREAM, TABLE)

    every_question(
        world, lambda: _unarchived(settings), happen, are_none,
        lambda: world.archive(STREAM, TABLE),
    )  # fmt: skip


def are_none(found):
    assert set(found.values()) == {0}


@events
def test_the_audit_of_partitions_reads_what_there_is(world, event):
    every_question(
        world, lambda: misplaced_records(world.settings.kafka, [PIPELINE.stream]),
        lambda: RECORDS[event](world, STREAM), lambda _: None,
    )  # fmt: skip


def test_a_record_that_a_driver_takes_meanwhile_is_not_rejected_by_hand(world, capsys):
    """A driver whose heartbeat is old may still write, until the command has taken its lease."""
    leases = []

    def take():
        with suppress(DriverSuperseded):
            world.advance("serve", OUTPUT, leases[-1])

    def ask():
        place = Place("serve", OUTPUT, world.quiet, 1)
        return ManualReject(world.settings, world.log.offsets, world.ledger).run(place, dry_run=False)

    def check(is_rejected):
        taken = rows(world.settings, "SELECT next_offset FROM offset_ledger WHERE partition = %s", (world.quiet,))
        assert rows(world.settings, "SELECT count(*) FROM reject") == [(int(is_rejected),)]
        assert is_rejected != bool(taken and taken[0][0] > 1)

    every_question(world, ask, take, check, lambda: leases.append(taken_lease(world.settings)))


def test_a_table_that_is_made_again_while_it_is_loaded_is_noticed(world):
    def ask():
        tail = TopicTail(world.settings.kafka.connection, TABLE)
        with tempfile.TemporaryDirectory() as folder:
            table = TableState(Path(folder), world.log.offsets, tail, PIPELINE, [].extend)
            try:
                table.load()
                with suppress(TableReplaced):
                    table.check_topic()
                    return table.known([world.quiet, 1_000, 1])
                return None
            finally:
                table.close()

    def happen():
        world.log.make(TABLE, 1)
        produce(world.settings, [("member", number, member(number)) for number in (world.quiet, 1_000)])

    def check(found):
        assert found in (None, [world.quiet, 1_000])

    every_question(world, ask, happen, check, wait_s=60)  # it waits for no lock
