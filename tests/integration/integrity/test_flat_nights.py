"""A night costs as many sessions, statements, locks and rows of boards after 40 published days as after 5."""

import pytest

from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.named import query
from include.database.sessions import connect
from include.integrity.days.day_checks import check_days
from include.integrity.days.due_days import dirty_days
from include.integrity.days.pruning import collect_orphans
from include.integrity.days.publication import redo, undo
from tests.support.certifying import certify_alone
from tests.support.counted import counted
from tests.support.many_days import age, publish_days
from tests.support.pipeline import migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, NOON, build, opened_store, row, serve
from tests.support.sessions import execute

FEW, MANY = 5, 40
NO_ROW_A_DAY = 5  # more rows than that are one for each of the days that are more
BOARDS = 9_000_000  # of the night's day, beyond those of all others


@pytest.fixture(scope="module")
def nights(postgres, tmp_path_factory):
    """The cost of each command, by the number of published days before it."""
    found = {}
    for days in (FEW, MANY):
        name = f"nights_{days}"
        settings = migrated(None, postgres, name, tmp_path_factory.mktemp(name))
        # the fewer rows a table has, the more a plan depends on how many
        execute(settings, f"ALTER DATABASE {name} SET enable_seqscan = off")
        publish_days(settings, str(DAY), days)
        age(settings, DAY.before(days), DAY)
        found[days] = dict(_night(settings))
    return found


def _night(settings):
    store = opened_store(settings)
    made = [row(BOARDS + n, n) for n in range(10)]
    serve(store, made)
    store.close()
    build(settings, made[1:], cut=20, run_id="night", members=20)
    rows(settings, "INSERT INTO late_version VALUES ('members', 0, 20, 99, '1970-01-01')", role="batch")
    late = {"partitions": [0], "last_offsets": [20], "oldest": [NOON.replace(year=1970)]}

    def a_late_version():
        with connect(settings.database, "batch", "test") as connection, connection.cursor() as cursor:
            cursor.execute(query("request_checks", PIPELINE), late)
        check_days(settings)

    for name, step in {
        "publish": lambda: publish(settings, DAY, "night", accept_vanishing=True),
        "dirty days": lambda: dirty_days(settings),
        "certify": lambda: certify_alone(settings, DAY),
        "collect": lambda: collect_orphans(settings),
        "undo": lambda: undo(settings, DAY, "a test"),
        "redo": lambda: redo(settings, DAY, "a test"),
        "collect again": lambda: collect_orphans(settings),
        "a late version": a_late_version,
    }.items():
        with counted(settings) as cost:
            step()
        yield name, cost


STEPS = ["publish", "dirty days", "certify", "collect", "undo", "redo", "collect again"]


@pytest.mark.parametrize("step", STEPS)
def test_a_step_of_the_night_does_not_grow_with_history(nights, step):
    few, many = (nights[days][step] for days in (FEW, MANY))
    assert (many.sessions, many.statements) == (few.sessions, few.statements)
    assert many.locks == few.locks, many.most_locks
    boards = {name for name in many.rows if name.startswith("board_detail")}
    assert {name for name in boards if many.rows[name] > few.rows[name] + NO_ROW_A_DAY} == set()


def test_a_late_version_costs_a_look_at_each_day_that_it_may_concern(nights):
    """In one session; the locks of 16 days are held at a time."""
    few, many = (nights[days]["a late version"] for days in (FEW, MANY))
    assert few.sessions == many.sessions
    assert many.statements - few.statements <= (MANY - FEW) + MANY // 16  # savepoints


def test_builds_that_days_showed_once_are_not_compared_with_each_change_of_a_pointer(nights):
    few, many = (nights[days]["collect"].rows["publication"] for days in (FEW, MANY))
    assert few > 0
    assert many <= few * MANY / FEW
