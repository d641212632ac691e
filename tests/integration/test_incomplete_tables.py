"""Tables of generations that an earlier release built get what new ones are made with, by the nightly `collect`."""

from contextlib import closing

import pytest

from include.adapters.postgres import generation_indexes
from include.integrity.pruning import collect_orphans
from tests.support.pipeline import migrated, rows
from tests.support.publication import open_as, publish
from tests.support.serving import DAY, build, row

BOUNDS = """
SELECT conname, convalidated FROM pg_constraint
 WHERE conrelid = %s::regclass AND contype = 'c' AND pg_get_constraintdef(oid) LIKE '%%board_id%%'
"""
INDEXES = """
SELECT indexname FROM pg_indexes
 WHERE schemaname || '.' || tablename = %s AND indexdef LIKE '%%(member_id)'
"""


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "incomplete_tables", tmp_path)


@pytest.fixture
def tables(settings):
    """Two published days, with tables as they were before."""
    made = []
    for number in (0, 1):
        day = DAY.before(number)
        made_of = [row(10 * number + n, 10 * number + n, day=day.date, created_at=day.start) for n in (1, 2)]
        table = f"generations.detail_final_g{build(settings, made_of, cut=50, run_id='r', day=day)}"
        publish(settings, day, "r")
        assert len(bounds(settings, table)) == len(indexes(settings, table)) == 1
        rows(settings, f"ALTER TABLE {table} DROP CONSTRAINT {bounds(settings, table)[0][0]};"
                       f"DROP INDEX {table}_table_key")  # fmt: skip
        made.append(table)
    return made


def bounds(settings, table):
    return rows(settings, BOUNDS, (table,))


def indexes(settings, table):
    return rows(settings, INDEXES, (table,))


def is_complete(settings, table):
    return [valid for _, valid in bounds(settings, table)] == [True] and len(indexes(settings, table)) == 1


def test_collect_completes_the_tables_of_an_earlier_release(settings, tables):
    build(settings, [], cut=50, run_id="empty", day=DAY.before(5))
    before = rows(settings, "SELECT * FROM board_detail ORDER BY board_id")
    collect_orphans(settings)
    assert [is_complete(settings, table) for table in tables] == [True, True]
    assert rows(settings, "SELECT * FROM board_detail ORDER BY board_id") == before
    collect_orphans(settings)
    assert [len(indexes(settings, table)) for table in tables] == [1, 1]
    plan = str(rows(settings, "EXPLAIN (VERBOSE) SELECT * FROM board_detail WHERE board_id = 11"))
    assert tables[1] in plan
    assert tables[0] not in plan


def test_tables_that_are_read_get_their_check_the_next_night(settings, tables):
    with closing(open_as(settings, "batch")) as reader, reader.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM board_detail")  # and the transaction stays open
        collect_orphans(settings)
        assert [len(indexes(settings, table)) for table in tables] == [1, 1]
        assert [bounds(settings, table) for table in tables] == [[], []]
    collect_orphans(settings)
    assert [is_complete(settings, table) for table in tables] == [True, True]


def test_a_table_that_is_read_keeps_no_other_waiting(settings, tables):
    with closing(open_as(settings, "batch")) as reader, reader.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {tables[1]}")  # the newest, which is first
        collect_orphans(settings)
        assert [is_complete(settings, table) for table in tables] == [True, False]
    collect_orphans(settings)
    assert [is_complete(settings, table) for table in tables] == [True, True]


def test_a_check_that_was_not_validated_is(settings, tables, monkeypatch):
    monkeypatch.setattr(generation_indexes, "_STEPS", ("index_table_key", "add_bounds"))
    collect_orphans(settings)
    assert [valid for table in tables for _, valid in bounds(settings, table)] == [False, False]
    monkeypatch.undo()
    collect_orphans(settings)
    assert [is_complete(settings, table) for table in tables] == [True, True]
