"""The pipeline's transactions run at once, two by two, with pauses between statements and between rows: no deadlock."""

import datetime as dt
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import ClassVar

import psycopg2
import psycopg2.extensions
import pytest
from psycopg2.errors import DeadlockDetected

from include.contracts.clock import rfc3339
from include.contracts.errors import PipelineError
from include.database import sessions as connections
from include.database.forgotten import ForgottenStore
from include.database.named import PipelineConnection
from include.integrity.days import publication
from include.integrity.days.catch_up import find_late_versions
from include.integrity.days.comparison import verify
from include.integrity.days.due_days import dirty_days
from include.integrity.days.pruning import collect_orphans, prune, take_out_of_cuts
from include.integrity.days.publication import undo
from spark_jobs.speed import pending_store as speed_store
from spark_jobs.speed.pending_store import PendingRecord, PendingStore
from tests.fakes.events import member
from tests.servers import wait_until
from tests.support.certifying import certify_alone
from tests.support.examples import is_long
from tests.support.pipeline import produce, rows, with_topics
from tests.support.serving import DAY, NOON, build, opened_store, row, serve, tombstone
from tests.support.sessions import execute

DAYS = [DAY.before(number) for number in range(3)]
BOARDS = 12  # of each day, of which half wait for their member
CAUSES = ("late board", "late member", "moved board", "unread board")
PAUSED = ("detail_live", "detail_covered", "day_publication", "dirty_day", "unchecked_day", "pending_record",
          "late_version", "offset_ledger", "generation")  # fmt: skip
# A row that is written, or locked to be, holds up its statement while others go on.
PAUSES = """
ALTER DATABASE deadlocks SET deadlock_timeout = '10ms';
CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_sleep(random() * 0.002);
    RETURN COALESCE(NEW, OLD);
END
$$;
"""
PAUSE = "CREATE TRIGGER pause BEFORE INSERT OR UPDATE OR DELETE ON {} FOR EACH ROW EXECUTE FUNCTION pause()"


class Slow(PipelineConnection):
    """Sleeps for up to 3 ms before each statement, and records statements that PostgreSQL cancels as deadlocks."""

    broken_off: ClassVar[list[str]] = []

    def cursor(self, *args, **kwargs):
        return super().cursor(*args, **{"cursor_factory": _SlowCursor, **kwargs})


class _SlowCursor(psycopg2.extensions.cursor):
    def execute(self, statement, parameters=None):
        time.sleep(random.uniform(0, 0.003))
        with self.known(statement):
            super().execute(statement, parameters)

    def copy_expert(self, statement, *args, **kwargs):
        with self.known(statement):
            super().copy_expert(statement, *args, **kwargs)

    @contextmanager
    def known(self, statement):
        try:
            yield
        except DeadlockDetected:
            Slow.broken_off.append(str(statement)[:300])
            raise


class System:
    """A stream and a batch layer with three days; each action is one or several of their transactions."""

    def __init__(self, settings):
        self.settings = settings
        self.store = opened_store(settings)
        self.join = PendingStore(settings.database, self.store._lease)
        self.offset = 0
        self.day = DAYS[0]
        self.late = 0

    def boards(self):
        for number, day in enumerate(DAYS):
            for board in range(BOARDS):
                yield number * 1_000 + board, day

    def prepare(self, *actions):
        """Rows of all kinds; what only some of the actions need, for them."""
        self.day = random.choice(DAYS)
        s = self.settings
        rows(s, "DELETE FROM pending_record")
        rows(s, "DELETE FROM detail_covered")
        self.serve()
        if {"publish", "undo", "prune", "collect", "certify"} & set(actions):
            made = [row(board, self.offset - 1, day=day.date) for board, day in self.boards() if day == self.day]
            build(s, made, cut=self.offset, run_id=f"r{self.offset}", day=self.day, members=self.late)
            verify(s, self.day)
            if actions != ("publish", "publish"):
                with suppress(PipelineError):
                    publication.publish(s, self.day, accept_vanishing=True)
                if "publish" in actions:
                    build(s, made[1:], cut=self.offset, run_id=f"again {self.offset}", day=self.day, members=self.late)
                    verify(s, self.day)
            rows(s, "UPDATE detail_covered SET covered_at = covered_at - interval '30 days'")
        rows(s, """INSERT INTO pending_record (topic, partition, "offset", board_id, member_id, day, value, version_at)
                   SELECT 'board', 0, row_number() OVER (ORDER BY board_id), board_id, 99, day, '', modified_at
                     FROM detail_live WHERE board_id % 2 = 0 AND NOT deleted ORDER BY random()""")  # fmt: skip
        for day in DAYS:
            rows(s, "INSERT INTO unchecked_day (day) VALUES (%s) ON CONFLICT DO NOTHING", (day.date,))
            rows(s, "INSERT INTO dirty_day (day, cause, count) SELECT %s, unnest(%s), 1 ON CONFLICT DO NOTHING",
                 (day.date, list(CAUSES)))  # fmt: skip
        if "late versions" in actions:
            morning = rfc3339(NOON - dt.timedelta(days=9))
            produce(s, [("member", 7, member(7, modifiedAt=morning))] * 3)

    def serve(self):
        """Newer versions of all boards, some of another day, and deletions that carry no day."""
        self.offset += 1
        at = NOON + dt.timedelta(seconds=self.offset)
        made = []
        for board, day in self.boards():
            self.offset += 1
            kind = random.random()
            if kind < 0.1:
                made.append(tombstone(board, self.offset, at))
            else:
                of = day if kind < 0.9 else random.choice(DAYS)
                made.append(row(board, self.offset, day=of.date, modified_at=at))
        serve(self.store, made)

    def mark_sent(self):
        places = rows(self.settings, 'SELECT topic, partition, "offset" FROM pending_record')
        random.shuffle(places)
        if places:
            self.join.mark_sent(places)

    def save_pending(self):
        """Newer versions of some boards, of all days, which wait."""
        self.offset += 1
        at = NOON + dt.timedelta(seconds=self.offset)
        self.join.save_pending(
            PendingRecord("board", 0, 1_000_000 + self.offset * 10_000 + board, board, 99, day.date, None, b"", None,
                          None, None, at)
            for board, day in self.boards() if board % 3 == 0
        )  # fmt: skip

    def forget_superseded(self):
        self.join.forget_superseded()

    def forget_key(self):
        ForgottenStore(self.settings.database).remove(7, [], dry_run=False)

    def actions(self) -> dict[str, Callable[[], object]]:
        s = self.settings
        return {
            "serve": self.serve,
            "save pending": self.save_pending,
            "mark sent": self.mark_sent,
            "forget superseded": self.forget_superseded,
            "publish": lambda: publication.publish(s, self.day, accept_vanishing=True),
            "undo": lambda: undo(s, self.day, "a test", to=0),
            "prune": lambda: prune(s, self.day),
            "collect": lambda: collect_orphans(s),
            "check days": lambda: dirty_days(s),
            "late versions": lambda: find_late_versions(s),
            "certify": lambda: certify_alone(s, self.day),
            "forget key": self.forget_key,
            "topic made again": lambda: take_out_of_cuts(s, "member", f"topic {self.offset}"),
        }


BACKWARDS = """
WITH superseded AS (
    SELECT p.topic, p.partition, p."offset" FROM pending_record p JOIN detail_live l USING (board_id)
     ORDER BY p.topic, p.partition, p."offset" DESC FOR UPDATE OF p)
DELETE FROM pending_record p USING superseded s
 WHERE (p.topic, p.partition, p."offset") = (s.topic, s.partition, s."offset")
"""
# These take turns on one connection.
OF_THE_JOIN = {"save pending", "mark sent", "forget superseded"}
OF_THE_STREAM = {"serve": {"serve"}} | dict.fromkeys(OF_THE_JOIN, OF_THE_JOIN)


@pytest.fixture(scope="module")
def system(kafka, postgres, tmp_path_factory):
    settings = with_topics(kafka, postgres, "deadlocks", tmp_path_factory.mktemp("deadlocks"))
    execute(settings, PAUSES)
    for table in PAUSED:
        execute(settings, PAUSE.format(table))
    made = System(settings)
    with closing(made.store):
        yield made


@pytest.fixture
def slow(monkeypatch):
    plain = psycopg2.connect
    monkeypatch.setattr(connections.psycopg2, "connect",
                        lambda *args, **kwargs: plain(*args, **kwargs | {"connection_factory": Slow}))  # fmt: skip
    monkeypatch.setattr(Slow, "broken_off", [])
    return Slow.broken_off


def at_once(system, *names):
    """Run the two beside each other."""
    system.prepare(*names)
    actions = system.actions()

    def run(name):
        time.sleep(random.uniform(0, 0.02))
        with suppress(PipelineError):  # the other one came first
            actions[name]()

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(run, names))


NAMES = ("serve", "save pending", "mark sent", "forget superseded", "publish", "undo", "prune", "collect",
         "check days", "late versions", "certify", "forget key", "topic made again")  # fmt: skip
LARGE = {"serve", "publish"}  # these write most tables


def others(name):
    """The transactions beside which this one runs, so that no pair runs twice; a short run has some of them."""
    after = [other for other in NAMES[NAMES.index(name) :] if other not in OF_THE_STREAM.get(name, ())]
    return [other for other in after if is_long() or other == name or LARGE & {name, other}]


# the first one: those below take rows and days away, at random
def test_an_order_of_its_own_is_found(system, slow, monkeypatch):
    """Pending records that wait no longer are locked from the last to the first, while a batch locks them in order."""
    plain = speed_store.query

    def backwards(name, of):
        return BACKWARDS if name == "delete_superseded_pending" else plain(name, of)

    monkeypatch.setattr(speed_store, "query", backwards)

    def is_found():
        at_once(system, "serve", "forget superseded")
        return bool(slow)

    wait_until(is_found, 200, "two transactions wait for each other")


@pytest.mark.shortened
@pytest.mark.parametrize("name", NAMES)
def test_two_transactions_at_once_wait_for_each_other_in_no_circle(system, slow, name):
    assert [*system.actions()] == [*NAMES]
    found = {}
    for other in others(name):
        at_once(system, name, other)
        if slow:
            found[other] = [*slow]
            slow.clear()
    assert not found
