"""The view is what was served and what is published say, whatever is served, published, undone, covered and forgotten.

A stateful test on a real PostgreSQL. The expectation is plain Python: the newest version of each board that was ever
served, and of each generation its rows, its deletions and its cut. An offset is one of a topic: when that is made
again, its records are newer than those of the former one in the same version, and no cut covers records of another.
Some records may be lost to an accepted gap of the archive: builds lack them, and what the stream served of them stays.
"""

import dataclasses
import datetime as dt
import itertools
import os
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from include.adapters.offset_ledger import OffsetLedger, Output
from include.errors import NothingBuilt, StaleRun
from include.integrity.comparison import verify
from include.integrity.covering import cover
from include.integrity.pruning import collect_orphans
from include.integrity.publication import UndoRefused, publish, redo, undo
from include.integrity.replaced_topic import take_out_of_cuts
from include.integrity.vanishing import RowsWouldVanish
from include.integrity.verified import NotVerified
from tests.support.pipeline import migrated, rows
from tests.support.serving import DAY, NOON, TOPIC_ID, build, exclude, opened_store, row, serve, tombstone
from tests.support.topic_log import taken_lease

DAYS = (DAY, DAY.before(1))
BOARDS = st.integers(1, 4)  # an even one is of the first day, an odd one of the second
TIMES = st.integers(0, 5)
EVENTS = st.tuples(BOARDS, TIMES, st.booleans())  # the last: is it a deletion?
CORRECTED = """
SELECT board_id, shown ->> 'title', rebuilt ->> 'title'
  FROM board_detail_correction c JOIN day_publication p USING (generation_id)
 WHERE p.day = %s AND class <> 'duplicate'
"""
# Few and the same in `make test`; SERVING_EXAMPLES=500 for a search.
MAX_EXAMPLES = int(os.environ.get("SERVING_EXAMPLES", "4"))
AGE = "interval '30 days'"
EMPTY = """
TRUNCATE board_detail_live, board_detail_covered, offset_ledger, day_publication, dirty_day, publication, generation
    RESTART IDENTITY CASCADE
"""
_numbers = itertools.count()


def day_of(board):
    return DAYS[board % 2]


@dataclasses.dataclass(frozen=True, order=True)
class Event:
    """A version of a board in the raw topic. A copy has another offset and the same event id."""

    at: int
    topic: int  # how often the topic had been made again
    offset: int
    board: int
    title: str | None  # None: it was deleted
    event_id: str

    @property
    def version(self):
        return self.at, self.topic, self.offset

    def served(self, kafka_offset):
        at = NOON + dt.timedelta(minutes=self.at)
        if self.title is None:
            return tombstone(self.board, self.offset, at) | {"kafka_offset": kafka_offset}
        return row(self.board, self.offset, title=self.title, modified_at=at, day=day_of(self.board).date,
                   kafka_offset=kafka_offset, event_id=self.event_id, created_at=day_of(self.board).start)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Generation:
    """What a build found: the newest version of each board of its day."""

    newest: dict[int, Event]


def built_of(day, raw):
    first = {}
    for event in raw:  # one record an event: its first copy
        first.setdefault(event.event_id, event)
    newest = {}
    for event in first.values():
        if day_of(event.board) == day:
            newest[event.board] = max(event, newest.get(event.board, event), key=lambda e: e.version)
    seen = {event.board for event in first.values() if event.title is not None}
    return Generation({board: event for board, event in newest.items() if board in seen})


class Serving(RuleBasedStateMachine):
    database = None

    @initialize()
    def begin(self):
        rows(self.database, EMPTY, role="pipeline_owner")
        collect_orphans(self.database)
        self.raw, self.unserved, self.newest, self.generations = [], [], {}, {}
        self.topic = self.details = 0
        self.weeks_went_by = False
        self.lost = None  # first offset and end
        self.store = opened_store(self.database)

    def teardown(self):
        if hasattr(self, "store"):
            self.store.close()

    def _append(self, at, board, title, event_id=None):
        event = Event(at, self.topic, len(self.raw), board, title, event_id or f"e{self.topic}-{len(self.raw)}")
        self.raw.append(event)
        self.unserved.append(event)

    @rule(event=EVENTS)
    def board_is_posted_or_deleted(self, event):
        self.post(*event)

    def post(self, board, at, is_deleted):
        self._append(at, board, None if is_deleted else f"title {len(self.raw)}")

    @precondition(lambda self: self.raw)
    @rule(data=st.data())
    def event_is_replayed(self, data):
        event = data.draw(st.sampled_from(self.raw))
        self._append(event.at, event.board, event.title, event.event_id)

    @precondition(lambda self: self.unserved)
    @rule(count=st.integers(1, 9))
    def stream_serves(self, count):
        self.serve_due(count)

    def serve_due(self, count):
        due, self.unserved = self.unserved[:count], self.unserved[count:]
        if due:
            self._serve(due)

    # rows that were forgotten are kept by no one, if the topic lacks them too
    @precondition(lambda self: self.topic == 0 and not self.weeks_went_by and self.lost is None)
    @rule()
    def topic_is_made_again(self):
        """And the stream is repaired; what it had not served yet comes afterwards."""
        self.store.close()
        lease = taken_lease(self.database)
        self.topic, self.raw = self.topic + 1, []
        take_out_of_cuts(self.database, "board", self.topic_id)
        former = Output("board-detail", TOPIC_ID, {0: self.details + len(self.unserved)})
        OffsetLedger(self.database.database).repair("join", "board", self.topic_id, [], [], "test", lease,
                                           made_from_replaced=former)  # fmt: skip
        lease.release()
        self.store = opened_store(self.database)

    @property
    def topic_id(self):
        return f"board-{self.topic}"

    @precondition(lambda self: self.topic == 0 and not self.weeks_went_by and self.lost is None
                  and len(self.raw) > len(self.unserved))  # fmt: skip
    @rule(data=st.data())
    def records_are_lost_to_an_accepted_gap(self, data):
        """Some that were served: the topic dropped them before they were archived."""
        served = len(self.raw) - len(self.unserved)
        first = data.draw(st.integers(0, served - 1))
        self.lost = first, data.draw(st.integers(first + 1, served))

    def _read(self):
        """What a build reads, and its cut."""
        first, end = self.lost or (len(self.raw), len(self.raw))
        return [event for event in self.raw if not first <= event.offset < end], first

    @precondition(lambda self: len(self.raw) > len(self.unserved) and all(
        event.topic == self.topic for event in self.unserved))  # fmt: skip
    @rule(data=st.data())
    def stream_serves_again(self, data):
        self._serve([data.draw(st.sampled_from(self.raw[: len(self.raw) - len(self.unserved)]))])

    def _serve(self, events):
        serve(self.store, [event.served(self.details + number) for number, event in enumerate(events)])
        self.details += len(events)
        for event in events:
            self.newest[event.board] = max(event, self.newest.get(event.board, event), key=lambda e: e.version)

    @rule(day=st.sampled_from(DAYS), published=st.booleans(), between=st.lists(EVENTS, max_size=4),
          served=st.sampled_from((99, 1, 0)))  # fmt: skip
    def night_rebuilds(self, day, published, between, served):
        """Verified, and published at once, later or never; before that more is posted, deleted and served."""
        raw, cut = self._read()
        generation = built_of(day, raw)
        run_id = f"r{next(_numbers)}"
        listed = [event.served(None) for event in generation.newest.values() if event.title is not None]
        id_ = build(self.database, listed, cut=cut, run_id=run_id, day=day, unread=self.lost,
                    topic_ids={"board": self.topic_id, "member": "member"})  # fmt: skip
        for board, event in generation.newest.items():
            if event.title is None:
                exclude(self.database, id_, "deleted", board, event.offset, NOON + dt.timedelta(minutes=event.at))
        self.generations[id_] = generation
        verify(self.database, day, run_id)
        for board, at, is_deleted in between:
            self.post(board, at, is_deleted)
        self.serve_due(served)
        if published:
            self._publish(day, run_id)

    @rule(day=st.sampled_from(DAYS))
    def older_build_is_published(self, day):
        with suppress(NothingBuilt, StaleRun):
            try:
                self._publish(day, None)
            except NotVerified:  # the day showed something else then
                verify(self.database, day)
                self._publish(day, None)

    def _publish(self, day, run_id):
        """Publish; every board that reads otherwise since, and no other one, is a correction with both values."""
        before, was_shown = self._view(day), self._pointer(day)
        try:
            publish(self.database, day, run_id)
        except RowsWouldVanish:
            assert self.topic  # the former topic had them
            return
        except StaleRun:
            if self.lost is None or was_shown[1] <= self.lost[0]:
                raise
            return  # the day shows what was built from records that are lost since
        after = self._view(day)
        if self.topic == 0:
            known = self.generations[self._pointer(day)[0]].newest
            back = [self.newest[board] for board in after.keys() - before.keys() if board in self.newest]
            assert not [event for event in back if event.title is None and event.version > known[event.board].version]
        if self._pointer(day) == was_shown:
            assert after == before
            return
        changed = {board: (before.get(board), after.get(board)) for board in before | after}
        corrected = rows(self.database, CORRECTED, (day.date,))
        assert {board: titles for board, *titles in corrected} == {
            board: list(titles) for board, titles in changed.items() if titles[0] != titles[1]}  # fmt: skip

    @rule(day=st.sampled_from(DAYS), to=st.none() | st.integers(0, 5))
    def day_is_undone(self, day, to):
        with suppress(UndoRefused):
            undo(self.database, day, "test", to=to)

    @rule(day=st.sampled_from(DAYS))
    def day_is_redone(self, day):
        with suppress(UndoRefused):
            redo(self.database, day, "test")

    @rule(day=st.sampled_from(DAYS))
    def day_is_covered(self, day):
        cover(self.database, day)

    @precondition(lambda self: self.topic == 0 and self.lost is None)
    @rule()
    def weeks_go_by(self):
        self.weeks_went_by = True
        rows(self.database, f"UPDATE board_detail_covered SET covered_at = covered_at - {AGE}")
        rows(self.database, f"UPDATE publication SET made_at = made_at - {AGE}")
        rows(self.database, f"UPDATE day_publication SET published_at = published_at - {AGE}")
        collect_orphans(self.database)

    @invariant()
    def view_is_what_was_served_and_published(self):
        if not hasattr(self, "raw"):
            return
        for day in DAYS:
            assert self._view(day) == self._expected(day)

    def _pointer(self, day):
        pointer = rows(self.database, "SELECT generation_id, (cut -> 'board' ->> '0')::bigint FROM day_publication "
                       "WHERE day = %s AND generation_id IS NOT NULL", (day.date,))  # fmt: skip
        return pointer[0] if pointer else (None, 0)

    def _view(self, day):
        found = rows(self.database, "SELECT board_id, title FROM board_detail WHERE day = %s", (day.date,))
        assert len(found) == len(dict(found))
        return dict(found)

    def _expected(self, day):
        id_, cut = self._pointer(day)
        known = self.generations[id_].newest if id_ is not None else {}
        shown = dict(known)
        for board, event in self.newest.items():
            is_newer = board not in known or event.version > known[board].version
            is_covered = cut is not None and event.topic == self.topic and event.offset < cut
            if day_of(board) == day and is_newer and not is_covered:
                shown[board] = event
        return {board: event.title for board, event in shown.items() if event.title is not None}


@pytest.fixture(scope="module")
def database(postgres, tmp_path_factory):
    return migrated(None, postgres, "serving_property", tmp_path_factory.mktemp("serving-property"))


def test_the_view_is_what_was_served_and_published(database):
    class Machine(Serving):
        pass

    Machine.database = database
    run_state_machine_as_test(Machine, settings=settings(
        max_examples=MAX_EXAMPLES, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck),
        derandomize="SERVING_EXAMPLES" not in os.environ, phases=(Phase.generate, Phase.shrink)))  # fmt: skip


@settings(max_examples=5 * MAX_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck),
          derandomize="SERVING_EXAMPLES" not in os.environ, phases=(Phase.generate,))  # fmt: skip
@given(before=st.lists(EVENTS, max_size=4), served=st.integers(0, 4), between=st.lists(EVENTS, max_size=4))
def test_corrections_are_the_difference_whatever_is_served_since_verify(database, before, served, between):
    machine = Serving()
    machine.database = database
    machine.begin()
    try:
        for board, at, is_deleted in before:
            machine.post(board, at, is_deleted)
        machine.serve_due(served)
        machine.night_rebuilds(DAY, published=True, between=between, served=len(before) + len(between))
        machine.view_is_what_was_served_and_published()
    finally:
        machine.teardown()
