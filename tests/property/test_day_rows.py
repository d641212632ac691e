"""A rebuilt day equals the rules applied in plain Python, for any events, duplicates, deletions and order."""

import dataclasses
import datetime as dt
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.contracts import headers as h
from include.contracts.clock import rfc3339
from include.contracts.day import Day
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from spark_jobs.batch.rebuild import PreloadedVersions, build
from spark_jobs.decoding.arrow import RawColumns, table_schema
from tests.fakes.events import board, member
from tests.support.examples import examples
from tests.support.oracle import Version, day_of
from tests.support.pipeline import migrated, rows
from tests.support.raw_files import Record, file_sources, raw_table
from tests.support.spark import encoded

DAY = Day.parse("2026-11-20", "Asia/Seoul")
HOURS = st.integers(-2, 26)  # some before the day, some after it
KEYS = st.integers(1, 4)
ALL = 1_000_000


def at(hour):
    return DAY.start + dt.timedelta(hours=hour)


@st.composite
def histories(draw):
    """Events in the log's order. A board keeps the creation it began with, as the contract says; few break that."""
    events, created = [], {}
    for offset in range(draw(st.integers(1, 14))):
        topic = draw(st.sampled_from(["member", "board", "board"]))
        key, hour = draw(KEYS), draw(HOURS)
        of_event = draw(st.integers(0, offset)) if draw(st.integers(0, 4)) == 0 else offset  # no gateway gave it
        event = Version(topic, key, offset, at(hour), f"e{of_event}", name=f"{topic}{key}v{offset}",
                        deleted=draw(st.integers(0, 9)) == 0)  # fmt: skip
        if topic == "board":
            first = created.setdefault(key, at(draw(HOURS)))
            moved = at(draw(HOURS)) if draw(st.integers(0, 19)) == 0 else first
            event = dataclasses.replace(event, created=moved, member=draw(KEYS))
        events.append(event)
        if draw(st.integers(0, 4)) == 0:  # the gateway sent it again
            events.append(dataclasses.replace(event, offset=offset + 1_000))
    return events


@pytest.fixture(scope="module")
def pipeline(postgres, tmp_path_factory):
    return migrated(None, postgres, "day_rows", tmp_path_factory.mktemp("day-rows"))


def record(event):
    times = {"modifiedAt": rfc3339(event.at), "createdAt": rfc3339(event.created or event.at)}
    if event.deleted:
        value = None
    elif event.topic == "member":
        value = member(event.key, nickname=event.name, **times)
    else:
        value = board(event.key, event.member, title=event.name, **times)
    headers = [(h.EVENT_ID, event.event_id), (h.ACCEPTED_AT, rfc3339(event.at))]
    return Record(event.topic, event.offset, str(event.key), encoded(value), event.at, headers)


def apart(histories):
    """The histories side by side in one log, each with keys, offsets and event ids of its own: one Spark run."""
    return [
        [
            dataclasses.replace(
                e, key=e.key + 100 * n, member=e.member and e.member + 100 * n, offset=e.offset + 10_000 * n,
                event_id=f"{n}-{e.event_id}")
            for e in history
        ]
        for n, history in enumerate(histories)
    ]  # fmt: skip


def rebuilt(spark, pipeline, folder, records, files=1, buckets=None, preloaded=0):
    """The rows of a generation, what is no row, the terms of its balance and its hash.

    So many of the members' records are read by the driver, the others by tasks.
    """
    of_driver = [record for record in records if record.topic == "member"][:preloaded]
    found = file_sources(folder, [record for record in records if record not in of_driver], files)
    if preloaded == ALL:
        found = dataclasses.replace(found, members=())
    columns = RawColumns(PIPELINE.table, table_schema(PIPELINE).names)
    versions, rejects = columns.read(raw_table(of_driver))
    assert rejects == []
    built = build(spark.sparkContext, pipeline, PIPELINE, DAY, "test", None, found, buckets,
                  lambda: PreloadedVersions([versions.select(table_schema(PIPELINE).names)]))  # fmt: skip
    of = (built.generation_id,)
    texts = rows(pipeline, "SELECT board_id, nickname, title FROM detail_final WHERE generation_id = %s", of)
    excluded = rows(pipeline, "SELECT kind, board_id, identity FROM generation_excluded WHERE generation_id = %s", of)
    terms = rows(pipeline, "SELECT raw_distinct, row_count, pending_count, rejected_count FROM generation"
                           " WHERE id = %s", of)  # fmt: skip
    return {row[0]: f"{row[1]}/{row[2]}" for row in texts}, excluded, terms[0], built.content_hash


@examples(1, 10)
@given(
    histories=st.lists(histories(), min_size=40, max_size=60), seed=st.integers(0, 9),
    files=st.integers(1, 4), buckets=st.integers(1, 7), preloaded=st.sampled_from([0, 20, ALL]),
    forgotten=st.sets(KEYS, min_size=1),
)  # fmt: skip
def test_a_rebuilt_day_is_what_the_rules_say(
    spark, pipeline, tmp_path_factory, histories, seed, files, buckets, preloaded, forgotten
):
    """`forgotten`: which members of each history were removed on request; their boards count as deleted."""
    folder = tmp_path_factory.mktemp("raw")
    histories = apart(histories)
    events = list(itertools.chain(*histories))
    gone = {key + 100 * n for key in forgotten for n in range(len(histories))}
    rows(pipeline, "DELETE FROM forgotten_key")
    rows(pipeline, "INSERT INTO forgotten_key SELECT unnest(%s::bigint[]), 'asked for it', 'test'", (list(gone),))
    shuffled = random.Random(seed).sample(events, len(events))
    texts, excluded, terms, content = rebuilt(spark, pipeline, folder, [record(e) for e in shuffled], files, buckets,
                                                preloaded)  # fmt: skip

    kinds = {(kind, board_id) for kind, board_id, _ in excluded}
    for history in histories:
        keys = {event.key for event in history}
        known = [dataclasses.replace(e, deleted=e.deleted or e.member in gone) for e in history]
        expected = day_of(*([e for e in known if e.topic == topic] for topic in ("board", "member")), DAY)
        assert {key: text for key, text in texts.items() if key in keys} == expected.rows
        assert {(kind, key) for kind, key in kinds if key in keys} == expected.excluded
    pending = sum(kind == "pending" for kind, _ in kinds)
    assert terms == (len(texts) + pending, len(texts), pending, 0)  # the balance of the day

    # in the log's order, read by one task, all in one bucket: byte for byte the same
    again = rebuilt(spark, pipeline, folder, [record(e) for e in events], 1, 1)
    assert (again[0], sorted(again[1]), *again[2:]) == (texts, sorted(excluded), terms, content)


@pytest.fixture(autouse=True)
def nobody_is_forgotten(pipeline):
    yield
    rows(pipeline, "DELETE FROM forgotten_key")


def test_rejects_are_counted_unless_a_valid_record_of_the_board_exists(spark, pipeline, tmp_path):
    good, other = board(1), board(2)
    records = [
        Record("board", 0, "1", encoded(good), at(20)),
        Record("board", 1, "1", encoded({**good, "memberId": "x"}), at(20)),
        Record("board", 2, "2", encoded({**other, "memberId": "x"}), at(20)),
        Record("board", 3, "3", b"{nonsense", at(20)),
        Record("board", 4, "4", b"{nonsense", at(30)),
        Record("member", 0, "7", encoded(member(7, modifiedAt=rfc3339(at(-6)))), at(-5)),
    ]
    texts, excluded, terms, _ = rebuilt(spark, pipeline, tmp_path, records)
    assert list(texts) == [1]
    assert sorted((kind, identity) for kind, _, identity in excluded) == [
        ("rejected", "2"),
        ("rejected", "@:board:0:3"),
    ]
    assert terms == (3, 1, 0, 2)
    rejected = rows(pipeline, 'SELECT "offset" FROM reject WHERE topic = %s ORDER BY 1', ("board",))
    assert [offset for (offset,) in rejected] == [1, 2, 3, 4]
