"""All transactions lock the serving tables in one order, as observed from the locks that each one takes."""

import contextlib
import datetime as dt
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import psycopg2
import psycopg2.extensions
import pytest

from include.contracts.clock import rfc3339
from include.database import sessions as connections
from include.database.driver_lease import DriverLease
from include.database.forgotten import ForgottenStore
from include.database.named import PipelineConnection
from include.database.offset_ledger import Move, OffsetLedger
from include.integrity.days.catch_up import find_late_versions
from include.integrity.days.pruning import collect_orphans, cover, prune, take_out_of_cuts
from include.integrity.days.publication import redo, undo
from spark_jobs.recheck import RecheckStore, RejectedRecord
from spark_jobs.speed.pending_store import PendingRecord, PendingStore
from tests.fakes.events import member
from tests.servers import wait_until
from tests.support.certifying import certify_alone
from tests.support.pipeline import produce, rows, with_topics
from tests.support.publication import publish
from tests.support.serving import DAY, NOON, applied, build, opened_store, pending, row, serve, tombstone
from tests.support.sessions import is_waiting, session, terminate

LATER = NOON + dt.timedelta(minutes=1)
ORDER = [
    "advisory 7203005", "stream_driver", "advisory 7203003", "advisory 7203004", "day_publication", "pending_record",
    "detail_covered", "detail_live", "dirty_day", "unchecked_day", "reject", "offset_ledger",
]  # fmt: skip
# The locks that the transaction holds now: a row lock shows as RowShareLock or RowExclusiveLock on its table.
HELD = """
SELECT DISTINCT CASE locktype WHEN 'advisory' THEN 'advisory ' || classid ELSE relation::regclass::text END
  FROM pg_locks
 WHERE pid = pg_backend_pid() AND granted
   AND (locktype = 'advisory' OR mode IN ('RowShareLock', 'RowExclusiveLock'))
"""


class Watched(PipelineConnection):
    """After each statement it notes which locks its transaction has taken by now."""

    taken: ClassVar[list[list[str]]] = []  # of each transaction, in order; those of one statement are one set, sorted

    def cursor(self, *args, **kwargs):
        kwargs.setdefault("cursor_factory", _Cursor)
        return super().cursor(*args, **kwargs)


class _Cursor(psycopg2.extensions.cursor):
    def execute(self, statement, parameters=None):
        super().execute(statement, parameters)
        if self.connection.info.transaction_status != psycopg2.extensions.TRANSACTION_STATUS_INTRANS:
            return
        with contextlib.closing(psycopg2.extensions.cursor(self.connection)) as looking:
            looking.execute(HELD)
            held = {name for (name,) in looking.fetchall() if name in ORDER}
        transaction = self.connection.__dict__.setdefault("transaction", [])
        if not held >= set(transaction):
            transaction = self.connection.__dict__["transaction"] = []  # another one has begun
        if not transaction:
            Watched.taken.append(transaction)
        transaction += sorted(held - set(transaction), key=ORDER.index)


@pytest.fixture
def settings(kafka, postgres, tmp_path):
    return with_topics(kafka, postgres, "lock_order", tmp_path)


@pytest.fixture
def taken(monkeypatch):
    plain = psycopg2.connect
    monkeypatch.setattr(connections.psycopg2, "connect",
                        lambda *args, **kwargs: plain(*args, **kwargs | {"connection_factory": Watched}))  # fmt: skip
    monkeypatch.setattr(Watched, "taken", [])
    return Watched.taken


def repair(settings):
    """Move the join's ledger to a topic made again, with all that goes with it."""
    lease, ledger = DriverLease(settings.database, "repair"), OffsetLedger(settings.database)
    lease.take()
    ledger.open("join", "board", "old", {0: 0}, lease)
    ledger.repair("join", "board", "new", ledger.entries("join", "board"), [Move(0, "old", 0, 0, "made again")],
                  "test", lease, send_pending_again=True)  # fmt: skip
    ledger.close()


def recheck(settings):
    """Remove what was made from a rejected record."""
    lease = DriverLease(settings.database, "recheck")
    lease.take()
    rejected = [RejectedRecord("board", "topic-1", 0, 3)]
    RecheckStore(settings.database).remove(rejected, [], {DAY.date: 1}, "rejected board", lease)


def test_every_transaction_takes_its_locks_in_one_order(settings, taken):
    store = opened_store(settings)
    with contextlib.closing(store):
        serve(store, [row(n, n) for n in range(4)])
        pending(settings, 8, 8)
        build(settings, [row(1, 1, title="a"), row(2, 2)], cut=6, run_id="a")
        publish(settings, DAY, "a", accept_vanishing=True)
        PendingStore(settings.database, store._lease).save_pending(
            [PendingRecord("board", 0, 30, 30, 99, DAY.date, None, b"", NOON, "e30", None, LATER)]
        )
        refused = row(9, 9, event_id="refused\0", kafka_partition=1)  # and a partition that was added since
        serve(store, [row(3, 5), row(8, 8), refused, tombstone(2, 10, LATER), tombstone(77, 11, LATER)])
        cover(settings, DAY)
        certify_alone(settings, DAY)
        produce(settings, [("member", 7, member(7, modifiedAt=rfc3339(NOON - dt.timedelta(hours=3))))])
        find_late_versions(settings)
        undo(settings, DAY, "r")
        redo(settings, DAY, "r")
        rows(settings, "UPDATE detail_covered SET covered_at = covered_at - interval '30 days'")
        prune(settings, DAY)
        ForgottenStore(settings.database).remove(7, [1, 2], dry_run=False)
        recheck(settings)
        take_out_of_cuts(settings, "board", "another")
        collect_orphans(settings)
        repair(settings)
    several = [transaction for transaction in taken if len(transaction) > 1]
    assert ["unchecked_day", "offset_ledger"] in several  # the search for late versions
    assert {one for transaction in several for one in transaction} == set(ORDER)
    for transaction in several:
        assert transaction == sorted(transaction, key=ORDER.index), several


def taking_turns(settings, held, first, second, waiting):
    """The first call up to the held row, the second until it waits too, then both to their ends; what they returned."""
    blocker = session(settings)
    try:
        with ThreadPoolExecutor(2) as threads, contextlib.closing(blocker), blocker.cursor() as cursor:
            cursor.execute(held)
            one = threads.submit(first)
            wait_until(lambda: one.done() or is_waiting(settings, waiting), 20, f"{waiting} waits for the held row")
            other = threads.submit(second)
            wait_until(lambda: other.done() or is_waiting(settings, "prune"), 20, "pruning waits")
            blocker.rollback()
            return one.result(60), other.result(60)
    finally:
        blocker.close()


def covered_long_ago(settings):
    """A published day with a covered row that pruning forgets, and a newer live row of board 1."""
    with contextlib.closing(opened_store(settings)) as store:
        serve(store, [row(1, 1), row(2, 2)])
        build(settings, [row(1, 1), row(2, 2)], cut=3, run_id="a")
        publish(settings, DAY, "a")
        cover(settings, DAY)
        serve(store, [row(1, 3, modified_at=LATER)])
    rows(settings, "UPDATE detail_covered SET covered_at = covered_at - interval '30 days'")


def test_a_batch_with_a_row_that_is_refused_and_pruning_wait_for_each_other_in_no_circle(settings, caplog):
    covered_long_ago(settings)
    newest = LATER + dt.timedelta(minutes=1)
    # halved: the row of the published day first, then, in another part, a tombstone that has no day yet
    records = [row(1, 4, modified_at=newest), row(3, 5), row(4, 6, event_id="refused\0"), tombstone(77, 7, newest)]
    with contextlib.closing(opened_store(settings, 4)) as store, caplog.at_level(logging.INFO):
        batch, _ = taking_turns(
            settings, "SELECT FROM detail_live WHERE board_id = 1 FOR UPDATE",
            lambda: applied(store, records), lambda: prune(settings, DAY), "serve")  # fmt: skip
    assert (batch.written, len(batch.rejects)) == (3, 1)
    assert "deadlock" not in caplog.text
    assert rows(settings, "SELECT count(*) FROM detail_covered") == [(0,)]


def test_forgetting_a_member_and_pruning_wait_for_each_other_in_no_circle(settings, caplog):
    covered_long_ago(settings)
    pending(settings, 8, 8)
    rows(settings, "UPDATE pending_record SET member_id = 7")
    with caplog.at_level(logging.INFO):
        removed, _ = taking_turns(
            settings, "SELECT FROM pending_record FOR UPDATE",
            lambda: ForgottenStore(settings.database).remove(7, [1, 2], dry_run=False),
            lambda: prune(settings, DAY), "forget")  # fmt: skip
    assert removed["detail_final"] == removed["detail_covered"] == 2
    assert "deadlock" not in caplog.text


def test_a_failure_of_pruning_is_left_to_the_next_night(settings, caplog):
    """The server ends the session that gives up old generations, after the publication is committed."""
    for run in ("a", "b"):
        build(settings, [row(1, 1, title=run)], cut=3, run_id=run)
        publish(settings, DAY, run)
    rows(settings, "UPDATE publication SET made_at = made_at - interval '30 days'")
    blocker = session(settings)
    build(settings, [row(1, 1, title="c")], cut=3, run_id="c")
    try:
        with ThreadPoolExecutor(1) as thread, blocker.cursor() as cursor:
            cursor.execute("SELECT FROM generation WHERE run_id = 'a' FOR UPDATE")
            published = thread.submit(publish, settings, DAY, "c")
            wait_until(lambda: published.done() or is_waiting(settings, "prune"), 20, "pruning waits for the row")
            assert not published.done(), published.result()
            assert terminate(settings, "prune") == 1
            generation_id = published.result(60).generation_id
    finally:
        blocker.close()
    assert rows(settings, "SELECT generation_id FROM day_publication") == [(generation_id,)]
    assert f"day {DAY}: old generations are left to the next `collect`" in caplog.text
    collect_orphans(settings)
    assert rows(settings, "SELECT to_regclass('generations.detail_final_g1')") == [(None,)]
