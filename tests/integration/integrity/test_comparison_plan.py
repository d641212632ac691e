"""Few changed boards of a large day are looked up by their keys: by rows read, which do not depend on the machine."""

import contextlib

import pytest

from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.named import query
from include.database.sessions import connect
from include.integrity.days.comparison import insert_corrections
from tests.support.pipeline import migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, build, opened_store, row, serve

ROWS = 5_000  # of the day, in front of readers, in the new build, and in the live table each
CHANGED = 10
ROWS_A_BOARD = 20  # read for each changed board, in all tables together


@pytest.fixture(scope="module")
def settings(postgres, tmp_path_factory):
    """A day that shows many rows, of which a build changes a few; the live rows that it covers are still there."""
    made = migrated(None, postgres, "comparison_plan", tmp_path_factory.mktemp("comparison-plan"))
    with contextlib.closing(opened_store(made)) as store:
        serve(store, [row(n, n) for n in range(ROWS)])
    build(made, (row(n, n) for n in range(ROWS)), cut=ROWS, run_id="shown")
    publish(made, DAY, "shown")
    rows(made, "ANALYZE detail_live")
    changed = range(0, ROWS, ROWS // CHANGED)
    build(made, (row(n, n, title="changed" if n in changed else f"v{n}") for n in range(ROWS)), cut=ROWS, run_id="new")
    return made


class Explained:
    """A cursor that runs the statement which makes corrections, and has its plan with the rows that were read."""

    def __init__(self, cursor):
        self._cursor = cursor

    def execute(self, statement, parameters=None):
        before, analyze, insert = statement.partition("ANALYZE changed_key;")
        if analyze:
            self._cursor.execute(before + analyze)
            statement = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {insert}"
        self._cursor.execute(statement, parameters)
        if analyze:
            self.plan = self._cursor.fetchone()[0][0]["Plan"]

    def __getattr__(self, name):
        return getattr(self._cursor, name)


def test_the_corrections_of_few_boards_do_not_read_the_day(settings):
    ((shown,), (new,)) = rows(settings, "SELECT id FROM generation ORDER BY id")
    place = {"day": DAY.date, "generation_id": new, "shown_id": shown}
    with connect(settings.database, "batch", "test") as connection, connection.cursor() as cursor:
        cursor.execute(query("compare_rows", PIPELINE), place)
        assert cursor.rowcount == CHANGED
        explained = Explained(cursor)
        insert_corrections(explained, DAY, new)
    read = dict(_rows_read(explained.plan))
    assert sum(read.values()) <= ROWS_A_BOARD * CHANGED, read
    assert rows(settings, "SELECT count(*) FROM detail_correction") == [(CHANGED,)]


def _rows_read(plan):
    """Every table or index that the plan reads, and how many rows of it."""
    if "Relation Name" in plan and plan["Node Type"] != "ModifyTable":
        removed = sum(count for name, count in plan.items() if name.startswith("Rows Removed"))
        yield (
            (plan["Node Type"], plan["Relation Name"], id(plan)),
            (plan["Actual Rows"] + removed) * plan["Actual Loops"],
        )
    for inner in plan.get("Plans", []):
        yield from _rows_read(inner)
