"""The rules for a migration: literal text, one after the other."""

import ast
import re
from pathlib import Path

import pytest

VERSIONS = sorted((Path(__file__).parents[2] / "include/sql/migrations/versions").glob("*.py"))


@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.stem)
def test_a_migration_is_literal_text(path):
    """What it imports or computes could change later, and a fresh database would differ from one that was upgraded."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imported == ["from alembic import op"]
    computed = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    assert computed == []


def test_migrations_are_one_chain_in_the_order_of_their_names():
    revisions = []
    for path in VERSIONS:
        revision, previous = re.search(
            r'^revision = "(\d{4})"\ndown_revision = (?:"(\d{4})"|None)$', path.read_text(encoding="utf-8"), re.M
        ).groups()
        assert path.name.startswith(f"{revision}_")
        revisions.append((previous, revision))
    names = [revision for _, revision in revisions]
    assert revisions == list(zip([None, *names], names, strict=False))
