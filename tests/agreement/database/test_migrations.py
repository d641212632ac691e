"""A database at another revision than this version's: it is migrated, or refused with the way on."""

import pytest

from include.airflow_support import steps, tasks
from include.contracts.errors import ContractMismatch
from include.database.migrate import migrate
from include.database.schema_check import newest_revision, require_schema, revisions
from include.runtime.settings import Settings
from pipeline.__main__ import main as command
from tests.support.migrations import make_up_here
from tests.support.pipeline import migrated, rows

BEHIND = "the database is behind this version; run the migrations"


def test_a_database_at_an_earlier_revision_is_migrated(postgres, tmp_path, monkeypatch):
    settings = migrated(None, postgres, "earlier_version", tmp_path)
    rows(settings, "INSERT INTO detail_live (board_id, day) VALUES (1, '2026-11-20')")
    before = newest_revision()
    [revision] = make_up_here(
        monkeypatch, tmp_path / "migrations", "ALTER TABLE detail_live ADD COLUMN made_up integer DEFAULT 7"
    )
    with pytest.raises(ContractMismatch, match=rf"{BEHIND}.*{before}.*{revision}"):
        require_schema(settings.database, "stream")
    assert migrate(settings) == revision
    require_schema(settings.database, "stream")
    assert rows(settings, "SELECT board_id, made_up FROM detail_live") == [(1, 7)]
    assert rows(settings, "SELECT version_num FROM alembic_version") == [(revision,)]


@pytest.mark.parametrize("has_one", [True, False], ids=["an old revision", "no revision"])
def test_a_database_before_the_first_migration_is_refused_with_the_way_on(postgres, tmp_path, has_one):
    settings = migrated(None, postgres, "too_old", tmp_path)
    rows(settings, "UPDATE alembic_version SET version_num = '0053'" if has_one else "DELETE FROM alembic_version")
    before = rows(settings, "SELECT * FROM alembic_version")
    found, oldest = "0053" if has_one else None, revisions()[0]
    with pytest.raises(
        ContractMismatch,
        match=f"^database too_old is at revision {found}, and this version migrates from {oldest} on; migrate it to"
        rf" {oldest} with an earlier version, or replace it by an empty one \(locally `make clean`",
    ):
        migrate(settings)
    assert rows(settings, "SELECT * FROM alembic_version") == before


def test_a_database_of_a_later_version_is_refused_with_the_way_on(postgres, tmp_path):
    settings = migrated(None, postgres, "later_version", tmp_path)
    rows(settings, "UPDATE alembic_version SET version_num = '9999'", role="pipeline_owner")
    with pytest.raises(
        ContractMismatch, match=r"^a later version migrated the database \(to revision 9999\).*restore a backup"
    ):
        migrate(settings)


def test_commands_and_tasks_name_a_database_that_is_behind(postgres, tmp_path, monkeypatch):
    settings = migrated(None, postgres, "behind_version", tmp_path)
    rows(settings, "UPDATE alembic_version SET version_num = '0053'", role="pipeline_owner")
    monkeypatch.setattr(Settings, "from_environment", lambda *_: settings)
    for step, arguments in (
        (steps.days_of_the_night, ("2026-11-20", "scheduled")),
        (tasks.collect_orphans.function, ()),
    ):
        with pytest.raises(ContractMismatch, match=BEHIND):
            step("board_detail", *arguments)
    assert command(["days", "status"]) == 78
