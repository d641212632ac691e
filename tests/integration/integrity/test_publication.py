"""Publish, undo and redo on a real PostgreSQL, while the speed layer serves into the same day."""

import datetime as dt
import itertools

import pytest

from include.contracts.errors import NothingBuilt, StaleRun
from include.integrity.days.pruning import collect_orphans, cover, prune
from include.integrity.days.publication import (
    SPEED_LAYER,
    DayHeld,
    Published,
    UndoRefused,
    announcement_of,
    history,
    redo,
    undo,
)
from tests.support.pipeline import migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, NOON, build, opened_store, row, serve, tombstone

LATER = NOON + dt.timedelta(minutes=1)
VIEW = "SELECT board_id, title, finality FROM board_detail ORDER BY board_id"
EVERYTHING = "SELECT to_jsonb(d) - 'shown_since' FROM board_detail d ORDER BY board_id"
LIVE = "SELECT * FROM detail_live ORDER BY board_id"
STATUS = "SELECT id, status FROM generation ORDER BY id"
_numbers = itertools.count()


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, f"publication{next(_numbers) % 2}", tmp_path)


@pytest.fixture
def store(settings):
    opened = opened_store(settings)
    yield opened
    opened.close()


def test_undo_of_the_first_publication_puts_the_live_rows_back_as_they_were(settings, store):
    serve(store, [row(1, 0), row(2, 1), row(3, 7)])
    view, live = rows(settings, EVERYTHING), rows(settings, LIVE)
    generation = build(settings, [row(1, 0, title="rebuilt")], cut=5, run_id="a")
    assert publish(settings, DAY, "a", accept_vanishing=True) == Published(generation, covered=2)
    assert rows(settings, VIEW) == [(1, "rebuilt", "final"), (3, "v7", "live")]

    moved = undo(settings, DAY, "wrong titles")

    assert (moved.from_generation_id, moved.to_generation_id, moved.restored) == (generation, None, 2)
    assert (rows(settings, EVERYTHING), rows(settings, LIVE)) == (view, live)
    assert rows(settings, "SELECT status, row_count, generation_id, dirty_count FROM day_status") == [
        ("provisional", 0, None, 0)]  # fmt: skip
    assert rows(settings, "SELECT count(*) FROM detail_covered") == [(0,)]


def test_redo_shows_again_what_undo_took_away_and_undo_what_redo_brought(settings, store):
    serve(store, [row(1, 0), row(3, 7)])
    build(settings, [row(1, 0, title="first")], cut=5, run_id="a")
    publish(settings, DAY, "a")
    build(settings, [row(1, 0, title="second"), row(3, 7)], cut=9, run_id="b")
    publish(settings, DAY, "b")
    shown = {"b": rows(settings, EVERYTHING)}
    undo(settings, DAY, "r")
    shown["a"] = rows(settings, EVERYTHING)
    assert rows(settings, VIEW) == [(1, "first", "final"), (3, "v7", "live")]
    undo(settings, DAY, "r")
    shown["none"] = rows(settings, EVERYTHING)
    for action, wanted in ((redo, "a"), (redo, "b"), (undo, "a"), (undo, "none"), (redo, "a"), (redo, "b")):
        action(settings, DAY, "r")
        assert rows(settings, EVERYTHING) == shown[wanted]
    with pytest.raises(UndoRefused, match="nothing was undone"):
        redo(settings, DAY, "r")


def test_a_day_is_announced_with_its_last_action_and_what_it_shows_since(settings, store):
    serve(store, [row(1, 0)])

    def announced():
        made = announcement_of(settings, DAY)
        return made.day, made.action, made.status, made.generation, made.rows

    with pytest.raises(NothingBuilt, match="never published"):
        announced()
    first = build(settings, [row(1, 0, title="first")], cut=5, run_id="a")
    publish(settings, DAY, "a")
    assert announced() == (str(DAY), "publish", "rebuilt", first, 1)
    second = build(settings, [row(1, 0, title="second"), row(2, 1)], cut=9, run_id="b")
    publish(settings, DAY, "b")
    assert announced()[1:] == ("republish", "rebuilt", second, 2)
    undo(settings, DAY, "r", to=SPEED_LAYER)
    assert announced()[1:] == ("undo", "provisional", None, 0)
    redo(settings, DAY, "r")
    assert announced()[1:] == ("redo", "rebuilt", second, 2)
    ((content_hash,),) = rows(settings, "SELECT content_hash FROM generation WHERE id = %s", (second,))
    assert announcement_of(settings, DAY).content_hash == content_hash
    assert announcement_of(settings, DAY).corrections["unexplained"] >= 1


def test_undo_leads_to_any_kept_generation_and_to_the_speed_layer_by_name(settings, store):
    serve(store, [row(1, 0)])
    built = []
    for number in range(3):
        built.append(build(settings, [row(1, 0, title=f"t{number}")], cut=5 + number, run_id=f"r{number}"))
        publish(settings, DAY, f"r{number}")
    undo(settings, DAY, "r", to=built[0])
    assert rows(settings, VIEW) == [(1, "t0", "final")]
    undo(settings, DAY, "r", to=SPEED_LAYER)
    assert rows(settings, VIEW) == [(1, "v0", "live")]
    redo(settings, DAY, "r")
    assert rows(settings, VIEW) == [(1, "t0", "final")]
    undo(settings, DAY, "r", to=built[2])
    assert rows(settings, VIEW) == [(1, "t2", "final")]


def test_what_came_in_between_stays_newest_through_undo_and_redo(settings, store):
    serve(store, [row(1, 0), row(2, 1)])
    build(settings, [row(1, 0), row(2, 1)], cut=5, run_id="a")
    publish(settings, DAY, "a")
    serve(store, [row(1, 6, modified_at=LATER), tombstone(2, 7, LATER)])
    wanted = [(1, "v6", "live")]
    assert rows(settings, VIEW) == wanted
    undo(settings, DAY, "r")
    assert rows(settings, VIEW) == wanted
    serve(store, [row(3, 8), row(1, 9)])  # the last is a replayed old version
    redo(settings, DAY, "r")
    assert rows(settings, VIEW) == [*wanted, (3, "v8", "live")]
    assert rows(settings, "SELECT cause, count FROM dirty_day") == [("late board", 3)]


def test_a_tombstone_goes_and_comes_back_with_its_day(settings, store):
    serve(store, [row(1, 0), row(2, 1)])
    serve(store, [tombstone(1, 3, LATER)])
    build(settings, [row(2, 1)], cut=5, run_id="a")
    publish(settings, DAY, "a")
    assert cover(settings, DAY) == 2
    assert rows(settings, LIVE) == []
    undo(settings, DAY, "r")
    assert rows(settings, "SELECT board_id, deleted FROM detail_live ORDER BY 1") == [(1, True), (2, False)]
    assert rows(settings, VIEW) == [(2, "v1", "live")]


def test_a_board_pending_in_the_target_keeps_its_live_row(settings, store):
    serve(store, [row(1, 0), row(2, 1)])
    first = build(settings, [row(1, 0)], cut=5, run_id="a", raw_distinct=2, pending=[(2, 1)])
    publish(settings, DAY, "a")
    build(settings, [row(1, 0), row(2, 1)], cut=5, run_id="b")
    publish(settings, DAY, "b")
    assert rows(settings, VIEW) == [(1, "v0", "final"), (2, "v1", "final")]
    undo(settings, DAY, "r", to=first)
    assert rows(settings, VIEW) == [(1, "v0", "final"), (2, "v1", "live")]


def test_an_old_version_that_the_target_knows_better_is_not_put_on_top_of_it(settings, store):
    build(settings, [row(1, 4, modified_at=LATER)], cut=5, run_id="a")
    publish(settings, DAY, "a")
    undo(settings, DAY, "r")
    serve(store, [row(1, 6)])  # nothing is published: the speed layer takes the replayed old version
    redo(settings, DAY, "r")
    build(settings, [row(1, 4, title="b", modified_at=LATER)], cut=9, run_id="b")
    publish(settings, DAY, "b")
    undo(settings, DAY, "r")
    assert rows(settings, "SELECT title FROM board_detail") == [("v4",)]


def test_an_undo_holds_the_day_until_somebody_publishes_by_hand_or_redoes(settings):
    build(settings, [row(1, 0, title="bad")], cut=5, run_id="a")
    publish(settings, DAY, "a", automatic=True)
    undo(settings, DAY, "titles are wrong", made_by="kim")
    build(settings, [row(1, 0)], cut=6, run_id="b")
    with pytest.raises(DayHeld, match="titles are wrong"):
        publish(settings, DAY, "b", automatic=True)
    assert rows(settings, VIEW) == []
    publish(settings, DAY, "b", made_by="lee", reason="repaired")
    assert rows(settings, "SELECT held_reason FROM day_publication") == [(None,)]
    undo(settings, DAY, "again")
    redo(settings, DAY, "no, fine")
    assert rows(settings, "SELECT held_reason FROM day_publication") == [(None,)]
    assert [(one.action, one.made_by, one.reason) for one in history(settings, DAY)] == [
        ("publish", "not said", None), ("undo", "kim", "titles are wrong"), ("publish", "lee", "repaired"),
        ("undo", "not said", "again"), ("redo", "not said", "no, fine")]  # fmt: skip


def test_a_late_retry_of_the_publication_does_not_redo_what_was_undone(settings):
    build(settings, [row(1, 0)], cut=5, run_id="a")
    publish(settings, DAY, "a")
    undo(settings, DAY, "r")
    with pytest.raises(StaleRun):
        publish(settings, DAY, "a")
    assert rows(settings, VIEW) == []


def test_a_certified_day_is_not_certified_after_an_undo(settings):
    for run_id, title in (("a", "t"), ("b", "u")):
        build(settings, [row(1, 0, title=title)], cut=5, run_id=run_id)
        publish(settings, DAY, run_id)
        rows(settings, "UPDATE day_publication SET status = 'certified'")
    undo(settings, DAY, "r")
    assert rows(settings, "SELECT status FROM day_status") == [("rebuilt",)]


def test_the_same_content_again_changes_nothing_but_how_far_the_day_is_known_to_be_whole(settings, store):
    first = build(settings, [row(1, 0)], cut=5, run_id="a")
    publish(settings, DAY, "a")
    rows(settings, "UPDATE day_publication SET status = 'certified'")
    rows(settings, "INSERT INTO dirty_day (day, cause, count) VALUES (%s, 'late member', 1)", (DAY.date,))
    build(settings, [row(1, 0)], cut=9, run_id="b")

    assert publish(settings, DAY, "b") == Published(first, 0, was_identical=True)
    assert publish(settings, DAY, "b") == Published(first, 0, was_identical=True)  # a retry finds it done

    assert rows(settings, STATUS) == [(first, "published"), (first + 1, "discarded")]
    assert rows(settings, "SELECT status, dirty_count FROM day_status") == [("certified", 0)]
    assert rows(settings, "SELECT cut -> 'board' ->> '0' FROM day_publication") == [("9",)]
    collect_orphans(settings)
    assert rows(settings, "SELECT to_regclass(%s)", (f"generations.detail_final_g{first + 1}",)) == [(None,)]
    assert serve(store, [row(9, 7)]) == 0  # inside the later cut


@pytest.mark.parametrize(
    "change",
    [{"title": "other"}, {"stream_offset": 1}, {"kafka_offset": 3}],
    ids=["another title", "another source", "the place in the topic is known now"],
)
def test_another_content_is_published(settings, change):
    build(settings, [row(1, 0, kafka_offset=None)], cut=5, run_id="a")
    publish(settings, DAY, "a")
    second = build(settings, [row(1, 0, **{"kafka_offset": None, **change})], cut=5, run_id="b")
    assert publish(settings, DAY, "b") == Published(second, 0)


def test_a_rebuild_that_no_longer_finds_the_places_does_not_take_them_away(settings):
    build(settings, [row(1, 0)], cut=5, run_id="a")
    publish(settings, DAY, "a")
    build(settings, [row(1, 0, kafka_partition=None, kafka_offset=None)], cut=5, run_id="b")
    assert publish(settings, DAY, "b").was_identical
    assert rows(settings, "SELECT kafka_offset FROM board_detail") == [(0,)]


def test_other_pending_boards_are_another_content(settings, store):
    build(settings, [row(1, 0)], cut=5, run_id="a")
    publish(settings, DAY, "a")
    build(settings, [row(1, 0)], cut=9, run_id="b", raw_distinct=2, pending=[(2, 7)])
    assert not publish(settings, DAY, "b").was_identical
    assert serve(store, [row(2, 7)]) == 1  # its member came


def test_a_live_row_below_the_cut_of_the_same_content_is_covered(settings, store):
    build(settings, [row(1, 0)], cut=5, run_id="a")
    publish(settings, DAY, "a")
    serve(store, [row(2, 6)])  # nobody knows why: the rebuild does not have it
    build(settings, [row(1, 0)], cut=9, run_id="b")
    assert publish(settings, DAY, "b", accept_vanishing=True).covered == 1
    assert rows(settings, VIEW) == [(1, "v0", "final")]


def test_a_build_from_less_than_what_is_shown_is_not_published(settings):
    build(settings, [row(1, 0)], cut=5, run_id="a")
    publish(settings, DAY, "a")
    build(settings, [row(1, 0, title="old")], cut=7, run_id="old")
    build(settings, [row(1, 0)], cut=9, run_id="same")
    publish(settings, DAY, "same")
    with pytest.raises(StaleRun):
        publish(settings, DAY, "old")


def test_an_undo_beyond_what_is_kept_is_refused_and_changes_nothing(settings, store):
    serve(store, [row(1, 0), row(3, 7)])
    first = build(settings, [row(1, 0, title="first")], cut=5, run_id="a")
    publish(settings, DAY, "a")
    build(settings, [row(1, 0, title="second"), row(3, 7)], cut=9, run_id="b")
    publish(settings, DAY, "b")
    cover(settings, DAY)
    rows(settings, "UPDATE detail_covered SET covered_at = covered_at - interval '30 days'")
    rows(settings, "UPDATE publication SET made_at = made_at - interval '30 days'")
    assert prune(settings, DAY) == [first]
    before = rows(settings, EVERYTHING)
    for target, message in ((None, "does not keep it"), (first, "does not keep it"), (SPEED_LAYER, "not be whole")):
        with pytest.raises(UndoRefused, match=message):
            undo(settings, DAY, "r", to=target)
    assert rows(settings, EVERYTHING) == before
    assert rows(settings, "SELECT count(*) FROM detail_covered") == [(0,)]


def test_an_undo_to_a_generation_whose_table_is_gone_is_refused(settings):
    first = build(settings, [row(1, 0)], cut=5, run_id="a")
    publish(settings, DAY, "a")
    build(settings, [row(1, 0, title="b")], cut=5, run_id="b")
    publish(settings, DAY, "b")
    rows(settings, f"SELECT generations.drop_table({first})", role="batch")
    with pytest.raises(UndoRefused, match="table is gone"):
        undo(settings, DAY, "r")
    assert rows(settings, VIEW) == [(1, "b", "final")]


def test_nothing_is_undone_of_a_day_that_was_not_published(settings):
    with pytest.raises(UndoRefused, match="nothing was published"):
        undo(settings, DAY, "r")
    with pytest.raises(UndoRefused, match="did not show"):
        undo(settings, DAY, "r", to=77)
    with pytest.raises(NothingBuilt):
        publish(settings, DAY)


def test_what_was_served_below_the_cut_while_the_day_was_published_is_there_after_an_undo(settings, store):
    build(settings, [row(1, 0), row(2, 3)], cut=5, run_id="a")
    publish(settings, DAY, "a")
    assert serve(store, [row(1, 0), row(2, 3)]) == 0  # the speed layer was behind
    undo(settings, DAY, "r")
    assert rows(settings, VIEW) == [(1, "v0", "live"), (2, "v3", "live")]


def test_publishing_again_what_is_shown_lifts_no_hold_made_since(settings):
    build(settings, [row(1, 0)], cut=5, run_id="a")
    publish(settings, DAY, "a", made_by="lee")
    build(settings, [row(1, 0, title="bad")], cut=6, run_id="b")
    publish(settings, DAY, "b", made_by="lee")
    undo(settings, DAY, "titles are wrong", made_by="kim")
    assert publish(settings, DAY, "a", made_by="lee").covered == 0  # its task was cleared
    assert rows(settings, "SELECT held_reason FROM day_publication") == [("titles are wrong",)]
