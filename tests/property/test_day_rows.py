"""A rebuilt day equals the rules applied in plain Python, for any events, duplicates, deletions and order."""

import dataclasses
import datetime as dt
import itertools
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from include.clock import rfc3339
from include.contracts.day import Day
from include.contracts.definition import BOARD_DETAIL_PIPELINE as PIPELINE
from include.contracts.topics import BOARD, MEMBER
from spark_jobs.transforms.day_rows import day_rows
from spark_jobs.transforms.decode import decode, valid
from tests.fakes.events import board, member
from tests.support.oracle import Version, day_of
from tests.support.spark import RawRecord, encoded, raw

DAY = Day.parse("2026-11-20", "Asia/Seoul")
HOURS = st.integers(-2, 26)  # some before the day, some after it
KEYS = st.integers(1, 4)


def at(hour):
    return DAY.start + dt.timedelta(hours=hour)


@st.composite
def histories(draw):
    """Events in the log's order. A board keeps the creation it began with, as the contract says; few break that."""
    events, created = [], {}
    for offset in range(draw(st.integers(1, 14))):
        topic = draw(st.sampled_from(["member", "board", "board"]))
        key, hour = draw(KEYS), draw(HOURS)
        event = Version(topic, key, offset, at(hour), f"e{offset}", name=f"{topic}{key}v{offset}",
                        deleted=draw(st.integers(0, 9)) == 0)  # fmt: skip
        if topic == "board":
            first = created.setdefault(key, at(draw(HOURS)))
            moved = at(draw(HOURS)) if draw(st.integers(0, 19)) == 0 else first
            event = dataclasses.replace(event, created=moved, member=draw(KEYS))
        events.append(event)
        if draw(st.integers(0, 4)) == 0:  # the gateway sent it again
            events.append(dataclasses.replace(event, offset=offset + 1_000))
    return events


def record(event):
    times = {"modifiedAt": rfc3339(event.at), "createdAt": rfc3339(event.created or event.at)}
    if event.deleted:
        value = None
    elif event.topic == "member":
        value = member(event.key, nickname=event.name, **times)
    else:
        value = board(event.key, event.member, title=event.name, **times)
    return RawRecord(event.topic, 0, event.offset, str(event.key), encoded(value), event.event_id, rfc3339(event.at))


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


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories=st.lists(histories(), min_size=40, max_size=60), seed=st.integers(0, 9))
def test_a_rebuilt_day_is_what_the_rules_say(spark, histories, seed):
    histories = apart(histories)
    shuffled = random.Random(seed).sample(events := list(itertools.chain(*histories)), len(events))
    boards = decode(raw(spark, [record(e) for e in shuffled if e.topic == "board"]), BOARD)
    members = valid(decode(raw(spark, [record(e) for e in shuffled if e.topic == "member"]), MEMBER))
    parts = day_rows(boards, members, PIPELINE, DAY)
    rows = {row.board_id: f"{row.nickname}/{row.title}" for row in parts.rows.collect()}
    excluded = {(row.kind, row.board_id) for row in parts.excluded.collect()}

    for history in histories:
        keys = {event.key for event in history}
        expected = day_of(history, DAY)
        assert {key: text for key, text in rows.items() if key in keys} == expected.rows
        assert {(kind, key) for kind, key in excluded if key in keys} == expected.excluded
    assert parts.identities.count() == len(rows) + len(excluded)  # the balance of the day


def test_rejects_are_counted_unless_a_valid_record_of_the_board_exists(spark):
    good, other = board(1), board(2)
    records = [
        RawRecord("board", 0, 0, "1", encoded(good), "a"),
        RawRecord("board", 0, 1, "1", encoded({**good, "memberId": "x"}), "b"),
        RawRecord("board", 0, 2, "2", encoded({**other, "memberId": "x"}), "c"),
        RawRecord("board", 0, 3, "3", b"{nonsense", "d", timestamp=at(5)),
        RawRecord("board", 0, 4, "4", b"{nonsense", "e", timestamp=at(30)),
    ]
    members = valid(decode(raw(spark, [RawRecord("member", 0, 0, "7", encoded(member(7)), "m")]), MEMBER))
    parts = day_rows(decode(raw(spark, records), BOARD), members, PIPELINE, DAY)
    assert [row.board_id for row in parts.rows.collect()] == [1]
    assert sorted(row.identity for row in parts.excluded.collect()) == ["2", "@:board:0:3"]
    assert parts.identities.count() == 3
