"""The rules for a migration: literal text, one after the other."""

import ast
import re
from pathlib import Path

import pytest

VERSIONS = sorted((Path(__file__).parents[3] / "include/sql/migrations/versions").glob("*.py"))


@pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.stem)
def test_a_migration_is_literal_text(path):
    """An imported or computed value could change later, and a new database would differ from an upgraded one."""
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


# Before the rules; a migration that has landed is not edited.
BEFORE_THE_RULES = {f"{number:04}" for number in range(1, 25)}
_IN_A_FUNCTION = re.compile(r"CREATE (?:OR REPLACE )?FUNCTION.*?AS \$\$.*?\$\$", re.S)
_CREATED = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?([\w.]+)")
_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX (?!CONCURRENTLY )[^;]*? ON (?:ONLY )?([\w.%]+)")
_ALTERED = re.compile(r"ALTER TABLE (?:IF EXISTS )?(?:ONLY )?([\w.%]+)([^;]*)")
_CONSTRAINT = re.compile(r"ADD (?:CONSTRAINT \w+ )?(?:CHECK|FOREIGN KEY|UNIQUE|PRIMARY KEY|EXCLUDE)\b")


def blocking_statements(text: str) -> list[str]:
    """Statements of a migration that read a table that exists while others wait for them, and the rule for each."""
    text = re.sub(r"--[^\n]*", "", _IN_A_FUNCTION.sub("", text))
    created = set(_CREATED.findall(text))
    found = [f"{match[0]}: CREATE INDEX CONCURRENTLY, in an autocommit_block()"
             for match in _INDEX.finditer(text) if match[1] not in created]  # fmt: skip
    for table, actions in _ALTERED.findall(text):
        if table in created:
            continue
        added = [action for action in re.split(r",\s*(?=ADD|ALTER|DROP)", actions) if _CONSTRAINT.search(action)]
        found += [f"ALTER TABLE {table}{action}: NOT VALID" for action in added
                  if "NOT VALID" not in action and "USING INDEX" not in action]  # fmt: skip
        if added and re.search(r"VALIDATE CONSTRAINT \w+", text):
            found.append(f"ALTER TABLE {table}: validate it in a later migration")
        if "SET NOT NULL" in actions:
            found.append(f"ALTER TABLE {table}: CHECK (… IS NOT NULL) NOT VALID instead of SET NOT NULL")
    found += [f"INDEX {name}: DROP INDEX CONCURRENTLY IF EXISTS {name} before it"
              for name in re.findall(r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY (\w+)", text)
              if f"DROP INDEX CONCURRENTLY IF EXISTS {name}" not in text]  # fmt: skip
    if "CONCURRENTLY" in text and "autocommit_block()" not in text:
        found.append("CONCURRENTLY: in an autocommit_block()")
    return found


@pytest.mark.parametrize("path", [path for path in VERSIONS if path.name[:4] not in BEFORE_THE_RULES],
                         ids=lambda path: path.stem)  # fmt: skip
def test_a_migration_reads_no_table_while_others_wait(path):
    assert blocking_statements(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE INDEX by_day ON dirty_day (day);",
        "CREATE UNIQUE INDEX IF NOT EXISTS by_day ON ONLY dirty_day (day);",
        "CREATE INDEX CONCURRENTLY by_day ON dirty_day (day);",
        "DROP INDEX CONCURRENTLY IF EXISTS by_day; CREATE INDEX CONCURRENTLY by_day ON dirty_day (day);",
        "ALTER TABLE dirty_day ADD CONSTRAINT known CHECK (cause <> '');",
        "ALTER TABLE dirty_day ADD COLUMN note text,\n    ADD CHECK (note <> '');",
        "ALTER TABLE dirty_day ADD FOREIGN KEY (day) REFERENCES day_publication;",
        "ALTER TABLE ONLY dirty_day ADD UNIQUE (day);",
        "ALTER TABLE dirty_day ADD CHECK (count > 0) NOT VALID; ALTER TABLE dirty_day VALIDATE CONSTRAINT known;",
        "ALTER TABLE dirty_day ALTER COLUMN count SET NOT NULL;",
    ],
)
def test_the_rules_find_a_statement_that_would(statement):
    assert blocking_statements(statement)


@pytest.mark.parametrize(
    "text",
    [
        "with autocommit_block(): DROP INDEX CONCURRENTLY IF EXISTS by_day;"
        " CREATE INDEX CONCURRENTLY by_day ON dirty_day (day);",
        "CREATE TABLE note (day date); CREATE INDEX ON note (day); ALTER TABLE note ADD CHECK (day > '2020-01-01');",
        "ALTER TABLE dirty_day ADD CONSTRAINT known CHECK (cause <> '') NOT VALID;",
        "ALTER TABLE dirty_day VALIDATE CONSTRAINT known;",
        "ALTER TABLE dirty_day ADD COLUMN note text;",
        "CREATE FUNCTION f() RETURNS void LANGUAGE sql AS $$ CREATE INDEX ON dirty_day (day) $$;",
    ],
)
def test_the_rules_leave_others_alone(text):
    assert blocking_statements(text) == []
