"""A rebuild on real servers: topics with transactions, progress, retries and refusals."""

import dataclasses
import datetime as dt
from functools import partial

import pytest
from confluent_kafka import Producer

from include.contracts.clock import SystemClock, rfc3339
from include.contracts.day import Day
from include.contracts.errors import DayBusy, MissingRange, StaleRun
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.generation_store import Excluded, GenerationStore, Part
from include.integrity.days.comparison import verify
from include.integrity.days.due_days import days_to_certify, days_to_rebuild, dirty_days
from include.integrity.days.pruning import cover
from include.integrity.days.publication import publish
from include.kafka.offsets import OffsetReader
from spark_jobs.batch import rebuild as member_preload
from spark_jobs.batch.rebuild import TaskFailed, buckets_for, build, rebuild_day
from spark_jobs.batch.sources import Known, fix_ranges, topic_sources
from spark_jobs.connectors.splits import FileSplit, TopicSplit, read_split
from tests.fakes.events import board, member
from tests.support.certifying import certify_alone
from tests.support.pipeline import migrated, produce, rows
from tests.support.sending import sending
from tests.support.topic_log import TopicLog

DAY = Day.parse("2026-11-20", "Asia/Seoul")
ROWS = "SELECT board_id, nickname, kafka_offset FROM detail_final WHERE generation_id = %s ORDER BY 1"
RUN = "SELECT phase, records_total, records_read, parts_total, parts_loaded, rows_loaded, error FROM rebuild_run"
DUPLICATES = "SELECT board_id, class, rebuilt FROM detail_correction WHERE generation_id = %s"


@pytest.fixture
def settings(kafka, postgres, tmp_path):
    log = TopicLog(kafka.bootstrap_servers)
    for topic in ("member", "board", "board-detail"):
        log.make(topic, 4)
    return migrated(kafka, postgres, "rebuild", tmp_path)


def rebuilt(spark, settings, run_id="r"):
    return rebuild_day(lambda: spark.sparkContext, settings, PIPELINE, DAY, run_id, None)


def sources(settings):
    offset_reader = OffsetReader(settings.kafka.connection)
    return topic_sources(fix_ranges(offset_reader, DAY, PIPELINE, Known()), PIPELINE)


def detail(settings, partition, offset, copies):
    """Records of the output topic that were made from this board record."""
    with sending(settings.kafka.bootstrap_servers) as sender:
        for _ in range(copies):
            sender.send("board-detail", b"{}", b"1", partition=0, headers={"board-at": f"board/{partition}/{offset}"})


def place(settings, board_id):
    """Return the coordinates of the board's record in its topic."""
    for split in sources(settings).stream:
        for records in read_split(split, settings.kafka.connection):
            for record in records.to_pylist():
                if record["key"] == str(board_id).encode():
                    return record["partition"], record["offset"]
    raise AssertionError(f"board {board_id} is not in the topic")


def test_builds_a_day_and_says_how_far_it_is(spark, settings):
    produce(settings, [("member", 7, member(7)), ("board", 1, board(1)), ("board", 2, board(2, 9)),
                       ("board", 3, b"{nonsense")])  # fmt: skip
    detail(settings, *place(settings, 1), copies=3)
    built = rebuilt(spark, settings)
    assert rows(settings, ROWS, (built.generation_id,)) == [(1, board_author(), 0)]
    assert rows(settings, DUPLICATES, (built.generation_id,)) == [(1, "duplicate", {"copies": 3})]
    excluded = rows(settings, "SELECT kind, board_id FROM generation_excluded ORDER BY 1")
    assert ("pending", 2) in excluded
    [(phase, total, read, parts_total, parts_loaded, loaded, error)] = rows(settings, RUN)
    assert (phase, total, read, loaded, error) == ("built", 7, 7, 1, None)
    assert parts_total == parts_loaded > 0
    offsets = OffsetReader(settings.kafka.connection)
    assert rows(settings, "SELECT cut -> 'topic_ids' FROM generation WHERE id = %s", (built.generation_id,)) == [
        ({topic: offsets.topic_id(topic) for topic in ("board", "member", "board-detail")},)]  # fmt: skip


def board_author():
    return member(7)["nickname"]


def test_reads_what_was_committed_and_nothing_else(settings):
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers, "transactional.id": "rebuild-test"})
    producer.init_transactions(30)
    for number, is_kept in enumerate((True, False, True)):
        producer.begin_transaction()
        producer.produce("board", f"v{number}".encode(), b"1", partition=0)
        producer.flush(30)
        producer.commit_transaction(30) if is_kept else producer.abort_transaction(30)
    TopicLog(settings.kafka.bootstrap_servers).wait_for_markers("board")
    end = OffsetReader(settings.kafka.connection).ends("board")[0]
    assert end == 6  # three records, three markers
    tables = list(read_split(TopicSplit("board", 0, 0, end), settings.kafka.connection))
    assert [value for table in tables for value in table["value"].to_pylist()] == [b"v0", b"v2"]
    assert list(read_split(TopicSplit("board", 0, end, end), settings.kafka.connection)) == []


def test_a_range_that_is_gone_fails_the_rebuild_and_the_run_says_so(spark, settings):
    produce(settings, [("member", 7, member(7)), *[("board", 1, board(1)) for _ in range(3)]])
    found = sources(settings)
    partition, _ = place(settings, 1)
    TopicLog(settings.kafka.bootstrap_servers).delete_before("board", partition, 1)
    with pytest.raises(MissingRange):
        list(read_split(TopicSplit("board", partition, 0, 3), settings.kafka.connection))
    with pytest.raises(MissingRange, match="topic=board"):
        build(spark.sparkContext, settings, PIPELINE, DAY, "r", None, found)
    [(phase, *_, error)] = rows(settings, RUN)
    assert phase == "failed"
    assert "MissingRange" in error
    assert rows(settings, "SELECT status FROM generation") == [("building",)]


def test_a_task_that_fails_is_named(spark, settings):
    produce(settings, [("member", 7, member(7)), ("board", 1, board(1))])
    broken = dataclasses.replace(sources(settings), stream=(FileSplit("board", "/nowhere.parquet"),))
    with pytest.raises(TaskFailed, match=r"nowhere\.parquet"):
        build(spark.sparkContext, settings, PIPELINE, DAY, "r", None, broken)


def test_two_rebuilds_of_a_day_at_once_are_one(spark, settings):
    with GenerationStore(settings.database).hold(DAY), pytest.raises(DayBusy):
        rebuilt(spark, settings)


def test_a_part_is_saved_once_and_never_into_a_discarded_generation(settings):
    store = GenerationStore(settings.database)
    generation = store.begin(DAY, "old", None, {"board": {0: 1}}, {})
    part = Part(-1, excluded=[Excluded("deleted", "1", 1, 0, 0, "it was deleted")])
    assert store.save_part(generation, DAY, part)
    assert not store.save_part(generation, DAY, part)
    assert rows(settings, "SELECT count(*) FROM generation_excluded") == [(1,)]
    store.begin(DAY, "new", None, {"board": {0: 1}}, {})  # its driver takes the first one for dead
    with pytest.raises(StaleRun):
        store.save_part(generation, DAY, Part(0))


def test_a_board_that_came_days_before_its_day_is_found_again(settings):
    store = GenerationStore(settings.database)
    assert store.known_offsets(DAY, "board") == ({}, {})
    rows(settings, "INSERT INTO detail_live (board_id, day, stream_partition, stream_offset, kafka_partition,"
                   " kafka_offset) VALUES (1, %s, 2, 17, 3, 5), (2, %s, 2, 19, 3, 4)",
         (DAY.date, DAY.date), "stream")  # fmt: skip
    assert store.known_offsets(DAY, "board") == ({2: 17}, {3: 4})


def test_members_that_the_driver_has_no_room_for_are_read_by_tasks(spark, settings, monkeypatch):
    numbers = range(1, 41)
    produce(settings, [*[("member", n, member(n)) for n in numbers], *[("board", n, board(n, n)) for n in numbers]])
    every = rebuilt(spark, settings, "by the driver")
    monkeypatch.setattr(member_preload, "MAX_RECORDS", 12)  # about a partition of four
    some = rebuilt(spark, settings, "by both")
    monkeypatch.setattr(member_preload, "MAX_RECORDS", 0)
    none = rebuilt(spark, settings, "by tasks")
    assert every.row_count == 40
    assert every.content_hash == some.content_hash == none.content_hash


def test_one_run_certifies_five_days_that_were_never_published(spark, settings):
    """One task of a run after the other for all days, as Airflow has it, and boards that moved between the days."""
    yesterday = Day.of(SystemClock().now(), settings.timezone).before(1)
    days = [yesterday.before(age) for age in range(4, -1, -1)]
    morning, evening = rfc3339(days[0].start), rfc3339(days[-1].end - dt.timedelta(hours=1))
    produce(settings, [("member", 7, member(7, createdAt=morning, modifiedAt=morning))])
    for number, day in enumerate(days, 1):
        at = rfc3339(day.start)
        rows(settings, "INSERT INTO day_publication (day) VALUES (%s)", (day.date,), "stream")
        moves = 10 + number
        produce(settings, [("board", number, board(number, createdAt=at, modifiedAt=at)),
                           ("board", moves, board(moves, createdAt=at, modifiedAt=at)),
                           ("board", moves, board(moves, createdAt=morning, modifiedAt=evening))])  # fmt: skip
    chosen = days_to_rebuild(settings, yesterday)
    assert chosen == [str(day) for day in days]

    steps = (
        lambda day: rebuild_day(lambda: spark.sparkContext, settings, PIPELINE, day, "night", None),
        lambda day: verify(settings, day, "night"),
        lambda day: publish(settings, day, "night", automatic=True),
        partial(certify_alone, settings),
        lambda day: cover(settings, day),
    )
    for step in steps:
        for day in days:
            step(day)
    assert rows(settings, "SELECT day, status, row_count FROM day_publication ORDER BY day") == [
        (day.date, "certified", 6 if day is days[0] else 1) for day in days
    ]
    assert rows(settings, "SELECT DISTINCT run_id FROM generation") == [("night",)]
    assert dirty_days(settings) == []
    assert days_to_certify(settings, []) == []
    assert days_to_rebuild(settings, yesterday) == [str(yesterday)]


@pytest.mark.parametrize(("records", "rows_per_task", "cores", "expected"), [
    (0, 100, 2, 2), (200, 100, 2, 2), (201, 100, 2, 4), (889_145, 100_000, 2, 10), (5, 1, 3, 6),
])  # fmt: skip
def test_parts_hold_no_more_than_they_may_and_leave_no_core_idle(records, rows_per_task, cores, expected):
    assert buckets_for(records, rows_per_task, cores) == expected
