"""A day built from the archive equals the day built from the topics: rows, hash, coordinates, excluded boards."""

import datetime as dt
import itertools
import random

import pytest

from include.contracts.clock import SystemClock
from include.contracts.errors import MissingRange
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.generation_store import GenerationStore
from include.kafka.reader import TopicTail
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.batch.rebuild import build
from spark_jobs.batch.sources import Known, archive_sources, fix_ranges, topic_sources
from spark_jobs.connectors.splits import FileSplit, TopicSplit, read_split
from tests.support.archive import DAY, NOON, OUTPUT, STREAM, Archive, a_board, a_member, at, event, made_from
from tests.support.pipeline import environment, rows, run_module

NEVER = 10_000  # days: the topic holds the day for ever
SHOWN = """SELECT board_id, nickname, title, event_id, stream_partition, stream_offset, table_partition, table_offset,
                  kafka_partition, kafka_offset
             FROM detail_final WHERE generation_id = %s ORDER BY board_id"""
EXCLUDED = """SELECT kind, identity, board_id, stream_partition, stream_offset, reason
                FROM generation_excluded WHERE generation_id = %s ORDER BY kind, identity"""
NOTHING = Known()
_runs = itertools.count(1)


@pytest.fixture
def archive(kafka, postgres, spark, tmp_path):
    return Archive(kafka, postgres, spark, "archive_source", tmp_path, rows_per_task=40)


def from_topic(archive, known=NOTHING):
    return topic_sources(fix_ranges(archive.offsets, DAY, PIPELINE, known), PIPELINE)


def from_archive(archive, known=NOTHING, forced=True, retention_days=14):
    now = DAY.end + dt.timedelta(days=90)
    return archive_sources(archive.offsets, DAY, PIPELINE, retention_days, now, lambda: known, archive.source, forced)


def built(archive, sources):
    """The generation built of these sources: its rows, what is excluded, its hash."""
    settings = archive.settings
    with GenerationStore(settings.database).hold(DAY):
        result = build(archive.context(), settings, PIPELINE, DAY, f"run-{next(_runs)}", None, sources)
    number = (result.generation_id,)
    return rows(settings, SHOWN, number), rows(settings, EXCLUDED, number), result.content_hash


def first_nights(archive):
    """Two nights of a small life: members that change, boards of three days, deletions, moves, copies, nonsense."""
    archive.send([a_member(number, nickname=f"m{number}") for number in range(1, 30)])
    boards = [a_board(number, hours=number / 10, memberId=number % 33, title=f"b{number}") for number in range(1, 60)]
    archive.send([*boards, *(a_board(number, hours=-30) for number in range(60, 70))])
    emit(archive)
    archive.run()
    archive.send([a_member(number, hours=3, nickname=f"renamed{number}") for number in range(1, 20)])
    archive.send([
        boards[4], boards[4],  # sent again
        a_board(5, 0.5, modified=9, title="changed"),
        (STREAM, 6, None, event("gone")),
        (STREAM, 61, None, event("gone of the day before")),
        a_board(7, hours=26, modified=8, title="moved to the next day"),
        a_board(65, hours=1, modified=9, title="moved to this day"),
        a_board(8, hours=30, modified=-50, title="an old version of another day"),
        (STREAM, 70, b"{nonsense", event("broken")),
        (STREAM, 71, dict(boards[0][2], id=71, memberId="no number"), event("broken too")),
        (STREAM, 9, dict(boards[8][2], memberId="no number"), event("broken, and there is a right one")),
        (STREAM, 72, dict(boards[0][2], id=72, memberId="x", createdAt=at(40)), event("broken, of the next day")),
        (STREAM, "no id", None, event("nobody's deletion")),
    ], NOON + dt.timedelta(hours=5))  # fmt: skip
    emit(archive)
    archive.run()


def emit(archive, copies=1):
    """Write records like those of the speed layer for the boards, with their coordinates."""
    places = [(m.partition(), m.offset(), int(m.key())) for m in messages(archive) if m.key().isdigit() and m.value()]
    archive.send([
        (OUTPUT, board_id, {"boardId": board_id, "createdAt": at(0)}, made_from(partition, offset))
        for partition, offset, board_id in places
        for _ in range(1 + (board_id % 7 == 0))
    ])  # fmt: skip


def messages(archive):
    tail, ends = TopicTail(KafkaConnection(archive.log.bootstrap_servers), STREAM), archive.offsets.ends(STREAM)
    try:
        tail.begin(dict.fromkeys(ends, 0))
        return tail.read_to(ends)
    finally:
        tail.close()


@pytest.mark.timeout(300)
def test_a_day_from_the_archive_is_the_day_from_the_topics(archive):
    first_nights(archive)
    archive.send([a_board(75, hours=2, modified=50, title="late"), (STREAM, 10, None, event("late deletion")),
                  a_member(25, hours=1, nickname="late")], NOON + dt.timedelta(days=2))  # fmt: skip
    expected = built(archive, from_topic(archive))
    sources = from_archive(archive)
    assert sources.kind == "archive"
    assert any(isinstance(split, FileSplit) for split in sources.stream)
    assert any(isinstance(split, TopicSplit) for split in sources.stream)  # what came since the last run
    assert sources.table_files
    assert built(archive, sources) == expected
    shown, excluded, _ = expected
    assert {row[0] for row in shown} >= {1, 5, 8, 65, 75}
    assert any(row[9] is not None for row in shown)
    kinds = {(kind, identity.split(":")[0]) for kind, identity, *_ in excluded}
    assert kinds >= {("deleted", "6"), ("deleted", "10"), ("moved", "7"), ("rejected", "71"), ("rejected", "@")}
    assert any(kind == "pending" for kind, _ in kinds)

    archive.run()  # now all is archived, and Kafka forgets the stream and its places
    for topic in (STREAM, OUTPUT):
        for partition, end in archive.offsets.ends(topic).items():
            if end:
                archive.log.delete_before(topic, partition, end)
    sources = from_archive(archive, forced=False)  # nobody asks for the archive: the topic has lost the day
    assert not any(isinstance(split, TopicSplit) for split in sources.stream)
    assert built(archive, sources) == expected


def a_night(chance):
    """Records of a night in any order: boards of several days, changed, moved, deleted, repeated, and invalid ones."""
    sent = []
    for _ in range(chance.randint(20, 60)):
        board_id, hours = chance.randint(1, 25), chance.uniform(-40, 40)
        modified = chance.choice([None, chance.uniform(-60, 60)])
        kind = chance.choice(["board"] * 8 + ["member"] * 4 + ["again"] * 2 + ["deletion", "broken", "nonsense"])
        name = event(f"{kind}-{chance.random()}")
        if kind == "member":
            sent.append(a_member(chance.randint(1, 12), hours, nickname=f"at {hours:.2f}"))
        elif kind == "again" and sent:
            sent.append(chance.choice(sent))
        elif kind == "deletion":
            sent.append((STREAM, board_id, None, name))
        elif kind == "broken":
            values = dict(a_board(board_id, hours)[2], memberId="no number")
            sent.append((STREAM, board_id, values, name))
        elif kind == "nonsense":
            sent.append((STREAM, chance.choice([board_id, "no id"]), b"{nonsense", name))
        else:
            topic, key, value, _ = a_board(board_id, hours, modified, memberId=chance.randint(1, 14))
            sent.append((topic, key, value, name))
    return sent


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3, 4))])
def test_any_day_from_the_archive_is_the_day_from_the_topics(archive, seed):
    chance = random.Random(seed)
    for night in range(3):
        archive.send(a_night(chance), NOON + dt.timedelta(hours=6 * night))
        emit(archive, copies=chance.randint(0, 2))
        if night < 2:  # the last one is in the topics only
            archive.run()
    expected = built(archive, from_topic(archive))
    assert expected[0]
    assert expected[1]
    assert built(archive, from_archive(archive)) == expected


@pytest.mark.timeout(300)
def test_a_rebuild_from_a_shell_takes_the_archive(archive, kafka, postgres, tmp_path):
    first_nights(archive)
    archive.run()
    expected = built(archive, from_topic(archive))
    variables = environment(kafka, postgres, "archive_source", tmp_path) | {"ARCHIVE_DIR": archive.folder.location}
    run_module(["spark_jobs/rebuild_day.py", "--day", str(DAY), "--run-id", "shell", "--source", "archive"], variables)
    ((number, content_hash, source),) = rows(
        archive.settings,
        "SELECT id, content_hash, source FROM generation JOIN rebuild_run ON generation_id = id "
        "WHERE generation.run_id = 'shell'",
    )
    assert (source, content_hash) == ("archive", expected[2])
    assert rows(archive.settings, SHOWN, (number,)) == expected[0]


def test_a_cut_before_the_end_of_the_archive_counts(archive):
    first_nights(archive)
    cut = {partition: max(0, end - 3) for partition, end in archive.offsets.ends(STREAM).items()}
    found = archive.source.stream(DAY, Known(), (cut, cut))
    assert set(places_in(archive, found.files)) <= {
        (p, o) for p, end in cut.items() for o in range(end)}  # fmt: skip
    assert found.ends == cut


def places_in(archive, files):
    for file in files:
        for table in read_split(file, KafkaConnection(archive.log.bootstrap_servers), ("partition", "offset")):
            yield from zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)


def test_the_archive_gives_each_record_once_and_no_stranger(archive):
    first_nights(archive)
    ends = archive.offsets.ends(STREAM)
    found = archive.source.stream(DAY, Known(), (ends, ends))
    places = list(places_in(archive, found.files))
    assert len(places) == len(set(places)) == found.record_count
    strangers = {(m.partition(), m.offset()) for m in messages(archive) if m.key() in (b"62", b"63")}
    assert strangers
    assert not strangers & set(places)


def test_the_start_is_the_one_that_the_topic_gives(archive):
    for night in range(3):
        archive.send([a_board(number + 100 * night) for number in range(9)], NOON + dt.timedelta(days=night - 3))
        archive.run()
    files = archive.store.stream_files(STREAM, archive.topic_id(STREAM), DAY.date)
    for days in (-9, -3, -2.2, -2, -1, 0, 3):
        instant = NOON + dt.timedelta(days=days)
        assert archive.source._starts(files, instant) == archive.offsets.at(STREAM, instant), days


def test_a_known_record_before_the_start_is_taken(archive):
    archive.send([a_board(1)], NOON - dt.timedelta(days=5))  # its client's clock was ahead by days
    archive.send([a_member(7), a_board(2)])
    archive.run()
    ends = archive.offsets.ends(STREAM)
    (ahead,) = [(m.partition(), m.offset()) for m in messages(archive) if m.key() == b"1"]
    known = Known({ahead[0]: ahead[1]})
    assert ahead not in set(places_in(archive, archive.source.stream(DAY, Known(), (ends, ends)).files))
    assert ahead in set(places_in(archive, archive.source.stream(DAY, known, (ends, ends)).files))
    assert built(archive, from_archive(archive, known)) == built(archive, from_topic(archive, known))


def test_within_the_window_only_members_come_from_the_archive(archive):
    first_nights(archive)
    sources = from_archive(archive, forced=False, retention_days=NEVER)
    assert sources.kind == "topic"
    assert sources.table_files
    assert not any(isinstance(split, FileSplit) for split in sources.stream)
    assert built(archive, sources) == built(archive, from_topic(archive))


def test_an_archive_that_ended_before_the_day_adds_nothing(archive):
    archive.send([a_member(7), a_board(1)], NOON - dt.timedelta(days=4))  # a clock ahead by more than the margin
    archive.run()
    archive.send([a_board(9)], NOON - dt.timedelta(days=3))
    archive.send([a_member(8), a_board(2), a_board(3, memberId=8)])
    assert built(archive, from_archive(archive)) == built(archive, from_topic(archive))


def test_without_an_archive_a_lost_day_is_refused(archive):
    archive.send([a_board(number) for number in range(1, 30)])
    archive.log.delete_before(STREAM, *max(archive.offsets.ends(STREAM).items(), key=lambda item: item[1]))
    with pytest.raises(MissingRange):
        from_archive(archive, forced=False)
    with pytest.raises(MissingRange, match="pipeline archive day"):
        from_archive(archive)


def test_a_day_in_a_gap_is_refused_and_a_later_one_is_not(archive):
    archive.send([a_board(number) for number in range(1, 30)])
    archive.run()
    archive.send([a_board(number) for number in range(30, 60)])
    place = archive.store.ends(STREAM, archive.topic_id(STREAM))
    partition, end = max(archive.offsets.ends(STREAM).items(), key=lambda item: item[1] - place[item[0]])
    archive.log.delete_before(STREAM, partition, end - 1)
    archive.run(accept_gap="a test")
    rows(archive.settings, "UPDATE archive_batch SET gap_since = %s WHERE gap_until IS NOT NULL", (DAY.start,))
    with pytest.raises(MissingRange, match="a test"):
        from_archive(archive)
    rows(archive.settings, "UPDATE archive_batch SET gap_until = %s WHERE gap_until IS NOT NULL",
         (DAY.start - dt.timedelta(days=2),))  # fmt: skip
    assert from_archive(archive).kind == "archive"


@pytest.mark.timeout(300)
def test_a_gap_after_the_day_is_read_by_no_build_and_claimed_by_none(archive):
    """Boards of a day that is archived are deleted; the deletions are gone before the archive takes them."""
    archive.send([a_member(7), *(a_board(number, memberId=7) for number in range(1, 21))])
    archive.run()
    archived = archive.store.ends(STREAM, archive.topic_id(STREAM))
    archive.send([(STREAM, number, None, event(f"gone {number}")) for number in (1, 2, 3)], SystemClock().now())
    lost = {p: [(archived[p], end)] for p, end in archive.offsets.ends(STREAM).items() if end > archived[p]}
    for partition, ((_, end),) in lost.items():
        archive.log.delete_before(STREAM, partition, end)
    archive.run(accept_gap="a test")

    sources = from_archive(archive)

    assert sources.unread == {STREAM: lost}
    assert sources.cut[STREAM] == archived
    shown, *_ = built(archive, sources)
    assert len(shown) == 20
    cut = rows(archive.settings, "SELECT cut -> 'board', cut -> 'unread' FROM generation ORDER BY id DESC LIMIT 1")
    assert cut == [({str(p): end for p, end in archived.items()},
                    {"board": {str(p): [list(one) for one in ranges] for p, ranges in lost.items()}})]  # fmt: skip


def test_records_between_the_archive_and_the_topic_must_not_be_missing(archive):
    archive.send([a_member(7), *(a_board(number) for number in range(1, 30))])
    archive.run()
    archive.send([a_board(number) for number in range(30, 60)])
    place = archive.store.ends(STREAM, archive.topic_id(STREAM))
    partition, end = max(archive.offsets.ends(STREAM).items(), key=lambda item: item[1] - place[item[0]])
    archive.log.delete_before(STREAM, partition, end)
    with pytest.raises(MissingRange, match="between the end of the archive"):
        from_archive(archive)
