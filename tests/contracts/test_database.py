"""The schema against the definition, and what each role may do."""

import dataclasses

import psycopg2.errors
import pytest

from include.contracts.definition import BOARD_DETAIL_PIPELINE as PIPELINE
from include.sql.migrate import migrate
from tests.support.pipeline import migrated, rows

COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), col_description(a.attrelid, a.attnum)
  FROM pg_attribute a WHERE a.attrelid = %s::regclass AND a.attnum > 0 ORDER BY a.attnum
"""
LONG_TYPES = {"timestamptz": "timestamp with time zone"}


@pytest.fixture(scope="module")
def settings(postgres, tmp_path_factory):
    return migrated(None, postgres, "schema", tmp_path_factory.mktemp("schema"))


@pytest.mark.parametrize("table", ["board_detail", "board_detail_live", "board_detail_final"])
def test_the_tables_have_the_columns_of_the_definition(settings, table):
    found = {name: kind for name, kind, _ in rows(settings, COLUMNS, (table,))}
    for name in PIPELINE.relational_columns:
        wanted = PIPELINE.postgres_type(name)
        assert found[name] == LONG_TYPES.get(wanted, wanted)


@pytest.mark.parametrize("view", ["board_detail", "day_status"])
def test_every_column_the_analyst_sees_is_explained(settings, view):
    unexplained = [name for name, _, comment in rows(settings, COLUMNS, (view,)) if not comment]
    assert unexplained == []


def test_migrating_again_changes_nothing_also_without_the_superuser(settings):
    without = dataclasses.replace(settings, database=dataclasses.replace(settings.database, superuser_password=""))
    assert migrate(settings) == migrate(without) == "0007"


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("analyst", "SELECT * FROM board_detail"),
        ("analyst", "SELECT * FROM day_status"),
        ("gateway", "INSERT INTO member (nickname, created_at, modified_at) VALUES ('a', now(), now())"),
        ("gateway", "DELETE FROM change_key"),
        ("stream", "DELETE FROM board_detail_live"),
        ("batch", "SELECT * FROM board_detail_final"),
    ],
)
def test_a_role_may_do_its_work(settings, role, statement):
    rows(settings, statement, role=role)


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("analyst", "SELECT * FROM board_detail_live"),
        ("analyst", "SELECT * FROM member"),
        ("analyst", "SELECT * FROM reject"),
        ("analyst", "CREATE TABLE mine (a int)"),
        ("gateway", "SELECT * FROM board_detail"),
        ("gateway", "DELETE FROM member"),
        ("stream", "INSERT INTO generation (day, run_id, cut) VALUES (now(), 'r', '{}')"),
        ("stream", "SELECT * FROM member"),
        ("stream", "SELECT * FROM change_key"),
        ("analyst", "SELECT * FROM change_key"),
        ("batch", "INSERT INTO board_detail_live (board_id) VALUES (1)"),
        ("batch", "SELECT * FROM member"),
    ],
)
def test_a_role_may_do_no_more(settings, role, statement):
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        rows(settings, statement, role=role)
