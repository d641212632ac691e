"""A board that moved from one published day to another: the day that it left is rebuilt in every case."""

import contextlib
import datetime as dt

import pytest

from include.integrity.days.due_days import DirtyDay, dirty_days
from include.integrity.days.pruning import cover
from include.integrity.days.publication import redo, undo
from tests.support.pipeline import migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, NOON, build, exclude, opened_store, row, serve, tombstone

OLD = DAY.before(1)
LATER = NOON + dt.timedelta(hours=1)
LEFT = [DirtyDay(OLD.date, {"moved board": 1}, None)]


@pytest.fixture
def settings(postgres, tmp_path):
    """A published day that shows boards 1 and 2."""
    made = migrated(None, postgres, "moved_boards", tmp_path)
    build(made, [stood(1, 1), stood(2, 2)], cut=5, run_id="a", day=OLD)
    publish(made, OLD, "a")
    return made


@pytest.fixture
def store(settings):
    with contextlib.closing(opened_store(settings)) as opened:
        yield opened


def stood(board_id, offset):
    """The board's version of the day that it leaves."""
    return row(board_id, offset, day=OLD.date, created_at=OLD.start, modified_at=OLD.start)


def moved(board_id, offset, at=LATER):
    """The board's version that says the next day."""
    return row(board_id, offset, modified_at=at)


def published(settings, day, listed, cut, run_id, without=(), at=LATER):
    """Build the day and publish it; `without`: (kind, board, offset)."""
    generation = build(settings, listed, cut=cut, run_id=run_id, day=day)
    for kind, board, offset in without:
        exclude(settings, generation, kind, board, offset, at)
    publish(settings, day, run_id)


def test_a_board_that_moved_while_the_stream_was_down_leaves_its_old_day_dirty(settings, store):
    published(settings, DAY, [moved(2, 7), moved(3, 8)], cut=9, run_id="b")
    assert dirty_days(settings) == LEFT
    serve(store, [moved(2, 7), moved(3, 8)])  # the stream comes back, and the next day covers it all
    assert dirty_days(settings) == LEFT
    published(settings, OLD, [stood(1, 1)], cut=9, run_id="c", without=[("moved", 2, 7)])
    assert dirty_days(settings) == []


def test_the_old_day_is_dirty_as_soon_as_the_new_one_is_published(settings):
    published(settings, DAY, [moved(2, 7)], cut=9, run_id="b")
    assert rows(settings, "SELECT day, cause, count FROM dirty_day") == [(OLD.date, "moved board", 1)]


def test_a_board_that_the_stream_saw_moving_is_found_when_its_new_day_covers_it(settings, store):
    serve(store, [moved(2, 7)])
    published(settings, DAY, [moved(2, 7)], cut=9, run_id="b")
    cover(settings, DAY)
    assert dirty_days(settings) == LEFT


def test_a_board_that_moved_and_was_deleted_while_its_old_day_was_undone_leaves_it_dirty(settings, store):
    undo(settings, OLD, "r")
    serve(store, [moved(2, 7)])
    serve(store, [tombstone(2, 8, LATER + dt.timedelta(hours=1)) | {"kafka_offset": 9}])  # of the next day
    redo(settings, OLD, "r")
    assert dirty_days(settings) == LEFT
    published(settings, DAY, [], cut=9, run_id="b", without=[("deleted", 2, 8)], at=LATER + dt.timedelta(hours=1))
    cover(settings, DAY)
    rows(settings, "DELETE FROM dirty_day")
    undo(settings, OLD, "r")
    redo(settings, OLD, "r")
    assert dirty_days(settings) == LEFT


def test_an_undo_and_a_redo_bring_the_mark_back(settings):
    published(settings, DAY, [moved(2, 7)], cut=9, run_id="b")
    undo(settings, DAY, "r")
    undo(settings, OLD, "r")
    assert dirty_days(settings) == []
    redo(settings, OLD, "r")
    assert dirty_days(settings) == []
    redo(settings, DAY, "r")
    assert dirty_days(settings) == LEFT
    undo(settings, OLD, "r")
    redo(settings, OLD, "r")
    assert dirty_days(settings) == LEFT


def test_a_day_whose_rebuild_changes_nothing_is_dirty_no_more(settings):
    """Its raw records do not say that the board moved: it would be rebuilt every night."""
    published(settings, DAY, [moved(2, 3)], cut=4, run_id="b")  # below the cut of the day that shows it
    assert dirty_days(settings) == []


def test_a_record_that_the_day_was_built_from_marks_it_no_more(settings, store):
    """A copy of an older event can be the newest that the speed layer knows: its rebuild knows better, every night."""
    serve(store, [moved(2, 3)])
    assert dirty_days(settings) == []


def test_older_versions_and_boards_of_one_day_mark_nothing(settings, store):
    published(settings, DAY, [moved(2, 7, OLD.start - dt.timedelta(hours=1)), moved(3, 8)], cut=9, run_id="b")
    serve(store, [moved(4, 10)])
    assert [one.day for one in dirty_days(settings)] == [DAY.date]  # it shows a version that is older than the board's


def test_a_night_looks_again_when_the_publication_could_not(settings, monkeypatch):
    monkeypatch.setattr("include.integrity.days.publication.check_after_move", lambda *_: None)
    published(settings, DAY, [moved(2, 7)], cut=9, run_id="b")
    assert rows(settings, "SELECT count(*) FROM dirty_day") == [(0,)]
    assert dirty_days(settings) == LEFT
