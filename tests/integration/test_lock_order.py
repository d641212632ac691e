"""Whoever takes several locks of the serving tables takes them in one order: read out of what each transaction does."""

import contextlib
import datetime as dt
from typing import ClassVar

import psycopg2
import psycopg2.extensions
import pytest

from include.adapters import postgres as connections
from include.integrity.covering import cover
from include.integrity.pruning import prune
from include.integrity.publication import redo, undo
from tests.support.certifying import certify_alone
from tests.support.pipeline import migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, NOON, build, opened_store, pending, row, serve, tombstone

LATER = NOON + dt.timedelta(minutes=1)
ORDER = [
    "advisory 7203003", "advisory 7203004", "day_publication", "pending_board", "board_detail_covered",
    "board_detail_live", "dirty_day",
]  # fmt: skip
# Which of them the transaction holds by now: a row lock shows as RowShareLock or RowExclusiveLock on its table.
HELD = """
SELECT DISTINCT CASE locktype WHEN 'advisory' THEN 'advisory ' || classid ELSE relation::regclass::text END
  FROM pg_locks
 WHERE pid = pg_backend_pid() AND granted
   AND (locktype = 'advisory' OR mode IN ('RowShareLock', 'RowExclusiveLock'))
"""


class Watched(psycopg2.extensions.connection):
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
def settings(postgres, tmp_path):
    return migrated(None, postgres, "lock_order", tmp_path)


@pytest.fixture
def taken(monkeypatch):
    plain = psycopg2.connect
    monkeypatch.setattr(connections.psycopg2, "connect",
                        lambda *args, **kwargs: plain(*args, **kwargs, connection_factory=Watched))  # fmt: skip
    monkeypatch.setattr(Watched, "taken", [])
    return Watched.taken


def test_every_transaction_takes_its_locks_in_one_order(settings, taken):
    store = opened_store(settings)
    with contextlib.closing(store):
        serve(store, [row(n, n) for n in range(4)])
        pending(settings, 8, 8)
        build(settings, [row(1, 1, title="a"), row(2, 2)], cut=6, run_id="a")
        publish(settings, DAY, "a", accept_vanishing=True)
        serve(store, [row(3, 5), row(8, 8), row(9, 9), tombstone(2, 10, LATER), tombstone(77, 11, LATER)])
        cover(settings, DAY)
        certify_alone(settings, DAY)
        undo(settings, DAY, "r")
        redo(settings, DAY, "r")
        rows(settings, "UPDATE board_detail_covered SET covered_at = covered_at - interval '30 days'")
        prune(settings, DAY)
    several = [transaction for transaction in taken if len(transaction) > 1]
    assert {"day_publication", "board_detail_covered", "board_detail_live"} <= {one for t in several for one in t}
    for transaction in several:
        assert transaction == sorted(transaction, key=ORDER.index), several
