"""The live table, the generations and the view, on a real PostgreSQL: fences, versions, pointer, corrections."""

import datetime as dt
from contextlib import closing, suppress

import psycopg2
import pytest

from include.archive.catalogue import ArchiveStore
from include.contracts.errors import BalanceBroken, DayBusy, NothingBuilt, StaleRun
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.generation_store import GenerationStore, Part
from include.database.named import PipelineConnection, query
from include.integrity.days.comparison import verify
from include.integrity.days.pruning import collect_orphans, cover, prune
from include.integrity.days.publication import SPEED_LAYER, Published, UndoRefused, redo, undo
from tests.servers import wait_until
from tests.support.certifying import certify_alone
from tests.support.messages import NOT_KEPT, NOTHING_BUILT
from tests.support.pipeline import migrated, rows
from tests.support.publication import open_as, publish
from tests.support.serving import DAY, NOON, build, exclude, opened_store, row, serve, tombstone

LATER = NOON + dt.timedelta(minutes=1)
VIEW = "SELECT board_id, title, finality FROM board_detail ORDER BY board_id"


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "serving", tmp_path)


@pytest.fixture
def store(settings):
    opened = opened_store(settings)
    yield opened
    opened.close()


def test_the_newest_version_wins_in_a_batch_and_between_batches(settings, store):
    serve(store, [row(1, 0), row(1, 2, modified_at=LATER), row(1, 1)])
    assert rows(settings, VIEW) == [(1, "v2", "live")]
    assert serve(store, [row(1, 3)]) == 0  # a replayed old version: newer in the topic, older in itself
    assert rows(settings, VIEW) == [(1, "v2", "live")]


def test_a_duplicate_keeps_the_place_of_its_first_copy(settings, store):
    serve(store, [row(1, 0, kafka_offset=6), row(1, 0, kafka_offset=5)])
    serve(store, [row(1, 0, kafka_offset=9)])
    assert rows(settings, "SELECT kafka_offset FROM board_detail") == [(5,)]


def test_a_tombstone_hides_its_board_and_an_older_version_does_not_bring_it_back(settings, store):
    serve(store, [row(1, 0)])
    serve(store, [tombstone(1, 1, LATER)])
    assert rows(settings, VIEW) == []
    serve(store, [row(1, 2)])
    assert rows(settings, VIEW) == []
    assert rows(settings, "SELECT day, deleted FROM detail_live") == [(DAY.date, True)]


def test_newer_versions_of_live_rows_touch_no_index(settings):
    """Ten batches of newer versions, each of boards all over the table."""
    count, batches = 5_000, 10
    with closing(opened_store(settings)) as store:
        serve(store, [row(n, n) for n in range(count)])
        offset = count
        for number in range(batches):
            boards = range(number, count, batches)
            newer = [row(n, offset + place, modified_at=LATER) for place, n in enumerate(boards)]
            assert serve(store, newer) == len(boards)
            offset += len(boards)
    updates = """SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'detail_live'"""
    wait_until(lambda: rows(settings, updates)[0][0] == count, 20, "the session has told its figures")
    assert rows(settings, updates)[0][1] >= 0.99 * count


def test_publishing_replaces_the_live_rows_that_the_cut_covers(settings, store):
    serve(store, [row(1, 0), row(2, 1), row(3, 5)])
    build(settings, [row(1, 0, title="rebuilt"), row(2, 1)], cut=5, run_id="r")
    verify(settings, DAY, "r")
    publish(settings, DAY, "r")
    assert rows(settings, VIEW) == [(1, "rebuilt", "final"), (2, "v1", "final"), (3, "v5", "live")]


def test_what_the_published_day_covers_is_not_served_again(settings, store):
    build(settings, [row(1, 0, modified_at=LATER)], cut=5, run_id="r")
    publish(settings, DAY, "r")
    assert serve(store, [row(1, 4), row(9, 3)]) == 0  # inside the cut
    assert serve(store, [row(1, 6)]) == 0  # after the cut, and older than the final row
    assert rows(settings, VIEW) == [(1, "v0", "final")]
    assert serve(store, [row(1, 7, modified_at=LATER + dt.timedelta(minutes=1)), row(8, 8)]) == 2
    assert rows(settings, VIEW) == [(1, "v7", "live"), (8, "v8", "live")]
    assert rows(settings, "SELECT cause, count FROM dirty_day") == [("late board", 2)]


def test_a_tombstone_after_publication_hides_the_final_row(settings, store):
    build(settings, [row(1, 0), row(2, 1)], cut=5, run_id="r")
    publish(settings, DAY, "r")
    serve(store, [tombstone(1, 6, LATER)])
    assert rows(settings, VIEW) == [(2, "v1", "final")]


@pytest.mark.parametrize("knows", ["the generation", "the tombstone that was served"])
@pytest.mark.parametrize("steps", [[], [undo, redo]], ids=["published", "undone and redone"])
def test_a_late_replay_does_not_bring_a_deleted_board_back(settings, store, knows, steps):
    serve(store, [row(1, 0), row(2, 1)])
    if knows != "the generation":
        serve(store, [tombstone(1, 3, LATER)])
    generation = build(settings, [row(2, 1)], cut=5, run_id="r")
    if knows == "the generation":
        exclude(settings, generation, "deleted", 1, 3, LATER)
    publish(settings, DAY, "r")
    for step in steps:
        step(settings, DAY, "test")
    cover(settings, DAY)
    rows(settings, "UPDATE detail_covered SET covered_at = covered_at - interval '30 days'")
    prune(settings, DAY)
    serve(store, [row(1, 7)])
    assert rows(settings, VIEW) == [(2, "v1", "final")]
    assert serve(store, [row(1, 8, modified_at=LATER + dt.timedelta(minutes=1))]) == 1  # it was posted again
    assert rows(settings, VIEW) == [(1, "v8", "live"), (2, "v1", "final")]


def test_a_late_replay_does_not_bring_a_board_back_to_the_day_it_left(settings, store):
    generation = build(settings, [row(2, 1)], cut=5, run_id="r")
    exclude(settings, generation, "moved", 1, 3, LATER)
    publish(settings, DAY, "r")
    serve(store, [row(1, 7)])
    assert rows(settings, VIEW) == [(2, "v1", "final")]


def test_a_board_that_was_pending_at_the_cut_is_served_when_its_member_comes(settings, store):
    build(settings, [row(1, 0)], cut=5, run_id="r", raw_distinct=2, pending=[(2, 3)])
    publish(settings, DAY, "r")
    assert serve(store, [row(2, 3, kafka_offset=7)]) == 1
    assert rows(settings, VIEW) == [(1, "v0", "final"), (2, "v3", "live")]
    assert rows(settings, "SELECT cause, count FROM dirty_day") == [("late member", 1)]


def test_a_board_whose_member_came_before_the_publication_stays_live(settings, store):
    build(settings, [row(1, 0)], cut=5, run_id="r", raw_distinct=2, pending=[(2, 3)])
    serve(store, [row(2, 3)])
    publish(settings, DAY, "r")
    assert rows(settings, VIEW) == [(1, "v0", "final"), (2, "v3", "live")]
    assert rows(settings, "SELECT cause FROM dirty_day") == [("late board",)]


def test_an_older_build_is_not_published_over_a_newer_one(settings):
    build(settings, [row(1, 0)], cut=5, run_id="old")
    build(settings, [row(1, 0), row(2, 6)], cut=9, run_id="new")
    publish(settings, DAY, "new")
    with pytest.raises((StaleRun, NothingBuilt)):
        publish(settings, DAY, "old")
    assert [board for board, *_ in rows(settings, VIEW)] == [1, 2]


def test_a_build_overtaken_by_a_publication_is_dropped(settings):
    for number in range(3):
        build(settings, [row(1, 0)], cut=5, run_id=f"dry{number}")
    build(settings, [row(1, 0)], cut=5, run_id="r")
    publish(settings, DAY, "r")
    assert rows(settings, "SELECT DISTINCT status FROM generation ORDER BY 1") == [("discarded",), ("published",)]


def test_what_came_after_the_cut_leaves_the_day_dirty(settings, store):
    serve(store, [row(1, 0), row(2, 8)])
    build(settings, [row(1, 0)], cut=5, run_id="r")
    publish(settings, DAY, "r")
    assert rows(settings, "SELECT dirty_count FROM day_status") == [(1,)]


def test_a_board_and_its_tombstone_in_one_batch_hide_the_final_row(settings, store):
    build(settings, [row(1, 0)], cut=5, run_id="r")
    serve(store, [row(1, 0), tombstone(1, 6, LATER)])
    publish(settings, DAY, "r")
    assert rows(settings, VIEW) == []


def test_a_tombstone_of_a_board_never_served_hides_the_final_row(settings, store):
    build(settings, [row(1, 0)], cut=5, run_id="r")
    serve(store, [tombstone(1, 6, LATER)])
    publish(settings, DAY, "r")
    assert rows(settings, VIEW) == []


def test_publishing_twice_and_rebuilding_give_the_same(settings):
    first = build(settings, [row(1, 0)], cut=5, run_id="a")
    assert [publish(settings, DAY, "a").generation_id for _ in range(2)] == [first, first]
    second = build(settings, [row(1, 0)], cut=5, run_id="b")
    assert publish(settings, DAY, "b") == Published(first, 0, was_identical=True)
    hashes = rows(settings, "SELECT DISTINCT content_hash FROM generation")
    assert len(hashes) == 1
    assert rows(settings, "SELECT id, status FROM generation ORDER BY id") == [
        (first, "published"), (second, "discarded")]  # fmt: skip


def test_old_generations_are_dropped_and_the_published_one_stays(settings):
    built = [build(settings, [row(1, 0)], cut=5, run_id=f"r{n}") for n in range(1)]
    for number in range(5):
        built.append(build(settings, [row(1, 0, title=f"t{number}")], cut=5, run_id=f"r{number}"))
        publish(settings, DAY, f"r{number}")
    assert prune(settings, DAY) == []
    collect_orphans(settings)
    tables = rows(settings, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'detail_final'::regclass")
    assert tables == [(3,)]
    assert rows(settings, VIEW) == [(1, "t4", "final")]


def test_every_difference_has_a_class(settings, store):
    serve(store, [row(1, 0), row(2, 1), row(3, 2, modified_at=NOON), row(4, 3), row(6, 9), row(7, 5)])
    generation = build(
        settings,
        [
            row(1, 0),  # the same
            row(2, 1, nickname="바뀐 이름", table_offset=4),
            row(3, 4, modified_at=LATER),
            row(5, 5),
            row(7, 5, title="nobody knows why"),
            row(8, 6, replayed=True),
        ],
        cut=9,
        run_id="r",
    )
    report = verify(settings, DAY, "r")
    found = rows(settings, "SELECT board_id, class FROM detail_correction WHERE generation_id = %s ORDER BY 1",
                 (generation,))  # fmt: skip
    assert found == [
        (2, "member_version_changed"),
        (3, "missing"),
        (4, "unexplained"),  # served, and the rebuild knows nothing of it
        (5, "missing"),
        (7, "unexplained"),
        (8, "recovered_from_fallback"),
    ]  # 6 came after the cut: it stays live and is no difference
    assert report.unexplained == 2


def test_a_day_without_differences_has_no_corrections(settings, store):
    serve(store, [row(1, 0), row(2, 1)])
    build(settings, [row(1, 0), row(2, 1)], cut=5, run_id="r")
    assert verify(settings, DAY, "r").corrections == {}


def test_a_late_board_is_told_from_a_missing_one(settings):
    build(settings, [row(1, 0)], cut=5, run_id="a")
    publish(settings, DAY, "a")
    build(settings, [row(1, 0), row(2, 6)], cut=9, run_id="b")
    assert verify(settings, DAY, "b").corrections == {"late": 1}


def test_a_day_is_certified_when_its_balance_adds_up(settings):
    build(settings, [row(1, 0), row(2, 1)], cut=5, run_id="r")
    publish(settings, DAY, "r")
    assert certify_alone(settings, DAY).count("rows") == 2
    assert rows(settings, "SELECT status, row_count FROM day_status") == [("certified", 2)]


def test_a_lost_board_is_noticed(settings):
    build(settings, [row(1, 0)], cut=5, run_id="r", raw_distinct=2)
    for step in (verify, publish):
        with pytest.raises(BalanceBroken, match="raw_distinct=2"):
            step(settings, DAY, "r")
    assert rows(settings, VIEW) == []


def test_a_generation_whose_balance_is_broken_is_shown_by_no_way_in(settings):
    for run_id in ("a", "b"):
        build(settings, [row(1, 0, title=run_id)], cut=5, run_id=run_id)
        publish(settings, DAY, run_id)
    rows(settings, "UPDATE generation SET raw_distinct = 2")
    with pytest.raises(BalanceBroken):
        undo(settings, DAY, "test", to=1)
    undo(settings, DAY, "test", to=SPEED_LAYER)
    with pytest.raises(BalanceBroken):
        redo(settings, DAY, "test")
    assert rows(settings, VIEW) == []


def test_a_published_day_that_lost_a_board_is_not_certified(settings):
    build(settings, [row(1, 0)], cut=5, run_id="r")
    publish(settings, DAY, "r")
    rows(settings, "UPDATE generation SET raw_distinct = 2")
    with pytest.raises(BalanceBroken):
        certify_alone(settings, DAY)
    assert rows(settings, "SELECT status FROM day_status") == [("rebuilt",)]


def test_a_built_table_is_vacuumed_and_analysed_before_it_can_be_shown(settings):
    generation_id = build(settings, [row(n, n) for n in range(1_000)], cut=1_000, run_id="r")
    table = f"generations.detail_final_g{generation_id}"
    assert rows(settings, """SELECT relpages > 0, relallvisible = relpages, reltuples FROM pg_class
                              WHERE oid = %s::regclass""", (table,)) == [(True, True, 1_000)]  # fmt: skip
    # no row is newer than what the next vacuum may take for frozen
    assert rows(settings, f"""SELECT bool_and(age(f.xmin) > age(c.relfrozenxid)) FROM {table} f, pg_class c
                               WHERE c.oid = %s::regclass""", (table,)) == [(True,)]  # fmt: skip
    ((columns,),) = rows(settings, "SELECT count(*) FROM pg_stats WHERE schemaname || '.' || tablename = %s", (table,))
    assert columns == 19


def test_a_table_that_somebody_else_vacuums_holds_up_no_build(settings, postgres):
    generation_id = build(settings, [row(1, 0)], cut=5, run_id="r")
    table = f"generations.detail_final_g{generation_id}"
    with (
        closing(psycopg2.connect(postgres.superuser_dsn(settings.database.name))) as other,
        other.cursor() as locking,
        closing(open_as(settings, "batch")) as connection,
        connection.cursor() as cursor,
    ):
        locking.execute(f"LOCK TABLE {table} IN SHARE UPDATE EXCLUSIVE MODE")  # as VACUUM and ANALYZE do
        connection.autocommit = True
        cursor.execute("SET lock_timeout = '2s'")
        cursor.execute(query("analyze_generation", PIPELINE), {"generation_id": generation_id})
        cursor.execute(query("freeze_generation", PIPELINE).format(table=table))
        assert len([notice for notice in connection.notices if "lock not available" in notice]) == 2


def test_rows_that_were_dropped_while_the_servers_clock_was_ahead_refuse_no_later_undo(settings, store):
    serve(store, [row(1, 0)])
    build(settings, [row(1, 0)], cut=1, run_id="first")
    publish(settings, DAY, "first")
    rows(settings, "UPDATE day_publication SET undoable_since = now() + interval '1 year'")
    with pytest.raises(UndoRefused, match=NOT_KEPT):
        undo(settings, DAY, "test")
    serve(store, [row(2, 1)])
    build(settings, [row(1, 0), row(2, 1)], cut=2, run_id="second")
    publish(settings, DAY, "second")
    undo(settings, DAY, "test")


def test_there_is_nothing_to_publish_before_a_build(settings):
    with pytest.raises(NothingBuilt, match=NOTHING_BUILT):
        publish(settings, DAY, "r")


def test_a_day_is_held_by_one_run(settings):
    store = GenerationStore(settings.database)
    with store.hold(DAY), pytest.raises(DayBusy), store.hold(DAY):
        pass


@pytest.mark.parametrize(("store", "arguments"), [(GenerationStore, (DAY,)), (ArchiveStore, ())])
def test_a_lock_is_free_before_the_server_has_noticed_the_end_of_its_session(settings, store, arguments, monkeypatch):
    ended = []
    monkeypatch.setattr(PipelineConnection, "close", lambda connection: ended.append(connection), raising=False)
    for number in range(4):
        with suppress(InterruptedError), store(settings.database).hold(*arguments):
            if number % 2:
                raise InterruptedError
    monkeypatch.undo()
    for connection in ended:
        connection.close()
    assert len(ended) == 4


def test_a_retried_task_loads_nothing_twice(settings):
    generation = build(settings, [row(1, 0)], cut=5, run_id="r")
    again = Part(0, 1, lambda *_: pytest.fail("copied again"))
    assert GenerationStore(settings.database).save_part(generation, DAY, again) is False


def test_a_retried_run_replaces_its_own_try(settings):
    build(settings, [row(1, 0)], cut=5, run_id="r")
    second = build(settings, [row(1, 0), row(2, 1)], cut=5, run_id="r")
    assert verify(settings, DAY, "r").generation.generation_id == second
    assert publish(settings, DAY, "r").generation_id == second
    assert rows(settings, "SELECT status FROM generation ORDER BY id") == [("discarded",), ("published",)]


def test_a_reader_with_an_open_snapshot_keeps_its_day(settings, postgres):
    build(settings, [row(1, 0)], cut=5, run_id="a")
    publish(settings, DAY, "a")
    reader = psycopg2.connect(postgres.superuser_dsn("serving"))
    try:
        with reader.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute(VIEW)
            before = cursor.fetchall()
            build(settings, [row(1, 0), row(2, 1)], cut=5, run_id="b")
            publish(settings, DAY, "b")
            cursor.execute(VIEW)
            assert cursor.fetchall() == before == [(1, "v0", "final")]
    finally:
        reader.close()
    assert len(rows(settings, VIEW)) == 2
