"""A standby that analysts read, as docs/deployment/own-servers.md makes it: two real servers, one copying the other."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import psycopg2.errors
import pytest

from include.integrity.days.pruning import collect_orphans
from include.runtime.settings import Settings
from stack.postgres import find, from_wheel, ordinary_user
from tests.servers import PostgresTestServer, postgres_server, wait_until
from tests.support.documents import ROOT, fenced, sql
from tests.support.pipeline import migrated, rows
from tests.support.publication import open_as, publish
from tests.support.serving import DAY, build, opened_store, row, serve
from tests.support.standby import as_superuser, wait_until_replayed

EVERY_DAY = "SELECT day, title, body FROM board_detail_masked"
TABLES = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^detail_final_g[0-9]+$'"
WAITING = "SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
ASLEEP = "SELECT 1 FROM pg_stat_activity WHERE usename = 'analyst' AND wait_event = 'PgSleep'"
RUN_AT = "SELECT pg_last_xact_replay_timestamp()"
LIMITS = ("statement_timeout", "idle_in_transaction_session_timeout", "temp_file_limit", "jit", "timezone",
          "default_transaction_isolation")  # fmt: skip
# Of the relations that analyst may select: the tables that their queries open, through views too.
READ_BY_ANALYSTS = """
WITH RECURSIVE opened AS (
    SELECT c.oid FROM pg_class c WHERE c.relkind IN ('r', 'p', 'v') AND has_table_privilege('analyst', c.oid, 'SELECT')
       AND c.relnamespace = 'public'::regnamespace
    UNION
    SELECT d.refobjid FROM opened o
      JOIN pg_rewrite r ON r.ev_class = o.oid
      JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
                      AND d.refclassid = 'pg_class'::regclass)
SELECT c.relname, COALESCE('vacuum_truncate=off' = ANY (c.reloptions), false)
                  AND (t.oid IS NULL OR COALESCE('vacuum_truncate=off' = ANY (t.reloptions), false))
  FROM opened JOIN pg_class c USING (oid) LEFT JOIN pg_class t ON t.oid = c.reltoastrelid
 WHERE c.relkind = 'r' ORDER BY 1
"""
NEVER_VACUUMED = "detail_empty"


def blocks(language: str) -> list[str]:
    """The section's blocks."""
    found = fenced(ROOT / "docs" / "deployment" / "own-servers.md", language)
    return [block for before, block in found if before.rpartition("\n## ")[2].startswith("A standby for analysts\n")]


@pytest.fixture(scope="module")
def primary(tmp_path_factory) -> Iterator[PostgresTestServer]:
    with postgres_server(tmp_path_factory.mktemp("primary")) as server:
        yield server


@pytest.fixture(scope="module")
def made_standby(primary, tmp_path_factory) -> Iterator[PostgresTestServer]:
    binaries = (from_wheel() or find(os.environ)).postgres.parent
    if not (binaries / "pg_basebackup").exists():
        pytest.skip("this PostgreSQL has no pg_basebackup")
    on_the_primary, on_the_standby, _ = blocks("sql")
    as_superuser(primary, on_the_primary.replace("\\password standby", "ALTER ROLE standby PASSWORD 'copies';"))
    server = PostgresTestServer(tmp_path_factory.mktemp("standby"), {"wal_receiver_status_interval": "1s"})
    variables = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "PGPASSWORD": "copies",
                 "DATABASE_HOST": primary.host, "DATABASE_PORT": str(primary.port),
                 "STANDBY_DATA": str(server.data)}  # fmt: skip
    (command,) = blocks("sh")
    subprocess.run(["bash", "-euc", command], env=variables, check=True, capture_output=True)
    user = ordinary_user()
    if user is not None:
        for path in (server.data, *server.data.rglob("*")):
            shutil.chown(path, user.pw_uid, user.pw_gid)
    try:
        server.start()
        as_superuser(server, on_the_standby)
        yield server
    finally:
        server.stop()


@pytest.fixture
def settings(primary, made_standby, tmp_path) -> Settings:
    return migrated(None, primary, "pipeline", tmp_path)


@pytest.fixture
def standby(settings, primary, made_standby) -> Iterator[PostgresTestServer]:
    wait_until_replayed(primary, made_standby)
    yield made_standby
    wait_until_replayed(primary, made_standby)


def at(server: PostgresTestServer, settings: Settings) -> Settings:
    """The settings of a client that goes there."""
    return replace(settings, database=replace(settings.database, host=server.host, port=server.port))


def published(settings: Settings, title: str) -> None:
    """The day, built again with rows of that title; then the night's collect. The fourth time, it drops a table."""
    listed = [row(n, n, title=title, body="본문" * 400) for n in range(500)]
    build(settings, listed, cut=1000 + ord(title), run_id=title)
    publish(settings, DAY, title, accept_vanishing=True)
    collect_orphans(settings)


@contextmanager
def waits_at_most(standby: PostgresTestServer, delay: str) -> Iterator[None]:
    """Another `max_standby_streaming_delay` in the block."""
    wanted = f"ALTER SYSTEM SET max_standby_streaming_delay = '{delay}';\nSELECT pg_reload_conf()"
    before = as_superuser(standby, "SHOW max_standby_streaming_delay")
    as_superuser(standby, wanted)
    wait_until(lambda: as_superuser(standby, "SHOW max_standby_streaming_delay") == [(delay,)], 30, "it is set")
    try:
        yield
    finally:
        as_superuser(standby, wanted.replace(f"'{delay}'", f"'{before[0][0]}'"))


@contextmanager
def reading(settings: Settings, standby: PostgresTestServer) -> Iterator[Callable[[], list[tuple[object, ...]]]]:
    """A query of all days at the standby that has had its first row; call it for all rows."""
    with closing(open_as(at(standby, settings), "analyst")) as connection, connection.cursor("reader") as cursor:
        cursor.itersize = 1
        cursor.execute(EVERY_DAY)
        first = cursor.fetchone()
        yield lambda: [first, *cursor.fetchall()]


def test_a_query_goes_on_while_a_table_that_it_reads_is_dropped_at_the_primary(settings, primary, standby):
    published(settings, "a")
    wait_until_replayed(primary, standby)
    with reading(settings, standby) as all_rows:
        for title in "bcd":
            published(settings, title)
        assert len(rows(settings, TABLES)) == 3
        wait_until(lambda: as_superuser(standby, WAITING, "pipeline") != [], 30, "the standby waits for the query")
        with pytest.raises(psycopg2.errors.LockNotAvailable):  # others of the view wait behind it
            rows(at(standby, settings), f"SET LOCAL lock_timeout = '0.1s'; {EVERY_DAY}", role="analyst")
        assert rows(at(standby, settings), "SELECT count(*) FROM freshness", role="analyst") == [(1,)]
        assert [title for _, title, _ in all_rows()] == ["a"] * 500
    wait_until_replayed(primary, standby)
    assert len(rows(at(standby, settings), TABLES)) == 3


def test_an_incremental_run_at_the_standby_begins_where_the_rows_end(settings, primary, standby):
    as_superuser(standby, "SELECT pg_wal_replay_pause()")
    try:
        published(settings, "a")
        ((run_at, clock),) = rows(at(standby, settings), f"{RUN_AT}, now()", role="analyst")
    finally:
        as_superuser(standby, "SELECT pg_wal_replay_resume()")
    wait_until_replayed(primary, standby)
    since = "SELECT count(*) FROM board_detail_masked WHERE shown_since > %s"
    counts = [rows(at(standby, settings), since, (moment,), role="analyst") for moment in (run_at, clock)]
    assert counts == [[(500,)], [(0,)]]


def test_a_query_that_the_standby_does_not_wait_for_is_cancelled_with_40001(settings, primary, standby):
    published(settings, "a")
    wait_until_replayed(primary, standby)
    question = "SELECT count(*) FROM board_detail_masked, pg_sleep(60)"
    with ThreadPoolExecutor() as threads, waits_at_most(standby, "0"):
        asked = threads.submit(rows, at(standby, settings), question, role="analyst")
        wait_until(lambda: as_superuser(standby, ASLEEP) != [], 30, "the query is under way")
        for title in "bcd":
            published(settings, title)
        with pytest.raises(psycopg2.errors.SerializationFailure):
            asked.result()


def test_rows_that_a_query_can_see_are_not_vacuumed_away(settings, primary, standby):
    with closing(opened_store(settings)) as store:
        serve(store, [row(n, n, title="a") for n in range(100)])
        wait_until_replayed(primary, standby)
        with reading(settings, standby) as all_rows:
            serve(store, [row(n, 100 + n, title="b") for n in range(100)])
            as_superuser(primary, "VACUUM detail_live", "pipeline")
            wait_until_replayed(primary, standby)
            assert [title for _, title, _ in all_rows()] == ["a"] * 100


def test_a_table_that_is_vacuumed_holds_nothing_up(settings, primary, standby):
    with closing(opened_store(settings)) as store:
        serve(store, [row(n, n, body="본문" * 400) for n in range(500)])
    rows(settings, "DELETE FROM detail_live WHERE board_id > 1")
    ((deleted,),) = rows(settings, "SELECT pg_current_xact_id()::text::bigint")
    seen = f"SELECT xmin::text::bigint >= {deleted} FROM pg_replication_slots"
    wait_until(lambda: as_superuser(primary, seen) == [(True,)], 60, "no query of the standby sees what was deleted")
    wait_until_replayed(primary, standby)
    with closing(open_as(at(standby, settings), "analyst")) as connection, connection.cursor() as cursor:
        cursor.execute(EVERY_DAY)  # keeps its locks
        as_superuser(primary, "VACUUM detail_live", "pipeline")
        wait_until_replayed(primary, standby)


def test_no_table_that_analysts_read_is_shortened_by_vacuum(settings):
    found = dict(rows(settings, READ_BY_ANALYSTS))
    assert "detail_live" in found
    assert [name for name, is_kept in found.items() if not is_kept] == [NEVER_VACUUMED]


def test_the_limits_of_analysts_hold_at_the_standby(settings, standby):
    there = at(standby, settings)
    for name in LIMITS:
        assert rows(there, f"SHOW {name}", role="analyst") == rows(settings, f"SHOW {name}", role="analyst")
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        rows(there, "SELECT pg_advisory_lock(1)", role="analyst")
    with ExitStack() as sessions:
        for _ in range(20):
            sessions.enter_context(closing(open_as(there, "analyst")))
        with pytest.raises(psycopg2.OperationalError, match="too many connections for role"):
            open_as(there, "analyst")


def test_the_queries_of_the_guide_run_at_the_standby_and_one_says_how_old_its_rows_are(settings, primary, standby):
    rows(settings, "INSERT INTO stream_progress (query, driver_id, watermark) VALUES ('serve', 'd', now())")
    rows(settings, "INSERT INTO stream_watermark VALUES (now() - interval '1 hour', now() - interval '2 hours')")
    wait_until_replayed(primary, standby)
    ages = []
    for block in sql(ROOT / "docs" / "analysts.md", "analyst"):
        for statement in block.statements:
            found = rows(at(standby, settings), statement, role="analyst")
            ages += found if "replay" in statement else []
    (shown_until, behind), (run_at,) = ages
    assert None not in (shown_until, run_at)
    assert behind.total_seconds() >= 0


def test_the_primary_says_how_far_the_standby_is(primary, standby):
    ((slot, status, _, state, _),) = as_superuser(primary, blocks("sql")[2])
    assert (slot, status, state) == ("standby", "reserved", "streaming")


def test_a_standby_goes_on_where_it_was_when_either_server_comes_back(settings, primary, standby):
    published(settings, "a")
    standby.stop()
    published(settings, "b")
    primary.stop()
    standby.start()
    primary.start()
    wait_until_replayed(primary, standby)
    assert rows(at(standby, settings), "SELECT DISTINCT title FROM board_detail_masked", role="analyst") == [("b",)]


def test_logical_replication_is_refused(primary):
    with pytest.raises(psycopg2.errors.ObjectNotInPrerequisiteState):
        as_superuser(primary, "SELECT pg_create_logical_replication_slot('warehouse', 'pgoutput')")


def test_a_subscriber_would_see_empty_days(postgres, tmp_path):
    """The reason why subscribers are refused: neither a generation's table nor its rows are replicated."""
    with postgres_server(tmp_path, {"wal_level": "logical"}) as publisher:
        settings = migrated(None, publisher, "published", tmp_path)
        subscriber = migrated(None, postgres, "subscribed", tmp_path)
        tables = "detail_final, detail_live, day_publication, generation"
        as_superuser(publisher, f"CREATE PUBLICATION days FOR TABLE {tables}", "published")
        dsn = publisher.superuser_dsn("published")
        as_superuser(postgres, f"CREATE SUBSCRIPTION days CONNECTION '{dsn}' PUBLICATION days", "subscribed")
        try:
            published(settings, "a")
            status = "SELECT status, row_count FROM day_status"
            wait_until(lambda: rows(subscriber, status) == [("rebuilt", 500)], 60, "the day's pointer is replicated")
            assert rows(settings, "SELECT count(*) FROM board_detail") == [(500,)]
            assert rows(subscriber, "SELECT count(*) FROM board_detail") == [(0,)]
        finally:
            as_superuser(postgres, "DROP SUBSCRIPTION days", "subscribed")
