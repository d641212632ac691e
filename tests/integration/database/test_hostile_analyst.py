"""A malicious analyst on a new stack can neither disturb the pipeline nor read masked values."""

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg2
import psycopg2.errors
import pytest
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from include.contracts.day import Day
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.migrate import ANALYST_LIMITS, migrate
from include.database.named import query
from include.database.sessions import connect, open_connection, save_login_role
from include.integrity.pages.day_page import load_day
from include.integrity.pages.page_model import load_rows
from include.runtime.settings import Settings
from stack import env_file
from stack.jobs import create_databases
from tests.servers import PostgresTestServer, postgres_server
from tests.support.documents import ROOT, fenced
from tests.support.pipeline import rows

PHONE = "010-1234-5678"
SHOWN = {"board_detail_masked", "board_detail_certified", "day_status", "day_trust", "day_certificate", "freshness",
         "alert", "day_acknowledgement"}  # fmt: skip
LIMITS = ("statement_timeout", "idle_in_transaction_session_timeout", "temp_file_limit",
          "default_transaction_isolation")  # fmt: skip
OF_ANALYSTS = ["10min", "1min", "2GB", "repeatable read"]
OF_THE_PIPELINE = ["0", "0", "-1", "read committed"]
ROLES = ("pipeline_owner", "gateway", "stream", "batch", "integrity")
ROW = """
INSERT INTO day_publication (day) VALUES ('2026-11-20');
INSERT INTO detail_live (board_id, member_id, phone, title, day, stream_partition, stream_offset)
SELECT n, 7, %(phone)s, 'a post', '2026-11-20', 0, n FROM generate_series(1, 9) n;
"""
READABLE = """
SELECT c.relname FROM pg_class c
 WHERE c.relnamespace IN ('public'::regnamespace, 'generations'::regnamespace)
   AND c.relkind IN ('r', 'p', 'v', 'm', 'S')
   AND CASE c.relkind WHEN 'S' THEN has_sequence_privilege(%(role)s, c.oid, 'SELECT, USAGE')
            ELSE has_any_column_privilege(%(role)s, c.oid, 'SELECT') END
"""
WRITABLE = """
SELECT c.relname FROM pg_class c
 WHERE c.relnamespace IN ('public'::regnamespace, 'generations'::regnamespace)
   AND c.relkind IN ('r', 'p', 'v', 'm')
   AND has_table_privilege(%(role)s, c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
"""
# Roles and rights in the server's and the database's catalogues; CREATEROLE of the owner is the local stack's.
RIGHTS = """
SELECT 'function', p.oid::regprocedure::text, '', acl::text FROM pg_proc p, unnest(p.proacl) acl
UNION ALL SELECT 'database', datname, '', acl::text FROM pg_database, unnest(datacl) acl
UNION ALL SELECT 'settings', d.datname, r.rolname, config FROM pg_db_role_setting s
   LEFT JOIN pg_database d ON d.oid = setdatabase LEFT JOIN pg_roles r ON r.oid = setrole, unnest(setconfig) config
UNION ALL SELECT 'role', rolname, rolcanlogin::text, rolconnlimit::text FROM pg_roles
UNION ALL SELECT 'member', roleid::regrole::text, member::regrole::text, admin_option::text FROM pg_auth_members
 ORDER BY 1, 2, 3, 4
"""
LEAKS = """
SELECT phone::bigint FROM board_detail_masked
SELECT 1 FROM board_detail_masked WHERE phone::bigint = 1
SELECT 1 / (char_length(phone) - 13) FROM board_detail_masked
SELECT * FROM board_detail_masked m WHERE m::text::bigint = 1
EXPLAIN (ANALYZE, VERBOSE) SELECT phone FROM board_detail_masked WHERE phone > '0'
SELECT s::text FROM pg_stats s WHERE s.attname = 'phone'
SELECT e::text FROM pg_stats_ext e
SELECT query::text FROM pg_stat_activity
SELECT table_to_xml('board_detail_masked', true, true, '')
SELECT string_agg(m::text, ' ') FROM board_detail_masked m
SELECT string_agg(m::text, ' ') FROM board_detail_by_key(ARRAY[1, 2, 3]) m
SELECT 1 / (char_length(phone) - 13) FROM board_detail_by_key(ARRAY[1, 2, 3])
"""
REFUSED = """
SELECT pg_advisory_lock(7203002, 20777)
SELECT pg_advisory_xact_lock(7203003, 20777)
SELECT pg_advisory_lock_shared(7203004, 0)
SELECT pg_try_advisory_lock(7203001)
SELECT pg_try_advisory_xact_lock_shared(1)
SELECT lo_create(0)
SELECT lo_creat(-1)
SELECT lo_from_bytea(0, 'x')
SELECT lo_import('/etc/passwd')
SELECT pg_logical_emit_message(false, 'a', 'much')
SELECT pg_export_snapshot()
DO $$ BEGIN RAISE LOG 'much'; END $$
SELECT schema_to_xmlschema('public', true, true, '')
ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO analyst
CREATE TEMPORARY TABLE mine AS SELECT generate_series(1, 10)
SELECT 1 AS one INTO TEMPORARY mine
CREATE FUNCTION pg_temp.leak(text) RETURNS text LANGUAGE sql COST 0.0001 AS 'SELECT $1'
CREATE FUNCTION public.leak(text) RETURNS text LANGUAGE sql COST 0.0001 AS 'SELECT $1'
CREATE TABLE public.mine (a int)
CREATE VIEW public.mine AS SELECT 1
CREATE SCHEMA mine
CREATE EXTENSION pg_trgm
CREATE DATABASE mine
CREATE ROLE mine
LOCK TABLE board_detail_masked IN SHARE MODE
LOCK TABLE day_publication IN ACCESS SHARE MODE
SELECT * FROM board_detail_masked FOR SHARE
SELECT phone FROM board_detail
SELECT phone FROM detail_live
SELECT phone FROM detail_final
SELECT query_to_xml('SELECT phone FROM detail_live', true, true, '')
SELECT was_pending(1, 1) FROM generation_excluded
SELECT stavalues1 FROM pg_statistic
SELECT rolpassword FROM pg_authid
SELECT pg_read_file('PG_VERSION')
SELECT pg_ls_dir('.')
COPY (SELECT 1) TO PROGRAM 'true'
COPY (SELECT 1) TO '/tmp/mine'
SET temp_file_limit = -1
SET log_statement = 'none'
SET session_replication_role = 'replica'
SET ROLE batch
SET ROLE analyst_personal
SET SESSION AUTHORIZATION postgres
ALTER ROLE analyst CONNECTION LIMIT -1
ALTER ROLE analyst CREATEROLE
ALTER ROLE analyst SET temp_file_limit = -1
ALTER ROLE stream SET statement_timeout = 1
ALTER ROLE stream PASSWORD 'mine'
GRANT batch TO analyst
ALTER DATABASE pipeline SET statement_timeout = 0
ALTER VIEW board_detail_masked SET (security_invoker = true)
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'stream'
SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE usename = 'stream'
SELECT pg_database_size('airflow')
SELECT pg_create_logical_replication_slot('mine', 'test_decoding')
SELECT pg_create_physical_replication_slot('mine', true)
SELECT pg_stat_reset()
SELECT pg_switch_wal()
CHECKPOINT
"""


# PostgreSQL checks the rights of some of these only after it has waited for the table's lock, with others behind them.
LOCKING = """
CREATE RULE mine AS ON INSERT TO detail_live DO NOTHING
CREATE TRIGGER mine BEFORE INSERT ON detail_live EXECUTE FUNCTION suppress_redundant_updates_trigger()
CREATE STATISTICS mine ON day, title FROM detail_live
CREATE INDEX mine ON detail_live (title)
CREATE POLICY mine ON detail_live
COMMENT ON TABLE detail_live IS 'mine'
COMMENT ON COLUMN detail_live.title IS 'mine'
ALTER TABLE detail_live ADD COLUMN mine int
ALTER TABLE detail_live RENAME TO mine
DROP TABLE detail_live
TRUNCATE detail_live
CLUSTER detail_live USING detail_live_pkey
REINDEX TABLE detail_live
LOCK TABLE detail_live IN ACCESS SHARE MODE
GRANT SELECT ON detail_live TO analyst
REVOKE SELECT ON detail_live FROM stream
SELECT brin_summarize_new_values('detail_live_pkey')
SELECT brin_summarize_range('detail_live_pkey', 0)
SELECT brin_desummarize_range('detail_live_pkey', 0)
SELECT gin_clean_pending_list('detail_live_pkey')
SELECT table_to_xml('detail_live', true, true, '')
SELECT table_to_xmlschema('detail_live', true, true, '')
SELECT table_to_xml_and_xmlschema('detail_live', true, true, '')
"""


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[PostgresTestServer]:
    with postgres_server(tmp_path_factory.mktemp("hostile")) as found:
        yield found


@pytest.fixture(scope="module")
def variables(server, tmp_path_factory) -> Mapping[str, str]:
    return variables_of(server, tmp_path_factory.mktemp("env") / ".env")


@pytest.fixture(scope="module")
def settings(variables) -> Settings:
    create_databases(variables)
    found = Settings.from_environment(variables)
    migrate(found)
    rows(found, ROW, {"phone": PHONE}, role="stream")
    return found


@pytest.fixture(scope="module")
def personal(settings, server) -> Iterator[list[str]]:
    """Roles of persons, each with its own login."""
    names = [f"person_{number}" for number in range(5)]
    with superuser(server) as connection, connection.cursor() as cursor:
        for name in names:
            make_person(cursor, name)
        yield names


def variables_of(server: PostgresTestServer, path: Path) -> Mapping[str, str]:
    env_file.ensure(path)
    given = {"DATABASE_PORT": str(server.port), "POSTGRES_SUPERUSER_PASSWORD": server.superuser_password}
    return env_file.read(path) | given


def make_person(cursor: Cursor, name: str, connections: int = 20) -> None:
    """As docs/deployment/own-servers.md says, with another limit of connections."""
    (block,) = (text for _, text in fenced(ROOT / "docs/deployment/own-servers.md", "sql") if "kim" in text)
    assert "CONNECTION LIMIT 5;" in block
    for line in block.replace("kim", name).replace("LIMIT 5", f"LIMIT {connections}").splitlines():
        if line == f"\\password {name}":
            save_login_role(cursor, name, "own")
        else:
            cursor.execute(line)


@contextlib.contextmanager
def superuser(server: PostgresTestServer, database: str = "pipeline") -> Iterator[Connection]:
    with contextlib.closing(psycopg2.connect(server.superuser_dsn(database))) as connection:
        connection.autocommit = True
        yield connection


def rights(server: PostgresTestServer) -> list[tuple[str, ...]]:
    with superuser(server) as connection, connection.cursor() as cursor:
        cursor.execute(RIGHTS)
        return cursor.fetchall()


def login(settings: Settings, user: str = "analyst", database: str = "", password: str = "") -> Connection:
    found = settings.database
    connection = psycopg2.connect(
        host=found.host, port=found.port, dbname=database or found.name, user=user,
        password=password or found.passwords.get(user, "own"),
    )  # fmt: skip
    connection.autocommit = True
    return connection


def shown(settings: Settings, user: str, name: str) -> str:
    with contextlib.closing(login(settings, user)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SHOW {name}")
        return str(cursor.fetchone()[0])


def test_an_administrator_who_follows_the_document_gives_the_same_rights(settings, server, tmp_path, caplog):
    (block,) = (text for _, text in fenced(ROOT / "docs/deployment/own-servers.md", "sql") if "CREATE DATABASE" in text)
    limits = ANALYST_LIMITS.read_text()
    with postgres_server(tmp_path) as other:
        variables = variables_of(other, tmp_path / ".env")
        without = Settings.from_environment({**variables, "POSTGRES_SUPERUSER_PASSWORD": ""})
        passwords = re.findall(r"CREATE ROLE (\w+) LOGIN; +-- (DB_[A-Z]+_PASSWORD)", block)
        with superuser(other, "postgres") as connection, connection.cursor() as cursor:
            for statement in filter(str.strip, re.sub("--.*", "", block).split(";")):
                cursor.execute(statement)
            for role, name in passwords:
                save_login_role(cursor, role, variables[name])  # as psql's \password
        migrate(without)
        assert "limit_analysts.sql" in caplog.text
        caplog.clear()
        with superuser(other) as connection, connection.cursor() as cursor:
            cursor.execute(limits)
        migrate(without)
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
        assert rights(other) == rights(server)


def test_an_analyst_reads_what_is_meant_for_analysts(settings):
    for name in SHOWN:
        rows(settings, f"SELECT * FROM {name}", role="analyst")
    assert rows(settings, "SELECT phone FROM board_detail_masked", role="analyst") == [("***********78",)] * 9
    assert {name for (name,) in rows(settings, READABLE, {"role": "analyst"})} == SHOWN
    assert rows(settings, WRITABLE, {"role": "analyst"}) == []


def test_the_integrity_page_reads_what_it_shows(settings):
    assert [found.status.day.isoformat() for found in load_rows(settings, "integrity")] == ["2026-11-20"]
    assert load_day(settings, Day.parse("2026-11-20", settings.timezone)) is not None
    whole = {"day_status", "day_trust", "day_correction", "day_certificate", "waiting_record", "publication", "alert",
             "gateway_store", "offset_ledger", "stream_progress", "day_acknowledgement"}  # fmt: skip
    # columns of these, none of them personal: keys, days, versions, coordinates, reasons
    parts = {"archive_batch", "board_detail", "database_timeline", "day_publication", "detail_covered",
             "detail_final", "detail_live", "forgotten_key", "generation", "generation_excluded", "pending_record",
             "reject"}  # fmt: skip
    for view in whole:
        rows(settings, f"SELECT * FROM {view}", role="integrity")
    readable = {name for (name,) in rows(settings, READABLE, {"role": "integrity"})}
    assert readable == whole | parts
    assert rows(settings, WRITABLE, {"role": "integrity"}) == []
    for refused in (
        *(f"SELECT * FROM {table}" for table in sorted(parts)),
        "CREATE TEMPORARY TABLE mine (a int)",
        "SELECT pg_advisory_lock(1)",
    ):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            rows(settings, refused, role="integrity")


@pytest.mark.parametrize("statement", lines(REFUSED))
def test_an_analyst_is_refused(settings, statement):
    stream = contextlib.closing(open_connection(settings.database, "stream"))
    with stream, contextlib.closing(login(settings)) as connection:
        connection.autocommit = statement == "CREATE DATABASE mine"  # LOCK TABLE wants a transaction, and this none
        with connection.cursor() as cursor, pytest.raises(psycopg2.errors.InsufficientPrivilege):
            cursor.execute(statement)


@pytest.mark.parametrize("statement", lines(LOCKING))
def test_an_analyst_is_refused_before_a_lock_is_waited_for(settings, server, statement):
    with contextlib.closing(login(settings)) as connection, superuser(server) as holder, holder.cursor() as held:
        connection.autocommit = False
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '2s'")
            held.execute("BEGIN; LOCK TABLE detail_live")
            with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                cursor.execute(statement)


def test_nor_for_a_lock_that_logins_wait_behind(settings):
    with contextlib.closing(login(settings)) as reader, contextlib.closing(login(settings)) as connection:
        reader.autocommit = False
        with reader.cursor() as reading, connection.cursor() as cursor:
            reading.execute("SELECT count(*) FROM pg_roles")
            cursor.execute("SET lock_timeout = '2s'")
            with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                cursor.execute("CREATE RULE mine AS ON INSERT TO pg_catalog.pg_authid DO NOTHING")


def test_board_detail_by_key_takes_a_thousand_keys(settings):
    ids = "SELECT count(*) FROM board_detail_by_key(array(SELECT generate_series(1, {})))"
    assert rows(settings, ids.format(1000), role="analyst") == [(9,)]
    with pytest.raises(psycopg2.errors.ProgramLimitExceeded, match="1001 keys; 1000 is the most"):
        rows(settings, ids.format(1001), role="analyst")


def told(settings: Settings, user: str, statement: str) -> str:
    """Return the rows of the statement, or the error's text."""
    with contextlib.closing(login(settings, user)) as connection, connection.cursor() as cursor:
        try:
            cursor.execute(statement)
            return str(cursor.fetchall())
        except psycopg2.Error as exc:
            return str(exc)


@pytest.fixture(scope="module")
def analyzed(settings, server) -> Settings:
    with superuser(server) as connection, connection.cursor() as cursor:
        cursor.execute("ANALYZE detail_live")
    return settings


@pytest.mark.parametrize("statement", lines(LEAKS))
def test_what_is_masked_shows_nowhere(analyzed, statement):
    found = told(analyzed, "analyst", statement)
    assert PHONE not in found
    assert PHONE[:8] not in found


def test_the_same_shows_what_is_not_masked(analyzed, personal):
    casts = [one.replace("board_detail_masked", "board_detail") for one in lines(LEAKS) if "::bigint" in one]
    for statement in casts:
        assert PHONE in told(analyzed, personal[0], statement)
    assert PHONE in told(analyzed, "stream", "SELECT s::text FROM pg_stats s WHERE s.attname = 'phone'")


def test_roles_of_the_pipeline_still_lock(settings):
    taken = {"pipeline_owner": "lock_migrations", "stream": "share_pointers", "batch": "hold_pointers"}
    for role, name in taken.items():
        with connect(settings.database, role) as connection, connection.cursor() as cursor:
            cursor.execute(query(name, PIPELINE))


@pytest.mark.parametrize("database", ["airflow", "postgres", "template1"])
@pytest.mark.parametrize("role", ["analyst", *ROLES])
def test_no_role_of_the_pipeline_enters_another_database(settings, role, database):
    with pytest.raises(psycopg2.OperationalError, match="permission denied for database"):
        login(settings, role, database)


def test_airflow_enters_its_own_database_alone(settings, variables):
    login(settings, "airflow", "airflow", variables["DB_AIRFLOW_PASSWORD"]).close()
    with pytest.raises(psycopg2.OperationalError, match="permission denied for database"):
        login(settings, "airflow", "pipeline", variables["DB_AIRFLOW_PASSWORD"])


def test_every_session_but_the_pipelines_has_limits(settings, personal):
    for user in ("analyst", personal[0]):
        assert [shown(settings, user, name) for name in LIMITS] == OF_ANALYSTS
    for role in ROLES:
        assert [shown(settings, role, name) for name in LIMITS] == OF_THE_PIPELINE


def test_a_person_reads_as_an_analyst_and_leaves_others_alone(settings, server, personal):
    first, second = personal[:2]
    with contextlib.closing(login(settings, first)) as connection, connection.cursor() as cursor:
        for name in (*SHOWN, "board_detail"):
            cursor.execute(f"SELECT * FROM {name}")
        with contextlib.closing(login(settings, second)) as other, pytest.raises(psycopg2.errors.InsufficientPrivilege):
            cursor.execute("SELECT pg_terminate_backend(%s)", (other.info.backend_pid,))
    with superuser(server) as connection, connection.cursor() as cursor:
        make_person(cursor, "once", connections=1)
        with contextlib.closing(login(settings, "once")), pytest.raises(psycopg2.OperationalError, match="too many"):
            login(settings, "once")
        cursor.execute("DROP ROLE once")


def test_an_analysts_own_settings_last_until_the_next_migration(settings):
    with contextlib.closing(login(settings)) as connection, connection.cursor() as cursor:
        for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
            cursor.execute(f"ALTER ROLE analyst SET {name} = 0")
            cursor.execute(f"ALTER ROLE analyst IN DATABASE pipeline SET {name} = 0")
        cursor.execute("ALTER ROLE analyst PASSWORD 'mine'")
    with pytest.raises(psycopg2.OperationalError):
        login(settings)
    migrate(settings)
    assert [shown(settings, "analyst", name) for name in LIMITS] == OF_ANALYSTS


def test_connections_are_left_for_the_pipeline_when_all_others_are_taken(settings, server, personal):
    with contextlib.ExitStack() as stack:

        def take(users: list[str]) -> None:
            for user in users:
                stack.enter_context(contextlib.closing(login(settings, user)))

        with pytest.raises(psycopg2.OperationalError, match="too many connections for role"):
            take(["analyst"] * 30)
        with superuser(server) as connection:
            if connection.server_version < 160_000:
                pytest.skip("PostgreSQL 15 reserves connections for superusers only")
        with pytest.raises(psycopg2.OperationalError, match="remaining connection slots are reserved"):
            take(personal * 40)
        take([*ROLES] * 10)


def test_notifications_do_not_fill_the_disk(settings, server):
    with superuser(server) as connection:
        if connection.server_version < 170_000:
            pytest.skip("the length of the queue is fixed before PostgreSQL 17")
    with contextlib.closing(login(settings)) as listener, contextlib.closing(login(settings)) as notifier:
        with listener.cursor() as cursor:
            cursor.execute("LISTEN mine")
            cursor.execute("BEGIN")
            cursor.execute("SELECT 1")
        much = "SELECT pg_notify('mine', n || repeat('x', 7900)) FROM generate_series(1, 1000) n"
        with notifier.cursor() as cursor, pytest.raises(psycopg2.errors.ProgramLimitExceeded):
            cursor.execute(much)
