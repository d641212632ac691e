"""Failures of PostgreSQL while batches are written: nothing is lost, nothing takes effect twice."""

import datetime as dt
import logging
import secrets
from contextlib import contextmanager

import pytest

import spark_jobs.speed.live_table as live_table_sink
from include.contracts.errors import DriverSuperseded, LedgerConflict
from include.database.driver_lease import DriverLease
from include.database.sessions import SessionLimits
from tests.servers import wait_until
from tests.support.pipeline import migrated, rows
from tests.support.serving import NOON, Writing, opened_store, row
from tests.support.sessions import execute, is_connected, is_waiting, locked, session, terminate

VIEW = "SELECT board_id, title FROM board_detail ORDER BY board_id"
LEDGER = "SELECT next_offset FROM offset_ledger"
REJECTS = 'SELECT "offset", reason, convert_from(key, \'UTF8\'), rejected_by FROM reject ORDER BY "offset"'
YEAR_ZERO = -719_528  # in days from 1970: Arrow and Spark know that year, PostgreSQL reads no such date
QUICK_LOCKS = SessionLimits(lock_s=0.3)
QUICK_STATEMENTS = SessionLimits(statement_s=0.3)
QUICK_IDLING = SessionLimits(idle_in_transaction_s=0.2)

FIRST, SECOND = [row(1, 0), row(2, 1)], [row(2, 2, modified_at=NOON + dt.timedelta(minutes=1)), row(3, 3),
                                         row(4, 4, reason="broken")]  # fmt: skip


@pytest.fixture(scope="module")
def database(own_postgres, tmp_path_factory):
    return migrated(None, own_postgres, "faults", tmp_path_factory.mktemp("faults"))


@pytest.fixture
def settings(database):
    """An empty database; what a test changed of its schema it takes back itself."""
    execute(database, "TRUNCATE detail_live, offset_ledger, reject, pending_record, day_publication, dirty_day,"
                      " stream_driver CASCADE")  # fmt: skip
    return database


@pytest.fixture
def writing(settings):
    with written_by(settings) as writer:
        yield writer


@contextmanager
def written_by(settings, limits=None):
    """A writer that has written the first batch."""
    writer = Writing(opened_store(settings, limits=limits))
    try:
        writer.give(FIRST)
        writer.finish()
        yield writer
    finally:
        writer.stop.set()
        writer.writer.close(max_wait_s=5)


def is_all_there_once(settings, writing):
    """Both batches are written, and each took effect once."""
    writing.finish()
    assert rows(settings, VIEW) == [(1, "v0"), (2, "v2"), (3, "v3")]
    assert rows(settings, LEDGER) == [(5,)]
    assert rows(settings, REJECTS) == [(4, "broken", None, "serve")]
    assert writing.state.counts() == {"rows_written": 4, "rejects": 1, "duplicates": 0}
    assert writing.waits_for == ""
    return True


def test_without_a_fault(settings, writing):
    writing.give(SECOND)
    assert is_all_there_once(settings, writing)
    last = writing.state.last_batch("serve")
    assert (last.rows, last.newest_at) == (3, NOON)
    assert set(last.phases_s) == {"read", "wait", "decode", "copy", "merge", "commit"}


@pytest.mark.parametrize(
    "table", ["stream_driver", "offset_ledger", "day_publication", "pending_record", "detail_live", "reject"]
)
def test_the_backend_is_ended_at_each_step(settings, writing, table):
    with locked(settings, table):
        writing.give(SECOND)
        wait_until(lambda: is_waiting(settings, "serve"), 20, f"the batch stands before {table}")
        assert terminate(settings, "serve") == 1
        writing.wait_until_it_says("BatchInterrupted")
    assert is_all_there_once(settings, writing)


def test_the_backend_is_ended_at_the_commit(settings, writing):
    with held_at_commit(settings) as free:
        writing.give(SECOND)
        wait_until(lambda: is_waiting(settings, "serve"), 20, "the batch stands at its commit")
        assert rows(settings, LEDGER) == [(2,)]
        assert terminate(settings, "serve") == 1
        writing.wait_until_it_says("BatchInterrupted")
        free()
        assert is_all_there_once(settings, writing)


def test_the_answer_to_a_commit_is_lost(settings, writing, monkeypatch):
    lost = iter(["serve.after_commit"])

    def lose_the_first(place):
        if place == "serve.after_commit" and next(lost, None):
            raise live_table_sink.psycopg2.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(live_table_sink, "failpoint", lose_the_first)
    writing.give(SECOND)
    writing.finish()
    assert rows(settings, VIEW) == [(1, "v0"), (2, "v2"), (3, "v3")]
    assert rows(settings, LEDGER) == [(5,)]
    assert len(rows(settings, REJECTS)) == 1


def test_the_server_is_down_for_a_while(settings, writing, own_postgres):
    own_postgres.stop()
    try:
        writing.give(SECOND)
        writing.wait_until_it_says("DatabaseUnavailable")
    finally:
        own_postgres.start()
    assert is_all_there_once(settings, writing)


def test_the_server_is_restarted_in_the_middle_of_a_transaction(settings, writing, own_postgres):
    with locked(settings, "offset_ledger", "EXCLUSIVE"):
        writing.give(SECOND)
        wait_until(lambda: is_waiting(settings, "serve"), 20, "rows are written and the ledger is not moved")
        own_postgres.stop()
    own_postgres.start()
    assert is_all_there_once(settings, writing)


def test_the_database_is_read_only_for_a_while(settings, writing):
    try:
        execute(settings, "ALTER DATABASE faults SET default_transaction_read_only = on")
        terminate(settings, "serve")
        writing.give(SECOND)
        writing.wait_until_it_says("sqlstate=25006")
    finally:
        with session(settings) as connection, connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION READ WRITE")
            cursor.execute("ALTER DATABASE faults RESET default_transaction_read_only")
    assert is_all_there_once(settings, writing)


@pytest.mark.parametrize(("limits", "code"), [(QUICK_LOCKS, "55P03"), (QUICK_STATEMENTS, "57014")])
def test_a_table_is_locked_for_longer_than_the_session_waits(settings, limits, code):
    with written_by(settings, limits) as writing:
        with locked(settings, "detail_live"):
            writing.give(SECOND)
            writing.wait_until_it_says(f"sqlstate={code}")
        assert is_all_there_once(settings, writing)


def test_a_driver_that_stood_still_in_a_transaction_lost_it_and_goes_on(settings, monkeypatch):
    with written_by(settings, QUICK_IDLING) as writing:
        pauses = iter(["serve.before_commit"])

        def stand_still(place):
            if place == "serve.before_commit" and next(pauses, None):
                wait_until(lambda: not is_connected(settings, "serve"), 20, "PostgreSQL ended the session")

        monkeypatch.setattr(live_table_sink, "failpoint", stand_still)
        writing.give(SECOND)
        assert is_all_there_once(settings, writing)


def test_a_deadlock_ends_with_the_batch_written_again(settings, writing):
    # PostgreSQL looks once: late enough to find the circle also on a busy machine
    execute(settings, "ALTER ROLE stream IN DATABASE faults SET deadlock_timeout = '5s'")
    terminate(settings, "serve")
    connection = session(settings)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET deadlock_timeout = '60s'")  # so that the batch is the one that is given up
            cursor.execute("SELECT FROM detail_live WHERE board_id = 2 FOR UPDATE")
            writing.give([row(1, 2, modified_at=NOON + dt.timedelta(minutes=1)),
                          row(2, 3, modified_at=NOON + dt.timedelta(minutes=1))])  # fmt: skip
            wait_until(lambda: is_waiting(settings, "serve"), 20, "the batch has board 1 and waits for board 2")
            cursor.execute("SELECT FROM detail_live WHERE board_id = 1 FOR UPDATE")  # waits for the batch
            writing.wait_until_it_says("sqlstate=40P01")
    finally:
        connection.close()
        execute(settings, "ALTER ROLE stream IN DATABASE faults RESET deadlock_timeout")
    writing.finish()
    assert rows(settings, VIEW) == [(1, "v2"), (2, "v3")]
    assert rows(settings, LEDGER) == [(4,)]


def test_rows_that_postgresql_refuses_are_rejects_and_the_others_are_written(settings, writing, caplog):
    execute(settings, "ALTER TABLE detail_live ADD CONSTRAINT no_spam CHECK (title <> 'spam')")
    execute(settings, "CREATE INDEX too_narrow ON detail_live (title)")
    try:
        later = NOON + dt.timedelta(minutes=1)
        batch = [row(board, offset) for offset, board in enumerate(range(10, 60), start=2)]
        batch[7] = row(17, 9, event_id="secret\0text")
        batch[10] = row(20, 12, day=YEAR_ZERO)
        batch[20] = row(1, 22, title="spam", modified_at=later)  # an update: it stands in the staged part
        batch[33] = row(43, 35, title=secrets.token_hex(8_000))  # PostgreSQL's own limit of an index row
        batch[41] = row(51, 43, title="spam")
        batch[42] = row(50, 44, title="newer", modified_at=later)
        with caplog.at_level(logging.DEBUG):
            writing.give(batch)
            writing.finish()
        refused = "PostgreSQL refuses the row: SQLSTATE {}; the record stands in the topic until it expires"
        assert rows(settings, REJECTS) == [
            (9, refused.format("22021, column event_id"), "17", "serve"),
            (12, refused.format("23514, constraint detail_live_has_a_year"), "20", "serve"),
            (22, refused.format("23514, constraint no_spam"), "1", "serve"),
            (35, refused.format("54000"), "43", "serve"),
            (43, refused.format("23514, constraint no_spam"), "51", "serve"),
        ]
        expected = {1: "v0", 2: "v1"} | {board: f"v{board - 8}" for board in range(10, 60)} | {50: "newer"}
        for board in (17, 20, 30, 43, 51, 52):  # refused, and 30 and 52 are not in the batch
            del expected[board]
        assert dict(rows(settings, VIEW)) == expected
        assert rows(settings, LEDGER) == [(52,)]
        assert writing.state.counts()["rejects"] == 5
        assert "secret" not in caplog.text
    finally:
        execute(settings, "ALTER TABLE detail_live DROP CONSTRAINT no_spam")
        execute(settings, "DROP INDEX too_narrow")


def test_a_moved_ledger_ends_the_writing(settings, writing):
    rows(settings, "UPDATE offset_ledger SET next_offset = 0")
    writing.give(SECOND)
    with pytest.raises(LedgerConflict):
        writing.finish()
    with pytest.raises(LedgerConflict):  # what comes after would pass over what was not written
        writing.give([row(5, 5)])
    assert rows(settings, VIEW) == [(1, "v0"), (2, "v1")]


def test_a_driver_whose_lease_was_taken_writes_no_more(settings, writing):
    later = DriverLease(settings.database, "later")
    with locked(settings, "offset_ledger"):
        writing.give(SECOND[:1])
        wait_until(lambda: is_waiting(settings, "serve"), 20, "the batch holds the lease")
    writing.finish()
    later.take()
    writing.give(SECOND[1:])
    with pytest.raises(DriverSuperseded, match="later=2 on "):
        writing.finish()
    assert rows(settings, VIEW) == [(1, "v0"), (2, "v2")]
    assert rows(settings, LEDGER) == [(3,)]


def test_stopping_breaks_off_what_waits_and_writes_nothing(settings, writing):
    with locked(settings, "detail_live"):
        writing.give(SECOND)
        wait_until(lambda: is_waiting(settings, "serve"), 20, "the batch waits for the table")
        writing.stop.set()
        assert writing.give([row(5, 5)]) is False
        assert writing.writer.close(max_wait_s=0.2) is False
        wait_until(lambda: not is_connected(settings, "serve"), 20, "the session is gone")
    assert rows(settings, LEDGER) == [(2,)]
    assert rows(settings, VIEW) == [(1, "v0"), (2, "v1")]


def test_stopping_lets_a_batch_under_way_come_to_its_end(settings, writing):
    with locked(settings, "offset_ledger", "EXCLUSIVE"):
        writing.give(SECOND)
        wait_until(lambda: is_waiting(settings, "serve"), 20, "the batch waits for the ledger")
        writing.stop.set()
    assert writing.writer.close(max_wait_s=20) is True
    assert is_all_there_once(settings, writing)


@contextmanager
def held_at_commit(settings):
    """Transactions that move the ledger stand still in their COMMIT until the block calls what it is given."""
    execute(settings, "CREATE FUNCTION stand_still() RETURNS trigger LANGUAGE plpgsql AS"
                      " 'BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END'")  # fmt: skip
    execute(settings, "CREATE CONSTRAINT TRIGGER stand_still AFTER UPDATE ON offset_ledger"
                      " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION stand_still()")  # fmt: skip
    connection = session(settings)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(42)")
        yield connection.close
    finally:
        connection.close()
        execute(settings, "DROP FUNCTION stand_still CASCADE")
