"""Relations and functions that analysts can use are the documented ones, in the database of each pipeline."""

import re
from contextlib import closing

import psycopg2.errors
import pytest

from include.contracts.pipelines import PIPELINES
from tests.support.documents import ROOT
from tests.support.pipeline import migrated, rows
from tests.support.publication import open_as

# Schemas that the role cannot use are no protection of their relations: a right that is given there counts.
RELATIONS = """
SELECT n.nspname || '.' || c.relname, c.relkind = 'S', CASE
       WHEN c.relkind = 'S' THEN has_sequence_privilege(%(role)s, c.oid, 'SELECT, USAGE, UPDATE')
       ELSE has_any_column_privilege(%(role)s, c.oid, 'SELECT, INSERT, UPDATE, REFERENCES')
            OR has_table_privilege(%(role)s, c.oid, 'DELETE, TRUNCATE, TRIGGER') END
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind NOT IN ('i', 'I', 'c') AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
"""
FUNCTIONS = """
SELECT p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
   AND has_schema_privilege(%(role)s, n.oid, 'USAGE') AND has_function_privilege(%(role)s, p.oid, 'EXECUTE')
"""
BUILT = """
SELECT generations.create_table(n, '2026-11-20'), generations.index_table(n) FROM generate_series(1, 2) n;
SELECT generations.attach_table(1, '2026-11-20', NULL, NULL, NULL, NULL)
"""
ALSO_PERSONAL = {"board_detail"}


def documented(role, pipeline):
    """The relations and the functions of the role in the table of roles, with the pipeline's name."""
    text = (ROOT / "docs" / "architecture" / "serving.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| `{role}` \| (.*) \|$", text, re.MULTILINE)
    relations, _, functions = row.partition("; functions ")
    return [{name.replace("board_detail", pipeline) for name in re.findall(r"`(\w+)`", part)}
            for part in (relations, functions)]  # fmt: skip


@pytest.fixture(params=PIPELINES)
def settings(request, postgres, tmp_path):
    """A database with a generation that is attached, and one that is not."""
    found = migrated(None, postgres, "analyst_reads", tmp_path, request.param)
    rows(found, BUILT)
    return found


def test_an_analyst_uses_the_documented_relations_and_functions_alone(settings):
    relations, functions = documented("analyst", settings.pipeline.name)
    assert len(relations) > 5
    found = rows(settings, RELATIONS, {"role": "analyst"})
    assert {name for name, _, may in found if may} == {f"public.{name}" for name in relations}
    assert {name for (name,) in rows(settings, FUNCTIONS, {"role": "analyst"})} == functions
    with closing(open_as(settings, "analyst")) as session, session.cursor() as cursor:
        for name, is_sequence, may in found:
            refused = [] if may else [f"SELECT nextval('{name}')" if is_sequence else f"SELECT FROM {name}"]
            for statement in refused:
                with pytest.raises(psycopg2.errors.InsufficientPrivilege):
                    cursor.execute(statement)
                session.rollback()
    names = {name for name, *_ in found}
    assert {"generations.detail_final_g1", "generations.detail_final_g2", "public.detail_live"} <= names


def test_the_comment_of_each_view_says_how_to_ask(settings):
    name = settings.pipeline.name
    for view, words in {
        name: ("finality", "is_fresh", "day_trust.summary"),
        f"{name}_masked": ("finality", "is_fresh", "day_trust.summary", f"{name}_certified"),
        f"{name}_certified": ("certificate", f"{name}_masked"),
    }.items():
        ((comment,),) = rows(settings, "SELECT obj_description(%s::regclass)", (view,), role="analyst")
        assert "WHERE day = date '" in comment
        assert [word for word in words if word not in comment] == []


def test_personal_values_add_the_view_that_has_them(settings):
    relations, functions = documented("analyst", settings.pipeline.name)
    found = {name for name, _, may in rows(settings, RELATIONS, {"role": "analyst_personal"}) if may}
    assert found - {f"public.{name}" for name in relations} == {f"public.{settings.pipeline.name}"}
    assert {name for (name,) in rows(settings, FUNCTIONS, {"role": "analyst_personal"})} <= functions


def test_the_guide_has_every_relation_that_an_analyst_reads():
    guide, *_ = (ROOT / "docs" / "analysts.md").read_text(encoding="utf-8").split("\n## ")
    listed = {name for row in re.findall(r"^\| (`.*?) \|", guide, re.MULTILINE) for name in re.findall(r"`(\w+)", row)}
    relations, _ = documented("analyst", "board_detail")
    assert listed - {"board_detail_by_key", "is_fresh"} == relations | ALSO_PERSONAL
