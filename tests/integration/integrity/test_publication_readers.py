"""Readers see whole days and wait for nothing while days are published, undone and pruned."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg2
import pytest

from include.integrity.days.pruning import collect_orphans
from include.integrity.days.publication import redo, undo
from stack.postgres import find, from_wheel
from tests.servers import wait_until
from tests.support.certifying import certify_alone
from tests.support.pipeline import migrated, rows
from tests.support.publication import COUNT, Reader, open_as, publish
from tests.support.serving import DAY, build, opened_store, row, serve

SIZES = {"first": 40, "second": 55, "third": 70}
SHOWN = "SELECT generation_id FROM day_publication WHERE day = %s"
TABLE = "SELECT oid::regclass::text FROM pg_class WHERE relname = %s"
WAITING = "SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'AccessShareLock'"
LEFT = "SELECT count(*) FROM pg_class WHERE relname ~ '^detail_final_g[0-9]+$'"


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "readers", tmp_path)


def built(settings, title, cut=1000):
    return build(settings, [row(n, n, title=title) for n in range(SIZES[title])], cut=cut, run_id=title)


def certified_day(settings):
    """Certify the day, whatever differences its generations have in these tests."""
    rows(settings, "UPDATE detail_correction SET class = 'late' WHERE class = 'unexplained'")
    rows(settings, "DELETE FROM dirty_day")
    assert certify_alone(settings, DAY).reason is None


def live(settings, count=30):
    store = opened_store(settings)
    try:
        serve(store, [row(n, n, title="live") for n in range(count)])
    finally:
        store.close()


def test_a_reader_sees_one_generation_whole_whatever_happens_meanwhile(settings):
    live(settings)
    whole = {((title, size),) for title, size in {**SIZES, "live": 30}.items()}
    with Reader(settings, str(DAY)).reading() as reader:
        for title in SIZES:
            built(settings, title)
            publish(settings, DAY, title)
        for _ in range(5):
            for step in (undo, undo, redo, redo, undo, undo, undo, redo, redo, redo):
                step(settings, DAY, "test")
                seen = sum(reader.seen.values())
                wait_until(lambda seen=seen: sum(reader.seen.values()) > seen or bool(reader.errors), 30, "it reads on")
    assert reader.errors == []
    assert set(reader.seen) == whole


def test_a_reader_of_certified_days_sees_a_certified_generation_whole_or_nothing(settings):
    certified = COUNT.replace("masked", "certified")
    with Reader(settings, str(DAY), certified).reading() as reader:

        def await_reading():
            seen = sum(reader.seen.values())
            wait_until(lambda: sum(reader.seen.values()) > seen + 1 or bool(reader.errors), 30, "it reads on")

        for title in ("first", "second"):
            built(settings, title)
            publish(settings, DAY, title)
            await_reading()
            certified_day(settings)
            await_reading()
        for _ in range(5):
            undo(settings, DAY, "test")
            await_reading()
            redo(settings, DAY, "test")
            certified_day(settings)
            await_reading()
    assert reader.errors == []
    assert set(reader.seen) == {(), *(((title, SIZES[title]),) for title in ("first", "second"))}


def test_an_old_snapshot_and_a_query_under_way_hold_nobody_up_and_keep_their_day(settings):
    built(settings, "first")
    publish(settings, DAY, "first")
    reader = open_as(settings, "analyst")
    try:
        with reader.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute(COUNT, (str(DAY),))
            before = cursor.fetchall()
            for number in range(4):  # more than are kept: the first one's table is to be dropped
                listed = [row(n, n, title=f"t{number}") for n in range(9)]
                build(settings, listed, cut=1000 + number, run_id=f"r{number}")
                publish(settings, DAY, f"r{number}", accept_vanishing=True)
            undo(settings, DAY, "test")
            cursor.execute(COUNT, (str(DAY),))
            assert cursor.fetchall() == before == [("first", SIZES["first"])]
            assert rows(settings, COUNT, (str(DAY),)) == [("t2", 9)]  # and a new reader waits for nobody
            assert rows(settings, LEFT) > [(3,)]
    finally:
        reader.close()
    collect_orphans(settings)
    assert rows(settings, LEFT) == [(3,)]


def test_a_query_that_is_planned_while_a_day_is_published_sees_the_day(settings, postgres):
    """It has the list of tables and waits for the lock of one; the day's new table is not in the list."""
    other = DAY.before(1)
    published = build(settings, [row(1, 1, day=other.date, title="other")], cut=9, run_id="other", day=other)
    publish(settings, other, "other")
    built(settings, "first")
    publish(settings, DAY, "first")
    question = "SELECT title, count(*) FROM board_detail_masked GROUP BY title"
    superuser = psycopg2.connect(postgres.superuser_dsn("readers"))
    with ThreadPoolExecutor() as threads, closing(superuser), superuser.cursor() as cursor:
        cursor.execute(TABLE, (f"detail_final_g{published}",))
        cursor.execute(f"LOCK TABLE {cursor.fetchone()[0]} IN ACCESS EXCLUSIVE MODE")
        asked = threads.submit(rows, settings, question, role="analyst")
        wait_until(lambda: rows(settings, WAITING) != [], 30, "the query waits for the table")
        second = built(settings, "second")
        publishing = threads.submit(publish, settings, DAY, "second")
        wait_until(lambda: rows(settings, SHOWN, (DAY.date,)) == [(second,)], 30, "the day shows it")
        superuser.rollback()
        assert sorted(asked.result()) == [("first", SIZES["first"]), ("other", 1)]
        publishing.result()


def test_a_dump_taken_meanwhile_is_of_one_generation(settings, postgres, tmp_path):
    binaries = from_wheel() or find(os.environ)
    folder = binaries.postgres.parent
    if not ((folder / "pg_dump").exists() and (folder / "psql").exists()):
        pytest.skip("this PostgreSQL has no pg_dump")
    live(settings)
    for title in SIZES:
        built(settings, title)
        publish(settings, DAY, title)
    file = tmp_path / "dump.sql"
    source, target = postgres.superuser_dsn("readers"), postgres.new_database("restored")
    dump = subprocess.Popen([folder / "pg_dump", "--dbname", source, "--file", file])
    steps = 0
    try:
        while dump.poll() is None or steps < 4:
            (redo if steps % 2 else undo)(settings, DAY, "test")
            steps += 1
    finally:
        dump.kill()  # nothing happens when it has ended
    assert dump.wait() == 0
    subprocess.run(
        [folder / "psql", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", target, "--file", file],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    with psycopg2.connect(target) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT title, count(*) FROM board_detail WHERE day = %s GROUP BY title", (str(DAY),))
        assert cursor.fetchall() in [[(title, SIZES[title])] for title in ("second", "third")]


def _plan(settings, statement, parameters=None, setting="auto"):
    connection = open_as(settings, "pipeline_owner")
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SET plan_cache_mode = {setting}")
            cursor.execute("PREPARE of_a_day (date) AS " + statement)
            cursor.execute("EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, FORMAT JSON) EXECUTE of_a_day (%s)", parameters)
            return cursor.fetchone()[0][0]["Plan"]
    finally:
        connection.close()


def _read_generations(plan):
    name = plan.get("Relation Name", "")
    found = {name} if name.startswith("detail_final_g") and plan["Actual Loops"] else set()
    for inner in plan.get("Plans", []):
        found |= _read_generations(inner)
    return found


@pytest.mark.parametrize("view", ["board_detail", "board_detail_masked", "board_detail_certified"])
@pytest.mark.parametrize("setting", ["force_custom_plan", "force_generic_plan"])
def test_a_query_of_one_day_reads_one_generation(settings, view, setting):
    shown = None
    for title in SIZES:  # three generations are kept, and one more is built and not published
        shown = built(settings, title)
        publish(settings, DAY, title)
    build(settings, [row(1, 1)], cut=2000, run_id="dry")
    live(settings, count=3)
    certified_day(settings)
    rows(settings, "ANALYZE detail_final")
    statement = f"SELECT count(*), min(phone) FROM {view} WHERE day = $1"
    plan = _plan(settings, statement, (str(DAY),), setting)
    assert _read_generations(plan) == {f"detail_final_g{shown}"}


def test_a_masked_number_shows_its_last_two_digits_and_no_function_sees_the_rest(settings):
    numbers = ["010-1234-5678", "12345", "1234", "", None]
    build(settings, [row(n, n, phone=phone) for n, phone in enumerate(numbers)], cut=9, run_id="r")
    publish(settings, DAY, "r")
    masked = "SELECT phone FROM board_detail_masked ORDER BY board_id"
    wanted = [("***********78",), ("***45",), ("****",), ("",), (None,)]
    assert rows(settings, masked, role="analyst") == wanted
    found = "SELECT count(*) FROM board_detail_masked WHERE phone LIKE '%1234%'"
    assert rows(settings, found, role="analyst") == [(0,)]


def test_an_error_names_a_hidden_row_but_no_phone(settings):
    """PostgreSQL casts before it asks whether the row is covered."""
    with closing(opened_store(settings)) as store:
        serve(store, [row(1, 1, title="taken back", phone="010-8888-1234")])
    build(settings, [row(1, 2, title="true", phone=None)], cut=3, run_id="r")
    publish(settings, DAY, "r")
    assert rows(settings, "SELECT title, phone FROM board_detail_masked", role="analyst") == [("true", None)]
    with pytest.raises(psycopg2.DataError, match="taken back"):
        rows(settings, "SELECT FROM board_detail_masked WHERE title::boolean", role="analyst")
    with pytest.raises(psycopg2.DataError, match=r'"\*{11}34"') as error:
        rows(settings, "SELECT FROM board_detail_masked WHERE phone::boolean", role="analyst")
    assert "8888" not in str(error.value)
