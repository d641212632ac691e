"""The rules for a migration: literal text, one after the other, one per release and named for it."""

import ast
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.support.migrations import ROOT, VERSIONS, last_tag, make_up

BASELINE = "0054_baseline.py"
FILES = sorted((ROOT / VERSIONS).glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_migration_is_literal_text(path):
    """An imported or computed value could change later, and a new database would differ from an upgraded one."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    assert imported == ([] if path.name == BASELINE else ["from alembic import op"])
    computed = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    assert computed == []


def test_migrations_are_one_chain_in_the_order_of_their_names():
    revisions = []
    for path in FILES:
        revision, previous = re.search(
            r'^revision = "(\d{4})"\ndown_revision = (?:"(\d{4})"|None)$', path.read_text(encoding="utf-8"), re.M
        ).groups()
        assert path.name.startswith(f"{revision}_")
        revisions.append((previous, revision))
    names = [revision for _, revision in revisions]
    assert revisions == list(zip([None, *names], names, strict=False))


def release_faults(root: Path) -> list[str]:
    """Files of the repository's migrations that the next release cannot have, and the remedy for each."""
    here, tag = {path.name: path.read_bytes() for path in (root / VERSIONS).glob("*.py")}, last_tag(root)
    version = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    if tag is None:
        return [f"{name}: before the first release, change schema.sql" for name in sorted(here.keys() ^ {BASELINE})]
    released = {Path(name).name: _git(root, "show", f"{tag}:{name}")
                for name in _git(root, "ls-tree", "--name-only", tag, f"{VERSIONS}/").decode().split()}  # fmt: skip
    found = [f"{name}: was released with {tag}, so it stays as it was"
             for name, content in released.items() if here.get(name) != content]  # fmt: skip
    added = sorted(here.keys() - released)
    if added and f"v{version}" == tag:
        return [*found, f"{', '.join(added)}: of the release after {tag}; set its version in pyproject.toml"]
    name = f"{int(max(released)[:4]) + 1:04}_v{version.replace('.', '_')}.py"
    return [*found, *(f"{other}: the migration of release {version} is {name}" for other in added if other != name)]


def _git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True).stdout


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the files do not say what was released: they are no clone")
def test_a_release_has_one_migration_which_is_named_for_it():
    assert release_faults(ROOT) == []


@pytest.fixture
def repository(tmp_path):
    """A repository of version 0.1.0 with the baseline, committed."""
    if shutil.which("git") is None:
        pytest.skip("git is not on PATH")
    (tmp_path / VERSIONS).mkdir(parents=True)
    shutil.copy(ROOT / VERSIONS / BASELINE, tmp_path / VERSIONS)
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\n')
    for command in (["init", "-q"], ["add", "."],
                    ["-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "-qm", "first"]):  # fmt: skip
        _git(tmp_path, *command)
    return tmp_path


def release(repository):
    """Tag 0.1.0, and begin 0.2.0."""
    _git(repository, "tag", "v0.1.0")
    assert release_faults(repository) == []
    (repository / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    assert release_faults(repository) == []


def test_before_the_first_release_there_is_the_baseline_alone(repository):
    assert release_faults(repository) == []
    make_up(repository / VERSIONS, "SELECT 1")
    assert release_faults(repository) == ["0055_made_up.py: before the first release, change schema.sql"]


def test_the_baseline_has_to_be_there(repository):
    (repository / VERSIONS / BASELINE).unlink()
    assert release_faults(repository) == [f"{BASELINE}: before the first release, change schema.sql"]


def test_after_a_release_one_migration_is_named_for_the_next(repository):
    release(repository)
    make_up(repository / VERSIONS, "SELECT 1")
    assert release_faults(repository) == ["0055_made_up.py: the migration of release 0.2.0 is 0055_v0_2_0.py"]
    (repository / VERSIONS / "0055_made_up.py").rename(repository / VERSIONS / "0055_v0_2_0.py")
    assert release_faults(repository) == []
    make_up(repository / VERSIONS, "SELECT 2")
    assert release_faults(repository) == ["0056_made_up.py: the migration of release 0.2.0 is 0055_v0_2_0.py"]


def test_a_migration_needs_the_version_of_the_next_release(repository):
    release(repository)
    (repository / "pyproject.toml").write_text('[project]\nversion = "0.1.0"\n')
    make_up(repository / VERSIONS, "SELECT 1")
    assert release_faults(repository) == [
        "0055_made_up.py: of the release after v0.1.0; set its version in pyproject.toml"
    ]


def test_a_released_migration_is_not_edited(repository):
    release(repository)
    (repository / VERSIONS / BASELINE).write_text("")
    assert release_faults(repository) == [f"{BASELINE}: was released with v0.1.0, so it stays as it was"]
    (repository / VERSIONS / BASELINE).unlink()
    assert release_faults(repository) == [f"{BASELINE}: was released with v0.1.0, so it stays as it was"]


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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
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
