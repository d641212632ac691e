"""Every session of the product has time limits, as logged by PostgreSQL at each login."""

import asyncio

import pytest

from include.archive.catalogue import ArchiveStore
from include.contracts.clock import SystemClock
from include.contracts.errors import DatabaseUnavailable
from include.contracts.pipelines import MEMBER
from include.database.driver_lease import DriverLease
from include.database.generation_store import GenerationStore
from include.database.migrate import migrate
from include.database.offset_ledger import OffsetLedger
from include.database.sessions import SessionLimits, connect
from include.database.stream_progress import StreamProgressStore
from include.gateway.broker_clock import BrokerClock
from include.gateway.system_of_record import PostgresSystemOfRecord
from include.integrity.days.comparison import diff
from include.integrity.days.due_days import dirty_days
from include.integrity.days.pruning import collect_orphans
from include.integrity.days.publication import undo
from include.integrity.pages.page_model import load_rows
from spark_jobs.speed.pending_store import PendingStore
from tests.support.certifying import certify_alone
from tests.support.pipeline import migrated
from tests.support.publication import publish
from tests.support.serving import DAY, build, opened_store, row, serve
from tests.support.session_log import applications, sessions_logged, unlimited
from tests.support.sessions import locked

SESSIONS = {
    "migrate", "gateway", "lease", "ledger", "join", "serve", "stream-progress", "rebuild", f"rebuild {DAY}",
    "rebuild load", "archive", "verify", "diff", "publish", "prune", "certify", "integrity", "orphans", "dirty days",
}  # fmt: skip


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "sessions", tmp_path)


def use_all(settings):
    """Open what gateway, stream, batch, page, commands and stack open."""
    database = settings.database
    migrate(settings)
    asyncio.run(save_member(settings))
    lease = DriverLease(database, "d")
    lease.take()
    OffsetLedger(database).entries("join", "board")
    PendingStore(database, lease).forget_superseded()
    StreamProgressStore(database).read()
    store = opened_store(settings)
    try:
        serve(store, [row(1, 1), row(2, 2)])
    finally:
        store.close()
    with GenerationStore(database).hold(DAY):
        build(settings, [row(1, 1), row(2, 2)], cut=9, run_id="r")
    diff(settings, DAY, "r")
    publish(settings, DAY, "r")
    certify_alone(settings, DAY)
    undo(settings, DAY, "test")
    ArchiveStore(database).ends("board", "id")
    load_rows(settings, "integrity")
    dirty_days(settings)
    collect_orphans(settings)


async def save_member(settings):
    rows = PostgresSystemOfRecord(settings.database, BrokerClock(SystemClock()), 5.0, 60.0)
    try:
        await rows.create(MEMBER, {"nickname": "mina"})
    finally:
        await rows.close()


def test_no_session_of_the_product_waits_for_ever(settings):
    with sessions_logged(settings):
        use_all(settings)
        assert applications(settings) >= SESSIONS
        assert unlimited(settings) == []


@pytest.mark.parametrize(
    ("limits", "wait", "sqlstate"),
    [
        (SessionLimits(statement_s=0.2), "SELECT pg_sleep(30)", "57014"),
        (SessionLimits(lock_s=0.2), "SELECT FROM generation FOR SHARE", "55P03"),
    ],
)
def test_a_session_that_is_given_up_says_that_trying_again_may_help(settings, limits, wait, sqlstate):
    with (
        locked(settings, "generation"),
        pytest.raises(DatabaseUnavailable, match=f"sqlstate={sqlstate}"),
        connect(settings.database, "batch", "test", limits) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(wait)
