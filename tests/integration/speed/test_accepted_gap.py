"""Records in an accepted gap of the archive, which no build can read any more: the stream's rows of them stay.

On a real PostgreSQL. The builds are those of a rebuild from the archive: their cut ends where the gap begins.
"""

import datetime as dt
from contextlib import closing

import pytest

from include.contracts.errors import StaleRun
from include.integrity.days.comparison import RowsWouldVanish, verify
from include.integrity.days.due_days import DirtyDay, days_to_rebuild, dirty_days
from include.integrity.days.pruning import cover
from tests.support.certifying import certify_alone
from tests.support.pipeline import migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, NOON, build, exclude, opened_store, row, serve, tombstone

LATER = NOON + dt.timedelta(hours=1)
VIEW = "SELECT board_id, title FROM board_detail ORDER BY board_id"
BOARDS = [row(number, number) for number in (1, 2, 3)]
LOST = (4, 7)
SERVED = [tombstone(1, 4, LATER), row(2, 5, modified_at=LATER), row(6, 6)]  # deleted, edited, posted


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "accepted_gap", tmp_path)


@pytest.fixture
def store(settings):
    with closing(opened_store(settings)) as store:
        yield store


@pytest.fixture
def published(settings, store):
    """The day as it was archived is published; since then boards of it were deleted, edited and posted."""
    build(settings, BOARDS, cut=4, run_id="first")
    publish(settings, DAY, "first")
    serve(store, SERVED)


def shown(settings):
    return rows(settings, VIEW)


def test_what_was_served_from_the_gap_outlives_a_rebuild_without_it(settings, published):
    before = shown(settings)
    assert before == [(2, "v5"), (3, "v3"), (6, "v6")]
    build(settings, BOARDS, cut=4, run_id="second", unread=LOST)
    assert verify(settings, DAY, "second").corrections == {}
    publish(settings, DAY, "second")
    cover(settings, DAY)
    assert shown(settings) == before
    assert dirty_days(settings) == [DirtyDay(DAY.date, {"unread board": 3}, None)]


def test_a_record_after_the_gap_is_told_from_those_in_it(settings, store, published):
    serve(store, [row(8, 8)])
    build(settings, BOARDS, cut=4, run_id="second", unread=LOST)
    publish(settings, DAY, "second")
    assert dirty_days(settings) == [DirtyDay(DAY.date, {"late board": 1, "unread board": 3}, None)]


def test_a_day_that_only_a_gap_makes_dirty_is_not_rebuilt_every_night_and_not_certified(settings, published, caplog):
    build(settings, BOARDS, cut=4, run_id="second", unread=LOST)
    publish(settings, DAY, "second")
    assert days_to_rebuild(settings, DAY.before(1), lambda *_: []) == []
    assert f"day {DAY} is dirty (3 unread board) and is left alone" in caplog.text
    certificate = certify_alone(settings, DAY)
    assert "3 board keys are shown, or hidden, as the stream has them" in certificate.reason
    assert not certificate.needs_only_rebuild


def test_a_deletion_that_is_sent_again_ends_it(settings, store, published):
    build(settings, BOARDS, cut=4, run_id="second", unread=LOST)
    publish(settings, DAY, "second")
    serve(store, [tombstone(number, offset, LATER + dt.timedelta(1)) for number, offset in ((1, 8), (2, 9), (6, 10))])
    third = build(settings, BOARDS[2:], cut=4, run_id="third", unread=LOST)
    for number, offset in ((1, 8), (2, 9), (6, 10)):
        exclude(settings, third, "deleted", number, offset, LATER + dt.timedelta(1))
    publish(settings, DAY, "third")
    assert shown(settings) == [(3, "v3")]
    assert dirty_days(settings) == []
    assert certify_alone(settings, DAY).reason is None


def test_a_build_without_records_that_the_day_shows_is_refused(settings, published):
    second = build(settings, [row(2, 5, modified_at=LATER), row(3, 3), row(6, 6)], cut=7, run_id="second")
    exclude(settings, second, "deleted", 1, 4, LATER)
    publish(settings, DAY, "second")
    build(settings, BOARDS, cut=4, run_id="third", unread=LOST)
    with pytest.raises(StaleRun, match="accepted gap"):
        publish(settings, DAY, "third")
    assert shown(settings) == [(2, "v5"), (3, "v3"), (6, "v6")]


@pytest.mark.parametrize("known_by", ["a live row", "a covered row", "the generation"])
def test_a_deleted_board_that_comes_back_is_published_by_a_person_only(settings, store, known_by):
    """Raw lost the deletion unseen: the cut claims it."""
    build(settings, BOARDS, cut=4, run_id="first")
    publish(settings, DAY, "first")
    if known_by != "the generation":
        serve(store, [tombstone(1, 4, LATER)])
    if known_by != "a live row":
        without = build(settings, BOARDS[1:], cut=5, run_id="without")
        exclude(settings, without, "deleted", 1, 4, LATER)
        publish(settings, DAY, "without")
        cover(settings, DAY)
    if known_by == "a covered row":
        rows(settings, "DELETE FROM generation_excluded")
    before = shown(settings)
    assert before == [(2, "v2"), (3, "v3")]
    build(settings, BOARDS, cut=7, run_id="second")
    assert verify(settings, DAY, "second").corrections == {"unexplained": 1}
    with pytest.raises(RowsWouldVanish, match="come back after they were deleted"):
        publish(settings, DAY, "second")
    assert shown(settings) == before
    publish(settings, DAY, "second", accept_vanishing=True)
