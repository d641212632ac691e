"""Publishers that are killed, suspended or concurrent, and generations left behind by dead builds."""

import contextlib
import dataclasses
import datetime as dt
import itertools
import threading

import pytest

from include.contracts.errors import DayBusy, NothingBuilt, StaleRun
from include.database.generation_store import GenerationStore
from include.integrity.days import day_pointer, publication
from include.integrity.days.comparison import verify
from include.integrity.days.pruning import collect_orphans
from include.integrity.days.publication import UndoRefused, history, redo, undo
from spark_jobs.speed import live_table
from tests.servers import wait_until
from tests.support.pipeline import environment, migrated, rows
from tests.support.publication import KilledPublisher, open_as, publish, wait_for_end_of_backends
from tests.support.serving import DAY, NOON, build, exclude, opened_store, row, serve, tombstone

VIEW = "SELECT board_id, title, finality FROM board_detail ORDER BY board_id"
TABLES = "SELECT relname FROM pg_class WHERE relname ~ '^detail_final_g[0-9]+$' ORDER BY 1"
STATUS = "SELECT id, status FROM generation ORDER BY id"
BEFORE = [(1, "v0", "live"), (2, "v1", "live"), (3, "v7", "live")]
AFTER = [(1, "rebuilt", "final"), (3, "v7", "live")]


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "faults", tmp_path)


def served(settings):
    store = opened_store(settings)
    try:
        serve(store, [row(1, 0), row(2, 1), row(3, 7)])
    finally:
        store.close()


def rebuilt(settings, rows, run_id):
    """Build it; raw refused board 2, which the speed layer shows."""
    exclude(settings, build(settings, rows, cut=5, run_id=run_id), "rejected", 2, 1)


@pytest.mark.parametrize(("call", "start", "end"), [("publish", BEFORE, AFTER), ("undo", AFTER, BEFORE)])
def test_killed_before_any_statement_the_day_is_the_old_or_the_new_one_and_trying_again_ends_it(
    settings, postgres, tmp_path, call, start, end
):
    served(settings)
    rebuilt(settings, [row(1, 0, title="rebuilt")], "r")
    variables = environment(None, postgres, "faults", tmp_path)
    calls = {
        "publish": "publication.publish(settings, day, 'r')",
        # as a task tries again: what its own run changed is done
        "undo": "publication.history(settings, day)[-1].made_by == 'me' "
                "or publication.undo(settings, day, 'test', made_by='me')",
    }  # fmt: skip
    if call == "undo":
        publish(settings, DAY, "r")
    else:
        verify(settings, DAY, "r")
    publisher = KilledPublisher(calls[call], variables)
    try:
        for statement in itertools.count(1):
            code = publisher.run_killed_at(statement)
            wait_for_end_of_backends(settings)
            assert rows(settings, VIEW) in (start, end)
            if code == 0:
                break
    finally:
        publisher.close()
    assert statement > 8  # it was killed in the middle, more than once
    assert rows(settings, VIEW) == end
    assert [one.action for one in history(settings, DAY)] == (["publish"] if call == "publish" else ["publish", "undo"])


def test_of_two_builds_published_at_once_one_wins(settings):
    served(settings)
    for run_id in ("a", "b"):
        rebuilt(settings, [row(1, 0, title=run_id)], run_id)
    outcomes = {}

    def go(run_id):
        try:
            outcomes[run_id] = publish(settings, DAY, run_id).generation_id
        except (StaleRun, NothingBuilt) as exc:
            outcomes[run_id] = type(exc).__name__

    threads = [threading.Thread(target=go, args=(run_id,)) for run_id in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [run_id for run_id, outcome in outcomes.items() if isinstance(outcome, int)]
    assert rows(settings, VIEW) == [(1, winner, "final"), (3, "v7", "live")]
    assert len(history(settings, DAY)) == 1


def test_undo_and_publish_at_once_leave_one_of_the_whole_days(settings):
    served(settings)
    rebuilt(settings, [row(1, 0, title="a")], "a")
    publish(settings, DAY, "a")
    rebuilt(settings, [row(1, 0, title="b")], "b")
    barrier = threading.Barrier(2)
    errors = []

    def go(step):
        barrier.wait()
        try:
            step()
        except (StaleRun, UndoRefused) as exc:
            errors.append(exc)

    threads = [
        threading.Thread(target=go, args=(lambda: undo(settings, DAY, "test"),)),
        threading.Thread(target=go, args=(lambda: publish(settings, DAY, "b"),)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    last = history(settings, DAY)[-1].to_generation_id
    first_board = {None: (1, "v0", "live"), 1: (1, "a", "final"), 2: (1, "b", "final")}[last]
    assert rows(settings, VIEW)[0] == first_board
    assert len(history(settings, DAY)) == 3 - len(errors)


def test_a_batch_of_the_speed_layer_under_way_is_waited_for_and_covered(settings):
    served(settings)
    rebuilt(settings, [row(1, 0, title="rebuilt")], "r")
    batch = open_as(settings, "stream")
    publisher = threading.Thread(target=publish, args=(settings, DAY, "r"))
    try:
        with batch.cursor() as cursor:
            cursor.execute("SELECT 1 FROM day_publication WHERE day = %s FOR SHARE", (DAY.date,))
            publisher.start()
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'publish' " \
                      "AND wait_event_type = 'Lock'"  # fmt: skip
            wait_until(lambda: rows(settings, waiting) == [(1,)], 30, "the publication waits for the batch")
            cursor.execute("UPDATE detail_live SET title = 'written late' WHERE board_id = 2")
        batch.commit()
    finally:
        batch.close()
        publisher.join()
    assert rows(settings, VIEW) == AFTER
    undo(settings, DAY, "test")
    assert rows(settings, VIEW) == [(1, "v0", "live"), (2, "written late", "live"), (3, "v7", "live")]


def test_somebody_who_never_lets_go_of_the_day_makes_it_busy(settings, monkeypatch):
    monkeypatch.setattr(day_pointer, "LIMITS", dataclasses.replace(day_pointer.LIMITS, lock_s=0.2))
    build(settings, [row(1, 0)], cut=5, run_id="r")
    publish(settings, DAY, "r")
    somebody = open_as(settings, "batch")
    try:
        with somebody.cursor() as cursor:
            cursor.execute("SELECT 1 FROM day_publication WHERE day = %s FOR UPDATE", (DAY.date,))
            with pytest.raises(DayBusy):
                undo(settings, DAY, "test")
    finally:
        somebody.close()
    assert rows(settings, VIEW) == [(1, "v0", "final")]


def test_a_run_that_is_tried_again_waits_for_no_reader(settings):
    first = build(settings, [row(1, 0)], cut=5, run_id="r")
    with contextlib.closing(open_as(settings, "analyst")) as reader, reader.cursor() as cursor:
        cursor.execute("SELECT FROM board_detail_masked")
        second = build(settings, [row(1, 0)], cut=5, run_id="r")
        assert rows(settings, TABLES) == [(f"detail_final_g{n}",) for n in (first, second)]
    collect_orphans(settings)
    assert rows(settings, TABLES) == [(f"detail_final_g{second}",)]


def test_a_table_that_is_read_is_dropped_when_its_reader_has_gone(settings):
    for number in range(5):
        reader = open_as(settings, "analyst")
        try:
            with reader.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM board_detail_masked")
                build(settings, [row(1, 0, title=f"t{number}")], cut=5 + number, run_id=f"r{number}")
                publish(settings, DAY, f"r{number}")
        finally:
            reader.close()
    assert len(rows(settings, TABLES)) > 3
    collect_orphans(settings)
    assert rows(settings, TABLES) == [(f"detail_final_g{n}",) for n in (3, 4, 5)]
    assert rows(settings, VIEW) == [(1, "t4", "final")]


def test_orphans_are_collected_and_what_is_being_built_is_not(settings):
    store = GenerationStore(settings.database)
    cut = {"board": {0: 5}, "member": {0: 0}}
    shown = build(settings, [row(1, 0)], cut=5, run_id="shown")
    publish(settings, DAY, "shown")
    dry = build(settings, [row(1, 0, title="dry")], cut=5, run_id="dry")
    old = build(settings, [row(1, 0, title="old dry")], cut=5, run_id="old")
    rows(settings, "UPDATE generation SET built_at = now() - interval '25 hours' WHERE id = %s", (old,))
    rows(settings, "SELECT generations.create_table(999, '2026-11-20')", role="batch")
    with store.hold(DAY):
        building = store.begin(DAY, "alive", None, cut, {})
        found = [one.generation_id for one in collect_orphans(settings)]
        assert found == [old]
        names = [f"detail_final_g{n}" for n in sorted((shown, dry, building))]
        assert sorted(name for (name,) in rows(settings, TABLES)) == names
    (orphan,) = collect_orphans(settings)  # its driver let go of the day, and never finished
    assert (orphan.generation_id, orphan.reason) == (building, "its driver is dead")
    assert collect_orphans(settings) == []
    assert [status for _, status in rows(settings, STATUS)] == ["published", "built", "discarded", "discarded"]
    assert publish(settings, DAY, "dry").generation_id == dry  # a dry run of today can still be published


def test_a_tombstone_that_is_written_while_its_day_is_published_hides_its_board_at_once(settings, monkeypatch):
    served(settings)
    rebuilt(settings, [row(1, 0), row(9, 2)], "r")
    publisher = threading.Thread(target=publish, args=(settings, DAY, "r"))
    look = live_table.set_tombstone_days

    def look_and_let_publish(cursor):
        days = look(cursor)  # no day shows board 9 yet
        publisher.start()
        blocked = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'publish' AND wait_event_type = 'Lock'"
        )
        shown = "SELECT count(*) FROM day_publication WHERE generation_id IS NOT NULL"
        wait_until(lambda: rows(settings, blocked) == [(1,)] or rows(settings, shown) == [(1,)], 30, "it is published")
        return days

    monkeypatch.setattr(live_table, "set_tombstone_days", look_and_let_publish)
    store = opened_store(settings)
    try:
        serve(store, [tombstone(9, 8, NOON + dt.timedelta(minutes=1))])
    finally:
        store.close()
        publisher.join()
    assert [board for board, *_ in rows(settings, VIEW)] == [1, 3]
    assert rows(settings, "SELECT cause, count FROM dirty_day") == [("late board", 2)]


def test_publishing_ends_well_although_old_generations_cannot_be_pruned(settings, monkeypatch, caplog):
    build(settings, [row(1, 0)], cut=5, run_id="r")
    monkeypatch.setattr(publication, "prune", lambda *_: (_ for _ in ()).throw(DayBusy(day=DAY)))
    assert publish(settings, DAY, "r").generation_id == 1
    assert "left to the next" in caplog.text


def test_what_was_undone_can_be_redone_after_a_restart_of_the_server(settings, postgres):
    served(settings)
    rebuilt(settings, [row(1, 0, title="rebuilt")], "r")
    publish(settings, DAY, "r")
    undo(settings, DAY, "test")
    postgres.stop()
    postgres.start()
    assert redo(settings, DAY, "test").covered == 2
    assert rows(settings, VIEW) == AFTER
