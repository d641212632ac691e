"""Nights that rebuild dirty days alone end with each day as raw says, whatever moved, came late, was undone or redone.

A stateful test on a real PostgreSQL. Boards move between two days, members get older versions, the stream falls behind,
days are published, undone and redone. Raw and what a build makes of it are plain Python; the members' topic is a list.
"""

import dataclasses
import datetime as dt
import itertools
import json
import os
from contextlib import suppress
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from include.clock import rfc3339
from include.errors import NothingBuilt, StaleRun
from include.integrity import late_members
from include.integrity.covering import cover
from include.integrity.days import dirty_days
from include.integrity.late_members import find_late_members
from include.integrity.pruning import collect_orphans
from include.integrity.publication import UndoRefused, redo, undo
from tests.support.pipeline import migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, NOON, build, exclude, opened_store, row, serve, tombstone

DAYS = (DAY, DAY.before(1))
TIMES = st.integers(0, 5)
EVENTS = st.tuples(st.integers(1, 3), TIMES, st.integers(0, 1), st.sampled_from((False, False, False, True)))
MEMBERS = 2
VERSIONS = st.tuples(st.integers(0, MEMBERS - 1), TIMES)
NIGHTS = 4  # a night may make another day dirty; not for ever
MAX_EXAMPLES = int(os.environ.get("SERVING_EXAMPLES", "4"))
EMPTY = """
TRUNCATE board_detail_live, board_detail_covered, offset_ledger, day_publication, dirty_day, publication, generation,
         unchecked_day, late_member RESTART IDENTITY CASCADE
"""
SHOWN = "SELECT board_id, title, nickname FROM board_detail WHERE day = %s"
_numbers = itertools.count()


def at_minute(number):
    return NOON + dt.timedelta(minutes=number)


@dataclasses.dataclass(frozen=True)
class Event:
    """A version of a board in the raw topic. A copy has another offset and the same event id."""

    at: int
    offset: int
    board: int
    day: int
    title: str | None  # None: it was deleted
    event_id: str

    @property
    def version(self):
        return self.at, self.offset

    def row(self, author, kafka_offset=None):
        if self.title is None:
            return tombstone(self.board, self.offset, at_minute(self.at)) | {"kafka_offset": kafka_offset}
        number, nickname = author
        return row(self.board, self.offset, title=self.title, modified_at=at_minute(self.at), member_id=number,
                   nickname=nickname, day=DAYS[self.day].date, created_at=DAYS[self.day].start,
                   kafka_offset=kafka_offset, event_id=self.event_id)  # fmt: skip


class MemberTopic:
    """One partition; in the place of what reads Kafka."""

    def __init__(self):
        self.records = []  # member, minute

    def __call__(self, *_):
        return self

    def topic_id(self, _):
        return "members"

    def earliest(self, _):
        return {0: 0}

    def ends(self, _):
        return {0: len(self.records)}

    def begin(self, starts):
        self._start = starts[0]

    def iter_to(self, ends):
        yield [_message(*self.records[offset], offset) for offset in range(self._start, ends[0])]

    def close(self):
        pass


def _message(member, at, offset):
    value = json.dumps({"modifiedAt": rfc3339(at_minute(at))}).encode()
    return SimpleNamespace(key=lambda: b"%d" % member, value=lambda: value, partition=lambda: 0, offset=lambda: offset)


class Nights(RuleBasedStateMachine):
    database = None
    topic = None

    @initialize()
    def begin(self):
        rows(self.database, EMPTY, role="pipeline_owner")
        collect_orphans(self.database)
        self.raw, self.unserved = [], []
        self.topic.records = [(member, 0) for member in range(MEMBERS)]  # known from the start
        self.kafka_offsets = itertools.count()
        self.store = opened_store(self.database)

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()

    def _append(self, at, board, day, title, event_id=None):
        event = Event(at, len(self.raw), board, day, title, event_id or f"e{len(self.raw)}")
        self.raw.append(event)
        self.unserved.append(event)

    @rule(events=st.lists(EVENTS, min_size=1, max_size=3))
    def boards_are_posted_moved_and_deleted(self, events):
        for board, at, day, is_deleted in events:
            self._append(at, board, day, None if is_deleted else f"title {len(self.raw)}")

    @precondition(lambda self: self.raw)
    @rule(data=st.data())
    def event_is_replayed(self, data):
        event = data.draw(st.sampled_from(self.raw))
        self._append(event.at, event.board, event.day, event.title, event.event_id)

    @rule(version=VERSIONS, is_read=st.booleans())
    def member_changes(self, version, is_read):
        self.topic.records.append(version)
        if is_read:
            find_late_members(self.database)

    @precondition(lambda self: self.unserved)
    @rule(count=st.integers(1, 9))
    def stream_serves(self, count):
        due, self.unserved = self.unserved[:count], self.unserved[count:]
        serve(self.store, [event.row(self._author(event.board, 99), next(self.kafka_offsets)) for event in due])

    @rule(events=st.lists(EVENTS, max_size=3), days=st.sampled_from(((0,), (1,), (0, 1), (1, 0))),
          late=st.none() | VERSIONS, published=st.sampled_from((True, True, False)))  # fmt: skip
    def days_are_rebuilt(self, events, days, late, published):
        """Of what was posted, while the stream may be down; a member may come between a build and its publication."""
        self.boards_are_posted_moved_and_deleted(events)
        for number in days:
            self._rebuild(DAYS[number], late, published)

    def _rebuild(self, day, late=None, published=True):
        listed, left_out = self._built(day)
        run_id = f"r{next(_numbers)}"
        id_ = build(self.database, listed, cut=len(self.raw), run_id=run_id, day=day, members=len(self.topic.records))
        for kind, event in left_out:
            exclude(self.database, id_, kind, event.board, event.offset, at_minute(event.at))
        if late:
            self.member_changes(late, is_read=True)
        if published:
            publish(self.database, day, run_id, accept_vanishing=True)

    @rule(day=st.sampled_from(DAYS), to=st.none() | st.none() | st.integers(0, 5), late=st.none() | VERSIONS,
          actions=st.sampled_from(("ur", "u", "r", "p", "c", "cu")))  # fmt: skip
    def somebody_moves_a_day(self, day, to, late, actions):
        """Undo, redo, publish a build that was left, cover; a member may come after an undo."""
        with suppress(NothingBuilt, StaleRun, UndoRefused):
            for action in actions:
                match action:
                    case "u":
                        undo(self.database, day, "test", to=to)
                        if late:
                            self.member_changes(late, is_read=True)
                    case "r":
                        redo(self.database, day, "test")
                    case "p":
                        publish(self.database, day, accept_vanishing=True)
                    case "c":
                        cover(self.database, day)

    @rule()
    def nights_go_by(self):
        """The stream catches up; nights rebuild what was never published, then dirty days alone, until none is."""
        while self.unserved:
            self.stream_serves(9)
        find_late_members(self.database)
        wanted = rows(self.database, "SELECT day FROM day_publication WHERE generation_id IS NULL"
                      " OR held_reason IS NOT NULL")  # fmt: skip
        for day in DAYS:
            if (day.date,) in wanted:
                self._rebuild(day)
        for _ in range(NIGHTS):
            dirty = {one.day for one in dirty_days(self.database)}
            if not dirty:
                break
            for day in DAYS:
                if day.date in dirty:
                    self._rebuild(day)
        else:
            raise AssertionError(f"still dirty: {dirty_days(self.database)}")
        for day in DAYS:
            found = rows(
                self.database, "SELECT board_id, title, nickname FROM board_detail WHERE day = %s", (day.date,)
            )
            listed, _ = self._built(day)
            assert sorted(found) == sorted((one["board_id"], one["title"], one["nickname"]) for one in listed)

    def _built(self, day):
        """What a build makes of raw: the newest version of each board of the day, its rows, and what it leaves out."""
        first = {}
        for event in self.raw:  # one record an event: its first copy
            first.setdefault(event.event_id, event)
        newest, of_day = {}, set()
        for event in first.values():
            newest[event.board] = max(event, newest.get(event.board, event), key=lambda one: one.version)
            if event.title is not None and DAYS[event.day] == day:
                of_day.add(event.board)
        known = [newest[board] for board in sorted(of_day)]
        listed = [event.row(self._author(event.board, event.at)) for event in known
                  if event.title is not None and DAYS[event.day] == day]  # fmt: skip
        left_out = [("deleted" if event.title is None else "moved", event) for event in known
                    if event.title is None or DAYS[event.day] != day]  # fmt: skip
        return listed, left_out

    def _author(self, board, at):
        """The member, and the nickname of the newest version up to that time."""
        member = board % MEMBERS
        found = max((when, offset) for offset, (who, when) in enumerate(self.topic.records)
                    if who == member and when <= at)  # fmt: skip
        return member, f"m{found[1]}"


@pytest.fixture(scope="module")
def database(postgres, tmp_path_factory):
    return migrated(None, postgres, "dirty_property", tmp_path_factory.mktemp("dirty-property"))


def test_nights_that_rebuild_dirty_days_end_with_what_raw_says(database, monkeypatch):
    topic_ = MemberTopic()
    monkeypatch.setattr(late_members, "OffsetReader", topic_)
    monkeypatch.setattr(late_members, "TopicTail", topic_)

    class Machine(Nights):
        pass

    Machine.database, Machine.topic = database, topic_
    run_state_machine_as_test(Machine, settings=settings(
        max_examples=MAX_EXAMPLES, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck),
        derandomize="SERVING_EXAMPLES" not in os.environ, phases=(Phase.generate, Phase.shrink)))  # fmt: skip
