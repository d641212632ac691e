"""The schema compared with the definition, and the rights of each role."""

import dataclasses

import psycopg2
import psycopg2.errors
import pytest

from include.contracts.errors import ConfigurationError
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.contracts.validation import parse_timestamp
from include.database.migrate import migrate
from include.database.named import COORDINATES, QUERIES, fill
from tests.support.pipeline import migrated, rows

COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), col_description(a.attrelid, a.attnum)
  FROM pg_attribute a WHERE a.attrelid = %s::regclass AND a.attnum > 0 ORDER BY a.attnum
"""
NEWEST = max((QUERIES.parent / "migrations/versions").glob("*.py")).name[:4]
LONG_TYPES = {"timestamptz": "timestamp with time zone"}


@pytest.fixture(scope="module")
def settings(postgres, tmp_path_factory):
    return migrated(None, postgres, "schema", tmp_path_factory.mktemp("schema"))


@pytest.mark.parametrize(
    "table",
    ["board_detail", "board_detail_masked", "board_detail_certified", "detail_live", "detail_final", "detail_covered"],
)
def test_the_tables_have_the_columns_of_the_definition(settings, table):
    found = {name: kind for name, kind, _ in rows(settings, COLUMNS, (table,))}
    for name in PIPELINE.relational_columns:
        wanted = PIPELINE.postgres_type(name)
        assert found[name] == LONG_TYPES.get(wanted, wanted)


@pytest.mark.parametrize(
    "view",
    ["board_detail", "board_detail_masked", "board_detail_certified", "day_status", "day_trust", "freshness"],
)
def test_every_column_the_analyst_sees_is_explained(settings, view):
    unexplained = [name for name, _, comment in rows(settings, COLUMNS, (view,)) if not comment]
    assert unexplained == []


@pytest.mark.parametrize("view", ["board_detail", "board_detail_masked", "board_detail_certified"])
def test_comments_in_the_database_are_those_of_the_definition(settings, view):
    """Migrations are frozen: a description that changes needs one of its own."""
    found = {name: comment for name, _, comment in rows(settings, COLUMNS, (view,))}
    described = {field.column: field.description for field in PIPELINE.output.fields}
    described |= {name: fill(text, PIPELINE) for name, (_, text) in COORDINATES.items()}
    assert {name: text for name, text in described.items() if not found[name].startswith(text)} == {}


def test_migrating_again_changes_nothing_also_without_the_superuser(settings):
    without = dataclasses.replace(settings, database=dataclasses.replace(settings.database, superuser_password=""))
    assert migrate(settings) == migrate(without) == NEWEST


def test_masking_hides_every_column_that_the_contract_calls_personal_and_no_other(settings):
    source = "SELECT a.attname FROM pg_attribute a WHERE a.attrelid = 'board_detail'::regclass AND a.attnum > 0"
    personal = {field.column for field in PIPELINE.output.fields if field.personal}
    for view in ("board_detail_masked", "board_detail_certified"):
        columns = rows(settings, COLUMNS, (view,))
        assert {name for name, _, comment in columns if "Masked" in comment} == personal == {"phone"}
        assert [name for name, *_ in columns] == [name for (name,) in rows(settings, source + " ORDER BY a.attnum")]


def test_what_is_personal_at_its_source_is_personal_in_the_result():
    sides = {"stream": PIPELINE.stream, "table": PIPELINE.table}
    for column in PIPELINE.columns:
        assert PIPELINE.output.field(column.output).personal == sides[column.side].field(column.source).personal


def test_a_person_sees_personal_values_once_they_are_granted(settings, postgres):
    superuser = psycopg2.connect(postgres.superuser_dsn("schema"))
    superuser.autocommit = True
    try:
        with superuser.cursor() as cursor:
            cursor.execute("DROP ROLE IF EXISTS kim")
            cursor.execute("CREATE ROLE kim LOGIN PASSWORD 'kim'")
            granted = dataclasses.replace(
                settings, database=dataclasses.replace(settings.database, passwords={"kim": "kim"})
            )
            with pytest.raises(psycopg2.OperationalError, match="permission denied for database"):
                rows(granted, "SELECT phone FROM board_detail", role="kim")
            cursor.execute("GRANT analyst_personal TO kim")
            for view in ("board_detail", "board_detail_masked", "day_status"):
                rows(granted, f"SELECT * FROM {view}", role="kim")
            cursor.execute("DROP ROLE kim")
    finally:
        superuser.close()


@pytest.mark.parametrize(
    ("role", "how"), [("analyst_personal", "NOLOGIN"), ("integrity", r"LOGIN, and \\password integrity")]
)
def test_a_database_without_a_role_is_told_how_to_make_it(settings, postgres, role, how):
    superuser = psycopg2.connect(postgres.superuser_dsn("schema"))
    superuser.autocommit = True
    without = dataclasses.replace(settings, database=dataclasses.replace(settings.database, superuser_password=""))
    try:
        with superuser.cursor() as cursor:
            cursor.execute(f"ALTER ROLE {role} RENAME TO otherwise")
            try:
                with pytest.raises(ConfigurationError, match=f"CREATE ROLE {role} {how}"):
                    migrate(without)
            finally:
                cursor.execute(f"ALTER ROLE otherwise RENAME TO {role}")
    finally:
        superuser.close()


def test_a_database_of_another_owner_is_told_how_to_give_it_away(settings, postgres):
    superuser = psycopg2.connect(postgres.superuser_dsn("schema"))
    superuser.autocommit = True
    without = dataclasses.replace(settings, database=dataclasses.replace(settings.database, superuser_password=""))
    try:
        with superuser.cursor() as cursor:
            cursor.execute("ALTER DATABASE schema OWNER TO CURRENT_USER")
            try:
                with pytest.raises(ConfigurationError, match='ALTER DATABASE "schema" OWNER TO pipeline_owner'):
                    migrate(without)
            finally:
                cursor.execute("ALTER DATABASE schema OWNER TO pipeline_owner")
    finally:
        superuser.close()


def test_text_knows_letters_of_every_script_and_sorts_by_bytes(settings):
    words = ["b", "B", "가", "é", "a", "Z"]
    assert rows(settings, r"SELECT '하늘' ~ '^\w+$', 'É' ILIKE 'é'", role="analyst") == [(True, True)]
    found = rows(settings, "SELECT word FROM unnest(%s) AS word ORDER BY word", (words,), role="analyst")
    assert [word for (word,) in found] == sorted(words, key=str.encode)


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Etc/GMT+12", "Asia/Seoul"])
@pytest.mark.parametrize("instant", ["1970-01-01T00:00:00Z", "2261-12-31T23:59:59.999999Z"])
def test_first_and_last_instant_of_the_contract_are_read_in_every_zone(settings, zone, instant):
    ((found,),) = rows(settings, f"SET timezone = '{zone}'; SELECT timestamptz '{instant}'", role="analyst")
    assert found == parse_timestamp(instant)


@pytest.mark.parametrize("role", ["analyst", "batch", "stream", "gateway", "pipeline_owner"])
def test_no_query_is_compiled(settings, role):
    """A server without the compiler has the setting all the same, and another server may have it on."""
    found = rows(settings, "SELECT setting, source FROM pg_settings WHERE name = 'jit'", role=role)
    assert found == [("off", "database")]
    plan = rows(settings, "SET jit_above_cost = 0; EXPLAIN SELECT count(*) FROM pg_class", role=role)
    assert [line for (line,) in plan if "JIT" in line] == []


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("analyst", "SELECT * FROM board_detail_masked"),
        ("analyst", "SELECT * FROM day_status"),
        ("batch", "SELECT * FROM publication"),
        ("gateway", "INSERT INTO site.member (nickname, created_at, modified_at) VALUES ('a', now(), now())"),
        ("gateway", "DELETE FROM site.change_key"),
        ("stream", "DELETE FROM detail_live"),
        ("batch", "SELECT * FROM detail_final"),
    ],
)
def test_a_role_may_do_its_work(settings, role, statement):
    rows(settings, statement, role=role)


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("analyst", "SELECT * FROM board_detail"),
        ("analyst", "SELECT * FROM detail_final"),
        ("analyst", "SELECT * FROM detail_covered"),
        ("analyst", "SELECT * FROM publication"),
        ("analyst", "SELECT * FROM detail_live"),
        ("analyst", "SELECT * FROM site.member"),
        ("analyst", "SELECT * FROM reject"),
        ("analyst", "CREATE TABLE mine (a int)"),
        ("gateway", "SELECT * FROM board_detail"),
        ("gateway", "DELETE FROM site.member"),
        ("stream", "INSERT INTO generation (day, run_id, cut) VALUES (now(), 'r', '{}')"),
        ("stream", "SELECT * FROM site.member"),
        ("stream", "SELECT * FROM site.change_key"),
        ("analyst", "SELECT * FROM site.change_key"),
        ("stream", "DELETE FROM detail_covered"),
        ("stream", "INSERT INTO publication (day) VALUES (now())"),
        ("batch", "SELECT * FROM site.member"),
        ("analyst", "SELECT topic FROM archive_batch"),
        ("integrity", "SELECT * FROM board_detail_masked"),
    ],
)
def test_a_role_may_do_no_more(settings, role, statement):
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        rows(settings, statement, role=role)
