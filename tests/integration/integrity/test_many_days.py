"""With years of published days a query of one day, and a batch of the speed layer, take locks of that day's tables."""

import datetime as dt
from contextlib import closing

import pytest

from include.integrity.days import comparison, day_checks
from include.integrity.days.comparison import verify
from include.integrity.days.due_days import dirty_days
from spark_jobs.speed import live_table
from tests.support.many_days import locks_held, publish_days
from tests.support.pipeline import migrated, rows
from tests.support.publication import open_as, publish
from tests.support.serving import DAY, NOON, build, opened_store, row, serve, tombstone

DAYS = 1_100
A_DAY = DAY.before(500)
LOCKS_A_DAY = 20  # the views, their tables and indexes, the generation and its key; the catalogue that is asked
LOCKS_A_BATCH = 60
LOCKS_OF_STATUS = 40  # corrections, dirt and boards that wait, too
LATER = NOON + dt.timedelta(days=1)


@pytest.fixture(scope="module")
def settings(postgres, tmp_path_factory):
    made = migrated(None, postgres, "many_days", tmp_path_factory.mktemp("many-days"))
    publish_days(made, str(DAY), DAYS)
    rows(made, "UPDATE day_publication SET status = 'certified', certified_at = now()")
    return made


QUERIES = {
    "a constant": ["SELECT count(*) FROM {view} WHERE day = '{day}'"],
    "an expression": ["SELECT count(*) FROM {view} WHERE day = date '{day}' + 0"],
    "a range": ["SELECT count(*) FROM {view} WHERE day BETWEEN '{day}' AND '{day}'"],
    "a list": ["SELECT count(*) FROM {view} WHERE day IN ('{day}')"],
    "one board of the day": ["SELECT count(*) * 10 FROM {view} WHERE day = '{day}' AND board_id = 500001"],
    # the seventh time a session may take a generic plan
    "a prepared statement": ["PREPARE q (date) AS SELECT count(*) FROM {view} WHERE day = $1",
                             *["EXECUTE q ('{day}')"] * 7],
}  # fmt: skip


@pytest.mark.parametrize("view", ["board_detail", "board_detail_masked", "board_detail_certified"])
@pytest.mark.parametrize("statements", QUERIES.values(), ids=QUERIES)
def test_a_query_of_one_day_locks_that_days_tables(settings, view, statements):
    with closing(open_as(settings, "batch")) as reader, reader.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement.format(view=view, day=A_DAY))
        assert cursor.fetchone() == (10,)
        reader.commit()
        cursor.execute(statements[-1].format(view=view, day=A_DAY))
        assert locks_held(reader) <= LOCKS_A_DAY


def test_boards_by_their_ids_lock_the_tables_of_days_that_can_have_them(settings):
    wanted = [500_001, 500_002, 2_000_000_000]
    with closing(open_as(settings, "analyst")) as reader, reader.cursor() as cursor:
        for _ in range(7):
            cursor.execute("SELECT board_id, day FROM board_detail_by_key(%s)", (wanted,))
        assert sorted(cursor.fetchall()) == [(board, A_DAY.date) for board in wanted[:2]]
        reader.commit()
        cursor.execute("SELECT * FROM board_detail_by_key(%s)", (wanted,))
        assert locks_held(reader) <= LOCKS_A_DAY


def test_boards_are_found_by_any_list_of_ids(settings):
    greatest = 2**63 - 1
    wanted = [700_002, None, 500_001, 700_002, 500_002, greatest, -greatest - 1]
    with closing(open_as(settings, "analyst")) as reader, reader.cursor() as cursor:
        cursor.execute("SELECT board_id, day, finality FROM board_detail_by_key(%s)", (wanted,))
        assert sorted(cursor.fetchall()) == [
            (500_001, A_DAY.date, "final"), (500_002, A_DAY.date, "final"), (700_002, DAY.before(700).date, "final")
        ]  # fmt: skip
        for none in ([], None, [None]):
            cursor.execute("SELECT * FROM board_detail_by_key(%s::bigint[])", (none,))
            assert cursor.fetchall() == []


def test_the_status_of_all_days_locks_no_days_table(settings):
    with closing(open_as(settings, "analyst")) as reader, reader.cursor() as cursor:
        cursor.execute("SELECT * FROM day_status")
        assert cursor.rowcount == DAYS
        assert locks_held(reader) <= LOCKS_OF_STATUS


def test_the_status_of_one_day_locks_that_days_tables(settings):
    with closing(open_as(settings, "batch")) as reader, reader.cursor() as cursor:
        for _ in range(7):
            cursor.execute("SELECT shown_rows FROM day_status WHERE day = %s", (A_DAY.date,))
        assert cursor.fetchone() == (10,)
        reader.commit()
        cursor.execute("SELECT * FROM day_status WHERE day = %s", (A_DAY.date,))
        assert locks_held(reader) <= LOCKS_OF_STATUS


@pytest.mark.parametrize("view", ["board_detail", "board_detail_certified"])
def test_the_plan_of_one_day_has_one_generation_and_is_costed_as_one(settings, view):
    rows(settings, "ANALYZE detail_final")
    ((plan,),) = rows(settings, f"EXPLAIN (FORMAT JSON) SELECT * FROM {view} WHERE day = '{A_DAY}'")
    relations = list(_relations(plan[0]["Plan"]))
    assert sum(name.startswith("detail_final") for name in relations) == 1
    # the pointer, the empty table, live rows twice, and in the view what waits twice
    assert len(relations) <= (7 if view == "board_detail" else 5)
    assert plan[0]["Plan"]["Plan Rows"] < 100


def test_values_are_masked_after_the_sort_for_a_limit(settings):
    newest = f"SELECT * FROM board_detail_masked WHERE day = '{A_DAY}' ORDER BY created_at DESC LIMIT 5"
    ((plan,),) = rows(settings, f"EXPLAIN (VERBOSE, FORMAT JSON) {newest}")
    masking = [
        node["Node Type"] for node in _nodes(plan[0]["Plan"]) if any("repeat(" in o for o in node.get("Output", ()))
    ]
    assert masking == ["Limit", "Result"]


REBUILT = 300
REBUILT_DAY = DAY.before(REBUILT)
# the condition, and how many days it has
RANGES = {
    "one generation": ("day BETWEEN '{other}' AND '{other}'", 1),
    "one day": ("day BETWEEN '{day}' AND '{day}'", 1),
    "one day, half-open": ("day >= '{day}' AND day < '{after}'", 1),
    "one day, open": ("day > '{before}' AND day < '{after}'", 1),
    "two days": ("day >= '{before}' AND day < '{after}'", 2),
    "two days as a list": ("day IN ('{before}', '{day}')", 2),
    "a week": ("day > '{a_week_before}' AND day <= '{day}'", 7),
    "all since": ("day > '{a_week_before}'", REBUILT + 6),
}


@pytest.fixture(scope="module")
def two_generations(settings):
    """The day has a generation that it does not show, as an undo or a rebuild keeps it."""
    kept = [row(REBUILT * 1000 + number, number, day=REBUILT_DAY.date) for number in (1, 2)]
    build(settings, kept, cut=5, run_id="kept", day=REBUILT_DAY)
    rows(settings, "ANALYZE detail_final, detail_live, day_publication")


@pytest.mark.usefixtures("two_generations")
@pytest.mark.parametrize("view", ["board_detail", "board_detail_certified"])
@pytest.mark.parametrize(("condition", "days"), RANGES.values(), ids=RANGES)
def test_a_range_of_days_reads_the_shown_generation_of_each_once(settings, view, condition, days):
    dates = {"day": REBUILT_DAY, "before": REBUILT_DAY.before(1), "a_week_before": REBUILT_DAY.before(7),
             "after": DAY.before(REBUILT - 1), "other": DAY.before(400)}  # fmt: skip
    query = f"SELECT * FROM {view} WHERE {condition.format(**dates)}"
    ((plan,),) = rows(settings, f"EXPLAIN (ANALYZE, FORMAT JSON) {query}")
    read = sum(node["Actual Loops"] for node in _scans(plan[0]["Plan"])
               if node["Relation Name"].startswith("detail_final"))  # fmt: skip
    assert read == days
    assert days <= plan[0]["Plan"]["Plan Rows"] <= days * 100  # a day has ten rows


def _relations(plan):
    for node in _scans(plan):
        yield node["Relation Name"]


def _scans(plan):
    return (node for node in _nodes(plan) if "Relation Name" in node)


def _nodes(plan):
    yield plan
    for inner in plan.get("Plans", []):
        yield from _nodes(inner)


@pytest.mark.parametrize(
    "batch",
    [
        [row(500_001, 2_000_000, day=A_DAY.date, modified_at=LATER), row(500_002, 3, day=A_DAY.date)],
        [tombstone(500_003, 2_000_001, LATER)],  # carries no day
        [tombstone(7, 2_000_002, LATER)],  # of a board that no day shows
    ],
    ids=["rows", "a tombstone", "a tombstone of an unknown board"],
)
def test_a_batch_of_the_speed_layer_locks_the_tables_of_its_days(settings, monkeypatch, batch):
    with closing(opened_store(settings)) as store:
        serve(store, [row(1, 2_000_003)])  # the session has made its stage
        held = []
        look = lambda name: name == "serve.before_commit" and held.append(locks_held(store._connection))  # noqa: E731
        monkeypatch.setattr(live_table, "failpoint", look)
        store._committed_offsets = {}
        rows(settings, "UPDATE offset_ledger SET next_offset = 0")
        serve(store, batch)
    assert held[0] <= LOCKS_A_BATCH


def test_a_tombstone_is_placed_in_the_day_that_shows_its_board(settings):
    with closing(opened_store(settings)) as store:
        rows(settings, "UPDATE offset_ledger SET next_offset = 0")
        store._committed_offsets = {}
        serve(store, [tombstone(900_004, 2_000_009, LATER)])
    assert rows(settings, "SELECT day FROM detail_live WHERE board_id = 900004") == [(DAY.before(900).date,)]
    assert rows(settings, "SELECT count(*) FROM board_detail WHERE day = %s", (str(DAY.before(900)),)) == [(9,)]


LOCKS_A_CHECK = 120  # sixteen days' tables with their keys, and the catalogue


def test_checks_of_days_lock_a_few_days_tables_at_a_time(settings, monkeypatch):
    """One day's keys lie between those of all days, and the speed layer has a board of another day."""
    with closing(opened_store(settings)) as store:
        rows(settings, "UPDATE offset_ledger SET next_offset = 0")
        store._committed_offsets = {}
        serve(store, [row(700_004, 2_000_011, modified_at=LATER)])
    rows(settings, "INSERT INTO unchecked_day (day) VALUES (%s)", (str(A_DAY),))
    rows(settings, "UPDATE generation SET first_key = 1, last_key = 2000000 WHERE day = %s", (str(A_DAY),))
    rows(settings, "UPDATE day_publication SET cut = %s WHERE day = %s",
         ('{"board": {"0": 4000000}, "member": {"0": 0}}', str(A_DAY)))  # fmt: skip
    rows(settings, """INSERT INTO generation_excluded (generation_id, kind, identity, board_id, stream_partition,
                                                       stream_offset, reason, version_at)
                      SELECT generation_id, 'deleted', n::text, n * 1000 + 1, 0, 3000000, '', now()
                        FROM day_publication, generate_series(1, 100) n WHERE day = %s""", (str(A_DAY),))  # fmt: skip
    held, plain = [], day_checks.query

    def sampled(name, of):
        if name.startswith(("count", "end")):
            held.append(locks_of(settings, "check days"))
        return plain(name, of)

    monkeypatch.setattr(day_checks, "query", sampled)
    assert {one.day: one.causes["moved board"] for one in dirty_days(settings) if "moved board" in one.causes} == {
        DAY.before(number).date: 1 for number in (*range(1, 101), 700)}  # fmt: skip
    assert 0 < max(held) <= LOCKS_A_CHECK


def test_a_comparison_looks_for_a_board_on_the_days_that_may_show_it(settings, monkeypatch):
    """All days but this one have no board 3,000,001; the day before has the other."""
    build(settings, [row(101_001, 4_000_001, day=DAY.before(100).date, modified_at=LATER),
                     row(3_000_001, 4_000_002, day=DAY.before(100).date)],
          cut=5_000_000, run_id="elsewhere", day=DAY.before(100))  # fmt: skip
    held, plain = [], comparison.query
    for module in (comparison, comparison):
        monkeypatch.setattr(module, "query", lambda *of: held.append(locks_of(settings, "verify")) or plain(*of))
    verify(settings, DAY.before(100), "elsewhere")
    found = rows(settings, "SELECT board_id, class FROM detail_correction WHERE rebuilt IS NOT NULL ORDER BY 1")
    assert found == [(101_001, "moved"), (3_000_001, "late")]
    assert 0 < max(held) <= LOCKS_A_CHECK


def locks_of(settings, application):
    """Return the number of locks on relations that the sessions of that name hold."""
    ((count,),) = rows(settings, "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)"
                       " WHERE locktype = 'relation' AND application_name = %s", (application,))  # fmt: skip
    return count


WITHOUT_A_DAY = {
    "one board": "board_id = {number}001",
    "boards as a list": "board_id IN ({number}001, {number}002)",
    "a time": "created_at >= '{start}' AND created_at < '{end}'",
}


@pytest.mark.parametrize("condition", WITHOUT_A_DAY.values(), ids=WITHOUT_A_DAY)
def test_a_query_without_a_day_reads_the_tables_that_may_have_its_rows(settings, condition):
    number = 5_000 + 10 * [*WITHOUT_A_DAY.values()].index(condition)  # tables of the other cases stay
    day = DAY.before(number)
    for ago in (number, number + 1):
        built = DAY.before(ago)
        made = [row(ago * 1000 + n, n, day=built.date, created_at=built.start + dt.timedelta(hours=n))
                for n in (1, 2)]  # fmt: skip
        build(settings, made, cut=5, run_id="old", day=built)
        publish(settings, built, "old")
    of_day = condition.format(number=number, start=day.start, end=day.end)
    assert rows(settings, f"SELECT DISTINCT day FROM board_detail WHERE {of_day}") == [(day.date,)]
    ((plan,),) = rows(settings, f"EXPLAIN (FORMAT JSON) SELECT * FROM board_detail WHERE {of_day}")
    assert sum(name.startswith("detail_final") for name in _relations(plan[0]["Plan"])) == 1
