"""SQL of the documents runs as the role that they name, on a database with the pipeline's schema."""

from contextlib import closing

import psycopg2
import pytest

from tests.support.documents import ROOT, RUNBOOKS, sql
from tests.support.pipeline import migrated
from tests.support.publication import open_as

BLOCKS = [one for runbook in RUNBOOKS for one in sql(runbook, "batch")]
BLOCKS += sql(ROOT / "docs" / "analysts.md", "analyst")


@pytest.fixture(scope="module")
def settings(postgres, tmp_path_factory):
    return migrated(None, postgres, "docs_sql", tmp_path_factory.mktemp("docs-sql"))


def test_documents_have_sql():
    assert len(BLOCKS) > 15


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_it_runs_as_the_role_that_is_named(settings, block):
    with closing(open_as(settings, block.role)) as connection, connection.cursor() as cursor:
        for statement in block.statements:
            cursor.execute(statement)
        connection.rollback()


def test_a_wrong_statement_is_noticed(settings, tmp_path):
    runbook = tmp_path / "runbook.md"
    runbook.write_text("As role `stream`:\n\n```sql\nSELECT 1 FROM generation_load;\n```\n`SELECT a FROM nothing;`\n")
    for block, error in zip(sql(runbook, "batch"), ("permission denied", "does not exist"), strict=True):
        with (
            closing(open_as(settings, block.role)) as connection,
            connection.cursor() as cursor,
            pytest.raises(psycopg2.Error, match=error),
        ):
            cursor.execute(block.statements[0])
