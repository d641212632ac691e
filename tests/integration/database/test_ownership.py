"""No role but the database's owner owns tables: their owner can make a superuser run functions."""

import contextlib

import psycopg2
import psycopg2.errors
import pytest

from include.runtime.settings import Settings
from tests.support.pipeline import migrated, rows
from tests.support.publication import open_as
from tests.support.publication import publish as publish_day
from tests.support.serving import DAY, build, row

OTHERS = ("gateway", "stream", "batch", "integrity", "analyst", "analyst_personal")
# Each makes the role a superuser if its caller may do so. PostgreSQL runs the second while it plans.
FUNCTIONS = """
CREATE FUNCTION {schema}.rise() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    ALTER ROLE {role} SUPERUSER;
    RETURN true;
EXCEPTION WHEN insufficient_privilege THEN
    RETURN true;
END $$;
CREATE FUNCTION {schema}.rise_early() RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT {schema}.rise()';
CREATE FUNCTION {schema}.rise_in_trigger() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM {schema}.rise(); RETURN NEW; END';
"""
TRAPS = {
    "policy": """
        CREATE POLICY rising ON detail_final USING ({schema}.rise());
        ALTER TABLE detail_final ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY""",
    "index": "CREATE INDEX rising ON {table} (board_id) WHERE {schema}.rise_early()",
    "trigger": """
        CREATE TRIGGER rising BEFORE UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION {schema}.rise_in_trigger()""",
    "check": "ALTER TABLE {table} ADD CHECK ({schema}.rise())",
    "rule": "CREATE RULE rising AS ON UPDATE TO detail_final DO ALSO SELECT {schema}.rise()",
}
REFUSALS = (
    psycopg2.errors.InsufficientPrivilege, psycopg2.errors.UndefinedFunction, psycopg2.errors.InvalidSchemaName,
)  # fmt: skip
# Statements with which an administrator reads the data and maintains tables.
READ = """
SELECT count(*) FROM board_detail
SELECT count(*) FROM detail_final WHERE board_id = 1
UPDATE detail_final SET title = title
ANALYZE
VACUUM
"""


@pytest.fixture
def settings(own_postgres, tmp_path) -> Settings:
    found = migrated(None, own_postgres, "owned", tmp_path)
    build(found, [row(1, 1), row(2, 2)], cut=3, run_id="r")
    publish_day(found, DAY, "r")
    return found


def is_superuser(own_postgres, settings: Settings, role: str, trap: str, schema: str) -> bool:
    """True if the role becomes superuser when a superuser works with tables in which the role has set the trap."""
    ((table,),) = rows(settings, "SELECT inhrelid::regclass::text FROM pg_inherits"
                       " WHERE inhparent = 'detail_final'::regclass")  # fmt: skip
    with contextlib.closing(open_as(settings, role)) as session, session.cursor() as cursor:
        session.autocommit = True  # and its temporary functions last as long as the session
        for statement in (FUNCTIONS, trap):
            with contextlib.suppress(*REFUSALS):
                cursor.execute(statement.format(schema=schema, role=role, table=table))
        with contextlib.closing(psycopg2.connect(own_postgres.superuser_dsn("owned"))) as connection:
            connection.autocommit = True
            with connection.cursor() as reader:
                for statement in READ.strip().splitlines():
                    reader.execute(statement)
                reader.execute("SELECT rolsuper FROM pg_roles WHERE rolname = %s", (role,))
                (found,) = reader.fetchone()
                reader.execute(f"ALTER ROLE {role} NOSUPERUSER")
    return bool(found)


@pytest.mark.parametrize("schema", ["public", "generations", "pg_temp"])
@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_batch_does_not_become_superuser_through_a_table(own_postgres, settings, trap, schema):
    assert not is_superuser(own_postgres, settings, "batch", trap, schema)


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_an_owner_would(own_postgres, settings, trap):
    assert is_superuser(own_postgres, settings, "pipeline_owner", trap, "public")


def test_only_pipeline_owner_owns_anything_in_the_database(settings):
    owners = rows(settings, """
        SELECT DISTINCT refobjid::regrole::text FROM pg_shdepend JOIN pg_database d ON d.oid = dbid
         WHERE d.datname = current_database() AND deptype = 'o'""")  # fmt: skip
    assert owners == [("pipeline_owner",)]


@pytest.mark.parametrize("role", OTHERS)
def test_no_other_role_makes_anything_in_a_schema(settings, role):
    allowed = rows(settings, """
        SELECT nspname FROM pg_namespace WHERE has_schema_privilege(%(role)s, oid, 'CREATE')
        UNION ALL SELECT datname FROM pg_database WHERE has_database_privilege(%(role)s, oid, 'CREATE')""",
        {"role": role})  # fmt: skip
    assert allowed == []


def test_a_generation_has_no_other_name_than_its_number(settings):
    """All that `batch` can put into a statement of the owner."""
    parameters = rows(settings, """
        SELECT DISTINCT format_type(argument, NULL)
          FROM pg_proc p, unnest(p.proargtypes) argument
         WHERE p.pronamespace = 'generations'::regnamespace AND p.prosecdef ORDER BY 1""")  # fmt: skip
    assert parameters == [("bigint",), ("date",), ("timestamp with time zone",)]
