"""A topic whose log was cut off at the front: a day is built from all of its records, or not at all.

Kafka removes the front of a partition when retention is lowered, and for `delete-records`. The days here are inside the
rebuild window, so nothing but the log itself says that records are gone.
"""

import datetime as dt
import json
import random
from contextlib import closing

import pytest

from include.contracts.clock import rfc3339
from include.contracts.errors import MissingRange
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.integrity.days.comparison import verify
from include.kafka.reader import TopicTail
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.batch.rebuild import rebuild_day
from spark_jobs.batch.sources import Known, Taken, archive_sources
from spark_jobs.connectors.splits import TopicSplit, read_split
from tests.support.archive import DAY, NOON, STREAM, TABLE, Archive, a_board, a_member
from tests.support.certifying import certify_alone
from tests.support.messages import LOG_BEGINS_LATER, RECORD_IS_GONE, TAKEN_IS_GONE
from tests.support.pipeline import rows
from tests.support.publication import publish

NOW = DAY.end + dt.timedelta(hours=4)
LONG_AGO = NOON - dt.timedelta(days=9)
OTHERS = 1000  # boards from this number on are of other days
SEEDS = 6


@pytest.fixture
def archive(kafka, postgres, spark, tmp_path):
    return Archive(kafka, postgres, spark, "log_cut_short", tmp_path, rows_per_task=40)


def places(archive):
    """Return the coordinates of the day's boards that the topic still has: {(partition, offset)}."""
    with closing(TopicTail(KafkaConnection(archive.log.bootstrap_servers), STREAM)) as tail:
        tail.begin(archive.offsets.earliest(STREAM))
        records = tail.read_to(archive.offsets.ends(STREAM))
    return {(record.partition(), record.offset()) for record in records if int(record.key()) < OTHERS}


def planned(archive, known):
    """Every place that a build would read of the stream."""
    sources = archive_sources(archive.offsets, DAY, PIPELINE, 14, NOW, lambda: known, archive.source)
    return {place for split in sources.stream for place in places_of(archive, split)}


def places_of(archive, split):
    if isinstance(split, TopicSplit):  # all of it is there, or reading it fails
        assert split.start >= archive.offsets.earliest(STREAM)[split.partition]
        yield from ((split.partition, offset) for offset in range(split.start, split.end))
    else:
        for table in read_split(split, KafkaConnection(archive.log.bootstrap_servers), ("partition", "offset")):
            yield from zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)


def cut(archive, partition, offset):
    archive.log.delete_before(STREAM, partition, offset)


def busiest(archive):
    """The partition with most records, and its end."""
    return max(archive.offsets.ends(STREAM).items(), key=lambda item: item[1])


def half_a_day_gone(archive):
    archive.send([a_board(number, memberId=7) for number in range(2000, 2020)], NOON - dt.timedelta(days=3))
    archive.send([a_board(number, memberId=7) for number in range(1, 40)], NOON - dt.timedelta(hours=6))
    archive.send([a_board(number, memberId=7) for number in range(40, 80)], NOON + dt.timedelta(hours=6))


def test_a_log_that_begins_after_the_days_start_is_refused_without_an_archive(archive):
    half_a_day_gone(archive)
    partition, end = busiest(archive)
    assert places(archive) <= planned(archive, Known())

    cut(archive, partition, end - 2)

    with pytest.raises(MissingRange, match=f"{LOG_BEGINS_LATER}.*day={DAY}.*{partition}: {end - 2}"):
        planned(archive, Known())


def test_what_the_log_lost_comes_from_the_archive(archive):
    half_a_day_gone(archive)
    expected = places(archive)
    archive.run()

    for partition, end in archive.offsets.ends(STREAM).items():
        cut(archive, partition, end)

    assert expected <= planned(archive, Known())


def test_a_known_record_before_the_logs_start_is_refused(archive):
    half_a_day_gone(archive)
    partition, end = busiest(archive)
    first = min(offset for p, offset in places(archive) if p == partition)
    # a replay carries the time of the first try: the log seems to go back as far as before
    archive.send([a_board(number) for number in range(3000, 3020)], LONG_AGO)
    cut(archive, partition, end)

    with pytest.raises(MissingRange, match=f"{RECORD_IS_GONE} {first}"):
        planned(archive, Known(stream={partition: first}))


def test_records_that_the_stream_never_took_are_refused(archive):
    half_a_day_gone(archive)
    partition, end = busiest(archive)
    archive.send([a_board(number) for number in range(3000, 3020)], LONG_AGO)
    cut(archive, partition, end)

    with pytest.raises(MissingRange, match=f"{TAKEN_IS_GONE} {end - 1}"):
        planned(archive, Known(taken={partition: Taken(end - 1, NOON)}))
    # what came long after the day is not of it
    planned(archive, Known(taken={partition: Taken(end - 1, DAY.end + dt.timedelta(days=2))}))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_cut_makes_a_day_smaller(archive, seed):
    chance = random.Random(seed)
    known: dict[int, int] = {}
    taken = {partition: Taken(0, LONG_AGO) for partition in archive.offsets.ends(STREAM)}
    expected: set[tuple[int, int]] = set()
    for night in range(3):
        at = NOON + dt.timedelta(days=night - 1, hours=chance.choice([-11, -8, -3, 0, 4, 11]))
        of_day, others = (
            [a_board(number) for number in chance.sample(range(first, first + OTHERS - 1), chance.randint(5, 30))]
            for first in (1, OTHERS)
        )
        boards = [*of_day, *others]
        if chance.random() < 0.3:  # a replay has the times of long ago: the log's first time says nothing then
            archive.send(others, LONG_AGO)
            boards = of_day
        archive.send(chance.sample(boards, len(boards)), at)
        expected |= places(archive)
        if chance.random() < 0.4:
            archive.run(accept_gap="a test")
        if chance.random() < 0.7:  # the stream takes what there is, and its rows say so
            for partition, offset in places(archive):
                known[partition] = min(offset, known.get(partition, offset))
            earliest = archive.offsets.earliest(STREAM)
            taken |= {
                partition: Taken(end, at)
                for partition, end in archive.offsets.ends(STREAM).items()
                if taken[partition].offset >= earliest[partition]
            }  # else it refuses to go on
        for partition, end in archive.offsets.ends(STREAM).items():
            if night > 0 and chance.random() < 0.3:
                first = archive.offsets.earliest(STREAM)[partition]
                cut(archive, partition, chance.randint(first, end))

    try:
        found = planned(archive, Known(stream=known, taken=taken))
    except MissingRange:
        return  # nothing is built
    assert expected <= found


@pytest.mark.parametrize("is_archived", ["before", "after", "never"])
def test_members_that_are_gone_come_from_the_archive_or_nothing_is_built(archive, is_archived):
    archive.send([*(a_member(number) for number in range(20)), a_board(1)])
    if is_archived == "before":
        archive.run()
    partition, end = max(archive.offsets.ends(TABLE).items(), key=lambda item: item[1])
    archive.log.delete_before(TABLE, partition, end - 1)
    if is_archived == "after":
        archive.run()

    if is_archived == "before":
        assert planned(archive, Known()) == places(archive)
    else:
        with pytest.raises(MissingRange, match=f"records would lose their match.*topic=member.*{partition}: {end - 1}"):
            planned(archive, Known())


@pytest.mark.timeout(300)
def test_a_range_that_retention_overtakes_is_looked_for_in_the_archive(archive):
    archive.send([a_member(7)])
    half_a_day_gone(archive)
    archive.run()

    def context():  # what is read is fixed by now
        for partition, end in archive.offsets.ends(STREAM).items():
            cut(archive, partition, end)
        return archive.context()

    built = rebuild_day(context, archive.settings, PIPELINE, DAY, "overtaken", None)

    assert built.row_count == 79
    assert rows(archive.settings, "SELECT phase, source FROM rebuild_run JOIN generation ON id = generation_id"
                " WHERE status = 'built'") == [("built", "archive")]  # fmt: skip


@pytest.mark.timeout(300)
def test_a_cut_that_neither_the_log_nor_a_row_tells_is_found_by_the_system_of_record(archive):
    boards = range(1, 40)
    archive.send([a_member(7), *(a_board(number, memberId=7) for number in boards)])
    archive.send([a_board(number) for number in range(OTHERS, OTHERS + 20)], LONG_AGO)
    partition, _ = busiest(archive)
    end = 1 + max(offset for p, offset in places(archive) if p == partition)
    lost = sum(p == partition for p, _ in places(archive))
    cut(archive, partition, end)
    rebuild_day(archive.context, archive.settings, PIPELINE, DAY, "r", None)
    for number in boards:
        document = json.dumps({"id": number, "createdAt": rfc3339(NOON)})
        rows(archive.settings, "INSERT INTO site.board_document (id, document, modified_at) VALUES (%s, %s, %s)",
             (number, document, NOON))  # fmt: skip
    verify(archive.settings, DAY, "r")
    publish(archive.settings, DAY, "r")

    certificate = certify_alone(archive.settings, DAY)

    assert certificate.count("unaccounted") == lost > 0
    assert f"{lost} board keys that the system of record or the stream had are in no term" in certificate.reason
