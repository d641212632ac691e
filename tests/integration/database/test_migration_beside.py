"""A migration of a database in use: no session waits for long, and its error names the session that blocks it."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg2
import pytest

from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database import migrate as migration
from include.database.migrate import MigrationBlocked, migrate
from include.database.named import query
from include.database.sessions import SessionLimits, connect
from include.runtime.settings import Settings
from tests.servers import wait_until
from tests.support.database import database_environment
from tests.support.migrations import make_up_here
from tests.support.pipeline import rows
from tests.support.publication import open_as
from tests.support.sessions import execute, is_waiting

STATEMENTS = (
    "CREATE TABLE of_the_test (day date)",  # takes no table's lock
    "ALTER TABLE day_publication ADD COLUMN of_the_test text",
)  # changes a table that the view reads
REVISION = "SELECT version_num FROM alembic_version"


@pytest.fixture
def settings(postgres):
    """A database at the newest revision."""
    postgres.new_database("beside")
    settings = Settings.from_environment({"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9",
                                          **database_environment(postgres, "beside")})  # fmt: skip
    migrate(settings)
    rows(settings, "INSERT INTO day_publication (day) VALUES ('2026-11-20')")
    return settings


@pytest.fixture(autouse=True)
def made_up(settings, monkeypatch, tmp_path):
    """Revisions of two further migrations, the second of which an analyst can block."""
    return make_up_here(monkeypatch, tmp_path / "migrations", *STATEMENTS)


@pytest.fixture
def analyst(settings):
    """A session in whose transaction a query of the view was made."""
    with contextlib.closing(open_as(settings, "analyst")) as connection, connection.cursor() as cursor:
        cursor.execute("SET application_name = 'notebook'")
        cursor.execute("SELECT FROM board_detail_masked WHERE day = '2026-11-20'")
        yield connection


class Writer:
    """Locks the day repeatedly, as batches of the stream do; PostgreSQL cancels a wait beyond the limit."""

    LIMITS = SessionLimits(lock_s=migration.STEP.lock_s + 3.0)

    def __init__(self, settings):
        self.settings = settings
        self.batches = 0
        self.stop = threading.Event()

    def __call__(self):
        while not self.stop.is_set():
            with (
                connect(self.settings.database, "stream", "serve", self.LIMITS) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute(query("lock_days", PIPELINE), {"days": [20_777]})
            self.batches += 1
        return self.batches

    @contextlib.contextmanager
    def writing(self):
        with ThreadPoolExecutor(1) as thread:
            result = thread.submit(self)
            try:
                yield self
            finally:
                self.stop.set()
            assert result.result(60)


def test_nobody_waits_long_behind_a_migration_that_waits_for_an_analyst(settings, analyst, made_up, caplog):
    with Writer(settings).writing() as writer, ThreadPoolExecutor(1) as thread:
        migrating = thread.submit(migrate, settings)
        for _ in range(2):
            wait_until(lambda: migrating.done() or is_waiting(settings, "serve"), 60, "a batch waits for the migration")
            assert not migrating.done(), migrating.result()
            before = writer.batches
            wait_until(lambda before=before: writer.batches > before, 60, "the migration gives way")
        assert not migrating.done()
        analyst.rollback()
        assert migrating.result(60) == made_up[1]
    assert "of user analyst (application notebook, idle in transaction" in caplog.text


def test_a_migration_that_gives_up_names_the_session_and_what_ends_it(settings, analyst, made_up, monkeypatch):
    monkeypatch.setattr(migration, "MAX_WAIT_S", 0.0)  # one try
    pid = analyst.info.backend_pid
    with pytest.raises(MigrationBlocked) as error:
        migrate(settings)
    assert f"session {pid} of user analyst (application notebook, idle in transaction" in str(error.value)
    assert "day_publication" in str(error.value)
    assert rows(settings, REVISION) == [(made_up[0],)]  # what went before it stays
    end = str(error.value).partition(": SELECT ")[2].partition(";")[0]
    assert execute(settings, f"SELECT {end}") == [(True,)]
    with pytest.raises(psycopg2.Error):
        analyst.cursor().execute("SELECT")
    assert migrate(settings) == made_up[1]


def test_a_migration_whose_session_is_ended_is_tried_again(settings, analyst, made_up):
    with ThreadPoolExecutor(1) as thread:
        migrating = thread.submit(migrate, settings)
        wait_until(lambda: is_waiting(settings, "migrate"), 60, "the migration waits")
        execute(settings, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                          " WHERE datname = current_database() AND wait_event_type = 'Lock'")  # fmt: skip
        analyst.rollback()
        assert migrating.result(60) == made_up[1]
