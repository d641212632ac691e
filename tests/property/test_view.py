"""The view is what was served and what is published say, whatever is served, published, undone, covered and forgotten.

On a real PostgreSQL. The expectation is plain Python: the newest version of each board that was ever served, and of
each generation its rows, the boards that it left out, and its cut. Members come and are deleted, before and after the
times of their boards: a board whose newest version waits is not in the view, and one that the day's generation decided
does not wait. A published day of which the view or the counts say anything else than its generation is marked. One
board moves between the days, and some generations are of a release that kept no versions of what it left out. An offset
is one of a topic: when that is made again, its records are newer than those of the former one in the same version, and
no cut covers records of another. Some records may be lost to an accepted gap of the archive: builds lack them, and what
the stream served of them stays.

SERVING_EXAMPLES=300 is a search. SERVING_MUTATION takes a mend out (tests/support/mutations.py); seen to fail at
the seeds of FINDS and MOVING_FINDS. After a change of what a step draws, those have to be searched again.
"""

import dataclasses
import datetime as dt
import itertools
import os
from contextlib import closing, contextmanager, suppress

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from include.contracts.errors import NothingBuilt, StaleRun
from include.database.offset_ledger import OffsetLedger, Output
from include.integrity.days.comparison import NotVerified, RowsWouldVanish, verify
from include.integrity.days.day_checks import check_days, mark_left_days
from include.integrity.days.pruning import collect_orphans, cover, take_out_of_cuts
from include.integrity.days.publication import UndoRefused, publish, redo, undo
from spark_jobs.speed.pending_store import PendingRecord, PendingStore
from tests.support import mutations
from tests.support.examples import is_long
from tests.support.oracle import Version, author
from tests.support.pipeline import migrated, rows
from tests.support.publication import open_as
from tests.support.serving import DAY, NOON, TOPIC_ID, build, exclude, opened_store, row, serve, tombstone
from tests.support.topic_log import taken_lease

DAYS = (DAY, DAY.before(1))
MOVER = 4  # it moves between the days, and is not deleted; the others stay on theirs, and may be
BOARDS = range(1, MOVER + 1)
STEPS = 12
CORRECTED = """
SELECT board_id, shown ->> 'title', rebuilt ->> 'title'
  FROM detail_correction c JOIN day_publication p USING (generation_id)
 WHERE p.day = %s AND class <> 'duplicate'
"""
SHOWN = "SELECT board_id, title, finality, shown_since FROM board_detail WHERE day = %s"
COUNTED = "SELECT shown_rows(%s)"
STATUS = "SELECT pending_count, shown_rows FROM day_status WHERE day = %s"
WAITING = "SELECT DISTINCT board_id FROM waiting_record WHERE day = %s"
MARKED = """
SELECT day FROM dirty_day UNION SELECT day FROM unchecked_day
 UNION SELECT day FROM day_publication WHERE held_reason IS NOT NULL
"""
PENDING = 'SELECT "offset", covered_by FROM pending_record'
BY_ID = "SELECT * FROM {} ORDER BY day, board_id"
POINTER = """
SELECT generation_id, (cut -> 'board' ->> '0')::bigint FROM day_publication WHERE day = %s AND generation_id IS NOT NULL
"""
MAX_EXAMPLES = int(os.environ.get("SERVING_EXAMPLES", "20" if is_long() else "1"))
FINDS = {
    "fence-without-left-out": 371, "deletions-forgotten": 339, "covered-unknown": 339, "pending-covered": 371,
    "older-row-stays": 2300, "brought-back-uncompared": 2006, "set-aside-uncompared": 2141,
    "pending-deletion-dayless": 4007,
}  # fmt: skip
MOVING_FINDS = {
    "older-waits": 4008, "hidden-elsewhere-unmarked": 4008, "waiting-elsewhere-unseen": 4068,
    "pending-moves-unmarked": 4076,
}  # fmt: skip
AGE = "interval '30 days'"
EMPTY = """
TRUNCATE detail_live, detail_covered, offset_ledger, day_publication, dirty_day, publication, generation,
         pending_record, unchecked_day RESTART IDENTITY CASCADE
"""
_numbers = itertools.count()


@dataclasses.dataclass(frozen=True, order=True)
class Event:
    """A version of a board in the raw topic. A copy has another offset and the same event id."""

    at: float  # minutes
    topic: int  # how often the topic had been made again
    offset: int
    board: int
    day: int
    title: str | None  # None: it was deleted
    event_id: str

    @property
    def version(self):
        return self.at, self.topic, self.offset

    @property
    def version_at(self):
        return NOON + dt.timedelta(minutes=self.at)

    def row(self, table_offset, kafka_offset=None):
        if self.title is None:
            return tombstone(self.board, self.offset, self.version_at) | {
                "kafka_offset": kafka_offset, "table_partition": None, "table_offset": None}  # fmt: skip
        return row(self.board, self.offset, title=self.title, modified_at=self.version_at, day=DAYS[self.day].date,
                   created_at=DAYS[self.day].start, table_offset=table_offset, kafka_offset=kafka_offset,
                   event_id=self.event_id)  # fmt: skip

    def pending(self):
        return PendingRecord("board", 0, self.offset, self.board, self.board, DAYS[self.day].date, None, b"", None,
                             self.event_id, None, self.version_at)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Generation:
    """A build's version of each board of its day, without pending ones, and its cut of the members."""

    known: dict[int, Event]
    waiting: set[int]
    members: int


NOTHING = Generation({}, set(), 0)


class Serving:
    """In some examples the topic is made again, in others it loses records. There all members are known, no board
    moves, every generation keeps the versions of what it left out, and no weeks go by: rows that were forgotten are
    kept by no one, if the topic lacks them too.
    """

    def __init__(self, database, random, reader):
        self.database, self.random, self.reader = database, random, reader
        self.store = opened_store(database)
        self.join = PendingStore(database.database, self.store._lease)
        self.raw, self.unserved, self.served, self.newest, self.generations = [], [], [], {}, {}
        self.waiting = {}  # offset: event
        self.forgotten = set()  # offsets of those that a day covered for weeks
        self.seen = {}  # day: what was shown at the last look, and when that was
        self.members = [self._member(board, board, -99) for board in BOARDS]  # in the order of their log
        self.joined = {}  # the offset of the member that a served version got
        self.topic = self.details = 0
        self.lost = None  # first offset and end
        self.damage = random.choice((*[None] * 3, *[self._replace_topic] * 2, self._lose_records))
        if self.damage is None:
            for board in random.sample(BOARDS, random.choice((0, 0, 1, 2))):
                self.members = [member for member in self.members if member.key != board]

    def step(self):
        """One thing happens, most often a night."""
        if self.damage and self.topic == 0 and self.lost is None and self._happens(1 / 6):
            self.damage()
        steps = (self.post, self.replay, self.serve, self.serve_again, self.member_comes, self.member_goes,
                 self.publish_older, self.undo, self.redo, self.cover, self.weeks_go_by)  # fmt: skip
        self.random.choice((*[self.night] * 5, *steps))()
        self.check()

    def night(self):
        """Days are rebuilt, verified, and published at once, later or never; more is posted and served before that.

        Weeks later older versions may come again.
        """
        served = self.random.choice((99, 99, 1, 0))
        keeps_versions = self.damage is not None or self._happens(2 / 3)
        is_published = self._happens(3 / 4)
        self.post(0, 3)
        self.serve(served)
        for number in self.random.choice(((0,), (1,), (0, 1), (1, 0))):
            run_id = self._build(number, keeps_versions)
            verify(self.database, DAYS[number], run_id)
            self.post(0, 2)
            self.serve(served)
            self.check()
            if is_published:
                self._publish(DAYS[number], run_id)
        if self._happens(1 / 2):
            self.serve(99)
            self.check()
            self.weeks_go_by()
        self.check()
        newest = {event.board: max(one.version for one in self.raw if one.board == event.board) for event in self.raw}
        old = [event for event in self.raw if event.title and event.version < newest[event.board]]
        for event in self.random.sample(old, min(len(old), self.random.randint(0, 2))):
            self._replay(event)
        self.serve(served)

    def _happens(self, probability):
        return self.random.random() < probability

    def post(self, fewest=1, most=1):
        """Mostly newer versions than all before."""
        for _ in range(self.random.randint(fewest, most)):
            board, flag = self.random.choice(BOARDS), self._happens(1 / 2)
            moves = board == MOVER and self.damage is None
            is_deleted = flag and not moves
            day = int(flag) if moves else board % 2
            at = len(self.raw) - self.random.choice((0, 0, 0, 0, 1, 4))
            if self.damage:  # then no two versions of one time: see the known gaps in docs/architecture/operations.md
                at += len(self.raw) / 1000
            self._append(at, board, day, None if is_deleted else f"title {self.topic}-{len(self.raw)}")

    def _append(self, at, board, day, title, event_id=None):
        event = Event(at, self.topic, len(self.raw), board, day, title, event_id or f"e{self.topic}-{len(self.raw)}")
        self.raw.append(event)
        self.unserved.append(event)

    def replay(self):
        if self.raw:
            self._replay(self.random.choice(self.raw))

    def _replay(self, event):
        self._append(event.at, event.board, event.day, event.title, event.event_id)

    def serve(self, count=None):
        count = self.random.randint(1, 9) if count is None else count
        due, self.unserved = self.unserved[:count], self.unserved[count:]
        for event in due:
            if event.title and self._held(event.board) is None:
                self.waiting[event.offset] = event
        waiting = [event for event in due if event.offset in self.waiting]
        if waiting:
            self.join.save_pending([event.pending() for event in waiting])
        self._serve([event for event in due if event.offset not in self.waiting])

    def serve_again(self):
        present = [event for event in self.served if event.topic == self.topic]
        if present and all(event.topic == self.topic for event in self.unserved):
            self._serve([self.random.choice(present)])

    def _lose_records(self):
        """Some that were served: the topic dropped them before they were archived."""
        served = len(self.raw) - len(self.unserved)
        if served:
            first = self.random.randrange(served)
            self.lost = first, self.random.randint(first + 1, served)

    def _read_raw(self):
        """Return the records that a build reads, and its cut."""
        first, end = self.lost or (len(self.raw), len(self.raw))
        return [event for event in self.raw if not first <= event.offset < end], first

    def _replace_topic(self):
        """And the stream is repaired; what it had not served yet comes afterwards, often a published day's records."""
        if self._happens(1 / 2):
            self.post(1, 3)
            for number in range(len(DAYS)):
                run_id = self._build(number, keeps_versions=True)
                verify(self.database, DAYS[number], run_id)
                self._publish(DAYS[number], run_id)
        self.store.close()
        lease = taken_lease(self.database)
        self.topic, self.raw = self.topic + 1, []
        take_out_of_cuts(self.database, "board", self._topic_id)
        former = Output("board-detail", TOPIC_ID, {0: self.details + len(self.unserved)})
        OffsetLedger(self.database.database).repair("join", "board", self._topic_id, [], [], "test", lease,
                                                    made_from_replaced=former)  # fmt: skip
        lease.release()
        self.store = opened_store(self.database)

    @property
    def _topic_id(self):
        return f"board-{self.topic}"

    def _serve(self, events):
        if events:
            details = itertools.count(self.details)
            for event in events:
                held = self._held(event.board)
                self.joined.setdefault((event.topic, event.offset), held and held.offset)
            serve(self.store, [event.row(self.joined[event.topic, event.offset], next(details)) for event in events])
            self.details += len(events)
        for event in events:
            self.served.append(event)
            self.newest[event.board] = max(event, self.newest.get(event.board, event), key=lambda e: e.version)

    def member_comes(self):
        """And the boards that waited for it are sent."""
        if unknown := [board for board in BOARDS if self._held(board) is None]:
            self._comes(self.random.choice(unknown))

    def _comes(self, board):
        self.members.append(self._member(board, self._members_end(), len(self.raw) - self.random.choice((0, 0, 4))))
        if self._held(board):
            due = [event for event in self.waiting.values() if event.board == board]
            self.waiting = {event.offset: event for event in self.waiting.values() if event.board != board}
            self._serve(due)

    def member_goes(self):
        """It is deleted, now or a while ago: boards of before that come late wait all the same."""
        if self.damage is None and (known := [board for board in BOARDS if self._held(board)]):
            at = len(self.raw) - self.random.choice((0, 0, 2, 6))
            self.members.append(self._member(self.random.choice(known), self._members_end(), at, deleted=True))

    def _member(self, board, offset, at, deleted=False):
        return Version("member", board, offset, NOON + dt.timedelta(minutes=at), f"m{offset}", deleted=deleted)

    def _members_end(self):
        return len(BOARDS) + 1 + len(self.members)

    def _held(self, board):
        """The newest version of a board's member, which the stream has, unless that is a tombstone."""
        newest = max((member for member in self.members if member.key == board), key=lambda m: m.version, default=None)
        return None if newest is None or newest.deleted else newest

    def _author(self, event):
        """The version that the rebuild takes."""
        board = Version("board", event.board, event.offset, event.version_at, event.event_id, member=event.board)
        return author(board, self.members)

    def _build(self, number, keeps_versions):
        raw, cut = self._read_raw()
        first, newest = {}, {}
        for event in raw:  # one record an event: its first copy
            first.setdefault(event.event_id, event)
        for event in first.values():
            newest[event.board] = max(event, newest.get(event.board, event), key=lambda e: e.version)
        boards = {event.board for event in first.values() if event.title and event.day == number}
        newest = {board: newest[board] for board in sorted(boards)}
        left_out = [event for event in newest.values() if event.title is None or event.day != number]
        waiting = [event for event in newest.values() if event not in left_out and self._author(event) is None]
        listed = [event for event in newest.values() if event not in left_out and event not in waiting]
        run_id = f"r{next(_numbers)}"
        id_ = build(self.database, [event.row(self._author(event).offset) for event in listed], cut=cut,
                    run_id=run_id, day=DAYS[number], members=self._members_end(), unread=self.lost,
                    topic_ids={"board": self._topic_id, "member": "member"},
                    pending=[(event.board, event.offset) for event in waiting])  # fmt: skip
        for event in left_out:
            exclude(self.database, id_, "moved" if event.title else "deleted", event.board, event.offset,
                    event.version_at if keeps_versions else None)  # fmt: skip
        known = [*listed, *left_out] if keeps_versions else listed
        self.generations[id_] = Generation({e.board: e for e in known}, {e.board for e in waiting}, self._members_end())
        return run_id

    def publish_older(self):
        day = self.random.choice(DAYS)
        with suppress(NothingBuilt, StaleRun):
            try:
                self._publish(day, None)
            except NotVerified:  # the day showed something else then
                verify(self.database, day)
                self._publish(day, None)

    def _publish(self, day, run_id):
        """Publish; every board that reads otherwise since, and no other one, is a correction with both values."""
        before, (was_shown, cut) = self._view(day), self._pointer(day)
        try:
            publish(self.database, day, run_id)
        except RowsWouldVanish:
            assert self.topic or self.lost  # the former topic had them, or the gap
            return
        except StaleRun:
            if self.lost is None or cut <= self.lost[0]:
                raise
            return  # the day shows what was built from records that are lost since
        after = self._view(day)
        if self._pointer(day)[0] == was_shown:  # the build has the same content: its cut is taken, not its corrections
            assert after == before
            return
        changed = {board: (before.get(board), after.get(board)) for board in before | after}
        corrected = self._read(CORRECTED, day)
        assert {board: titles for board, *titles in corrected} == {
            board: list(titles) for board, titles in changed.items() if titles[0] != titles[1]}  # fmt: skip

    def undo(self):
        with suppress(UndoRefused, StaleRun):  # stale: it shows that already
            undo(self.database, self.random.choice(DAYS), "test",
                 to=self.random.choice((None, None, self.random.randint(0, 5))))  # fmt: skip

    def redo(self):
        with suppress(UndoRefused):
            redo(self.database, self.random.choice(DAYS), "test")

    def cover(self):
        cover(self.database, self.random.choice(DAYS))

    def weeks_go_by(self):
        if self.damage:
            return
        rows(self.database, f"UPDATE detail_covered SET covered_at = covered_at - {AGE};"
                            f"UPDATE publication SET made_at = made_at - {AGE};"
                            f"UPDATE day_publication SET published_at = published_at - {AGE},"
                            f"                           moved_at = moved_at - {AGE}")  # fmt: skip
        covered = {offset for offset, covered_by in self._pending().items() if covered_by is not None}
        collect_orphans(self.database)
        self.forgotten |= covered - self._pending().keys()

    def check(self):
        """The view is what was served and published; a board that was taken is in the view or waits."""
        for number, day in enumerate(DAYS):
            self._check(number, day)
        self._check_marks()
        ids = f"ARRAY[{', '.join(map(str, BOARDS))}]"
        assert self._read(BY_ID.format(f"board_detail_by_key({ids})")) == self._read(
            BY_ID.format("board_detail_masked")
        )
        found = self._pending()
        # another day showed a newer version meanwhile, or when it came: it waits no more, and is not sent
        self.waiting = {offset: event for offset, event in self.waiting.items() if not self._is_older_elsewhere(event)}
        waits = {event.offset for event in self.waiting.values()
                 if not self._is_decided(event) and self._is_news(event)}  # fmt: skip
        # the day decided it once; a later build, from versions of members that came since, says that it waits
        waits -= {offset for offset in waits & self.forgotten
                  if self.waiting[offset].board in self._generation(self.waiting[offset].day).waiting}  # fmt: skip
        assert waits <= found.keys() <= self.waiting.keys()
        for offset, covered_by in found.items():
            event = self.waiting[offset]
            assert covered_by == (self._pointer(DAYS[event.day])[0] if self._is_decided(event) else None)

    def _check_marks(self):
        """A published day whose certificate says anything else than the view and the counts is marked, or held.

        At once; only for a board that moved, or waits on the other day, by the check that each night makes.
        """
        if unmarked := self._unmarked():
            assert set().union(*unmarked.values()) == {MOVER}
            mark_left_days(self.database)
            check_days(self.database)
            assert not self._unmarked()

    def _unmarked(self):
        """The boards by day that differ from what it can be certified with, of days without a mark."""
        marked = {day for (day,) in self._read(MARKED)}
        found = {}
        for number, day in enumerate(DAYS):
            if self._pointer(day)[0] is not None and day.date not in marked:
                generation, shown = self._generation(number), self._view(day)
                counted = {board for (board,) in self._read(WAITING, day)}
                rows_of = {board: event.title for board, event in generation.known.items() if event.day == number}
                found[day] = {board for board in BOARDS if rows_of.get(board) != shown.get(board)
                              or (board in generation.waiting) != (board in counted)}  # fmt: skip
        return {day: boards for day, boards in found.items() if boards}

    def _is_news(self, event):
        """False if the board was served in a newer version, or this is another copy of what was served."""
        served = self.newest.get(event.board)
        return served is None or (event.version > served.version and event.event_id != served.event_id)

    def _is_older_elsewhere(self, event):
        known = self._generation(1 - event.day).known.get(event.board)
        return known is not None and known.day != event.day and known.version >= event.version

    def _pending(self):
        """The generation that covers a pending record, if one does, by offset."""
        return dict(self._read(PENDING))

    def _is_decided(self, event):
        """True if the day's generation knows the version, or a newer one."""
        id_, cut = self._pointer(DAYS[event.day])
        generation = self._generation(event.day)
        if id_ is not None and event.offset < cut and event.board not in generation.waiting:
            return True
        known = generation.known.get(event.board)
        is_copy = known is not None and (known.at, known.event_id) == (event.at, event.event_id)
        return known is not None and (known.version >= event.version or (is_copy and known.day == event.day))

    def _check(self, number, day):
        _, cut = self._pointer(day)
        generation = self._generation(number)
        waiting = [self.waiting[offset] for offset, covered_by in self._pending().items() if covered_by is None]
        shown, expected = self._view(day), {}
        for board, event in generation.known.items():
            if event.title and event.day == number:
                expected[board] = event.title
        on_top = {event.board: event for event in self.newest.values()
                  if event.day == number and self._is_on_top(event, generation, cut)}  # fmt: skip
        expected |= {board: event.title for board, event in on_top.items()}
        hidden = {event.board for event in waiting}
        expected = {board: title for board, title in expected.items() if board not in hidden}
        counted = {event.board for event in waiting if event.day == number}
        counted |= {board for board in generation.waiting if board not in self.newest
                    or self._is_covered(self.newest[board], generation, cut, self.newest[board].day)}  # fmt: skip
        assert not (counted | hidden) & shown.keys()  # in the view or pending, never both
        assert self._read(STATUS, day) in ([(len(counted), len(shown))], [])
        mover, _ = shown.pop(MOVER, None), expected.pop(MOVER, None)
        assert shown == {board: title for board, title in expected.items() if title}
        # Its newest version may be of the other day, and that day forget it: older ones are shown, but none that the
        # generation knows to be older, and none at all while it waits, on whatever day.
        known = generation.known.get(MOVER)
        served = {event.title for event in self.served
                  if event.day == number and self._is_on_top(event, generation, cut)}  # fmt: skip
        if MOVER in on_top:
            assert mover == (None if MOVER in hidden else on_top[MOVER].title)
        has_row = known is not None and known.day == number
        assert mover in served | {known.title if has_row else None, None}
        if has_row and self.damage is None:  # then it is not deleted
            assert (mover is None) == (MOVER in hidden)

    def _is_on_top(self, event, generation, cut):
        """Without a cut nothing is covered: its topic is gone."""
        known = generation.known.get(event.board)
        is_covered = self._is_covered(event, generation, cut, event.day)
        return not is_covered and (known is None or event.version > known.version)

    def _is_covered(self, event, generation, cut, day):
        is_read = cut is not None and event.topic == self.topic and event.offset < cut and event.day == day
        joined = self.joined[event.topic, event.offset]
        return is_read and not (event.title and event.board in generation.waiting and joined >= generation.members)

    def _generation(self, number):
        return self.generations.get(self._pointer(DAYS[number])[0], NOTHING)

    def _pointer(self, day):
        pointer = self._read(POINTER, day)
        return pointer[0] if pointer else (None, 0)

    def _view(self, day):
        found = self._read(SHOWN, day)
        shown = {board: (title, finality) for board, title, finality, _ in found}
        assert len(found) == len(shown)
        assert self._read(COUNTED, day)[0][0] in (len(found), None)
        before, at = self.seen.get(day, ({}, None))
        for board, *values, since in found:
            # a row of the mover shows again when the row on top of it goes to the other day
            assert at is None or before.get(board) == tuple(values) or since > at or board == MOVER
        [(now,)] = self._read("SELECT clock_timestamp()")
        self.seen[day] = (shown, now)
        return {board: title for board, (title, _) in shown.items()}

    def _read(self, statement, day=None):
        with self.reader.cursor() as cursor:
            cursor.execute(statement, day and (day.date,))
            return cursor.fetchall()


@pytest.fixture(scope="module")
def database(postgres, tmp_path_factory):
    return migrated(None, postgres, "serving_property", tmp_path_factory.mktemp("serving-property"))


@contextmanager
def begun(database, random, kind=None):
    """Nothing was served yet."""
    rows(database, EMPTY, role="pipeline_owner")
    collect_orphans(database)
    with closing(open_as(database, "batch")) as reader:
        reader.autocommit = True
        serving = (kind or Serving)(database, random, reader)
        try:
            yield serving
        finally:
            serving.store.close()


# Uniform choices: see test_dirty_days.
SEARCH = settings(
    max_examples=MAX_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate), derandomize="SERVING_EXAMPLES" not in os.environ,
    report_multiple_bugs=False)  # fmt: skip


@pytest.mark.shortened
@mutations.examples(FINDS)
@SEARCH
@given(random=st.randoms(use_true_random=True))
def test_the_view_is_what_was_served_and_published(mutated, random):
    with begun(mutated, random) as serving:
        serving.night()
        serving.check()
        for _ in range(STEPS):
            serving.step()


@settings(SEARCH, max_examples=5 * MAX_EXAMPLES)
@given(random=st.randoms(use_true_random=True))
def test_corrections_are_the_difference_whatever_is_served_since_verify(mutated, random):
    with begun(mutated, random) as serving:
        serving.night()
        serving.check()


class Moving(Serving):
    """One board alone, which moves between the days; its author is deleted and comes back, and it waits in between."""

    def __init__(self, database, random, reader):
        super().__init__(database, random, reader)
        self.damage = None
        self.members = [self._member(MOVER, 0, -99)] * self._happens(2 / 3)

    def post(self, fewest=1, most=1):
        for _ in range(self.random.randint(fewest, most)):
            at = len(self.raw) - self.random.choice((0, 0, 3, 6))
            self._append(at, MOVER, self.random.choice((0, 1)), f"title {len(self.raw)}")

    def step(self):
        steps = (self.post, self.serve, self.member_comes, self.member_goes, self.cover, self.undo, self.redo)
        self.random.choice((self.night, self.night, self.serve, *steps))()
        self.check()

    def member_comes(self):
        if self._held(MOVER) is None:
            self._comes(MOVER)


@mutations.examples(MOVING_FINDS)
@SEARCH
@given(random=st.randoms(use_true_random=True))
def test_a_moving_board_is_in_the_view_or_pending(mutated, random):
    with begun(mutated, random, Moving) as serving:
        for _ in range(STEPS):
            serving.step()
