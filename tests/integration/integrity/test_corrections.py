"""Corrections on a real PostgreSQL: every difference a row, each with its class and both values, and nothing else."""

import datetime as dt

import pytest

from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.integrity.days import comparison, publication
from include.integrity.days.comparison import RowsWouldVanish, diff, verify
from include.integrity.days.due_days import DirtyDay, dirty_days
from tests.support.pipeline import migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, NOON, build, duplicate, exclude, opened_store, row, serve, tombstone

LATER = NOON + dt.timedelta(minutes=1)
COLUMNS = ", ".join(PIPELINE.relational_columns)
TITLE = PIPELINE.relational_columns.index("title")


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "corrections", tmp_path)


@pytest.fixture
def store(settings):
    opened = opened_store(settings)
    yield opened
    opened.close()


def classes(settings, generation):
    return dict(
        rows(
            settings,
            "SELECT board_id, class FROM detail_correction WHERE generation_id = %s AND class <> 'duplicate'",
            (generation,),
        )
    )


def corrections(settings, generation):
    """Board → class and both titles."""
    found = rows(
        settings,
        "SELECT board_id, class, shown ->> 'title', rebuilt ->> 'title' FROM detail_correction"
        " WHERE generation_id = %s",
        (generation,),
    )
    return {board_id: tuple(rest) for board_id, *rest in found}


def shown(settings):
    """Board → its columns, as the view shows the day."""
    found = rows(settings, f"SELECT {COLUMNS} FROM board_detail WHERE day = %s", (DAY.date,))
    return {columns[0]: columns for columns in found}


def test_each_class_has_its_case(settings, store):
    # the members' cut is 0: the author of 5 was known before it, and is not to the rebuild
    serve(store, [row(n, n, table_offset=-1 if n == 5 else 0) for n in range(1, 12)])
    generation = build(settings, [
        row(1, 1),
        row(2, 2, nickname="바뀐 이름", table_offset=4),
        row(3, 14, title="newer", modified_at=LATER),
        row(4, 15, title="replayed", modified_at=LATER, replayed=True),
        row(9, 9, title="nobody knows why"),
        row(10, 10, nickname="nobody knows why either"),  # by the same version of the member
        row(20, 12),
        row(21, 13, replayed=True),
    ], cut=20, run_id="r")  # fmt: skip
    for kind, board_id in (("pending", 5), ("rejected", 6), ("deleted", 7), ("moved", 8)):
        exclude(settings, generation, kind, board_id, board_id)

    report = verify(settings, DAY, "r")

    assert classes(settings, generation) == {
        2: "member_version_changed",
        3: "missing",
        4: "recovered_from_fallback",
        5: "pending",
        6: "rejected",
        7: "deleted",
        8: "moved",
        9: "unexplained",
        10: "unexplained",
        11: "unexplained",  # shown, and the rebuild knows nothing of it
        20: "missing",
        21: "recovered_from_fallback",
    }
    assert sum(report.corrections.values()) == 12
    assert report.unexplained == 3


def test_a_build_without_rows_that_readers_see_is_published_by_a_person_only(settings, store):
    serve(store, [row(1, 1), row(2, 2), row(3, 3)])
    generation = build(settings, [row(1, 1)], cut=9, run_id="r")
    exclude(settings, generation, "deleted", 3, 3)
    verify(settings, DAY, "r")
    for automatic in (True, False):
        with pytest.raises(RowsWouldVanish, match=r"^1 rows .*--accept-vanishing.*keys=\[2\]"):
            publish(settings, DAY, "r", automatic=automatic)
        assert set(shown(settings)) == {1, 2, 3}
    assert publish(settings, DAY, "r", reason="a test", accept_vanishing=True).generation_id == generation
    assert set(shown(settings)) == {1}


def test_a_build_that_says_why_rows_vanish_is_published(settings, store):
    kinds = ("rejected", "deleted", "moved")
    serve(store, [row(n, n) for n in range(4)])
    generation = build(settings, [row(0, 0)], cut=9, run_id="r")
    for number, kind in enumerate(kinds, 1):
        exclude(settings, generation, kind, number, number)
    verify(settings, DAY, "r")
    publish(settings, DAY, "r", automatic=True)
    assert set(shown(settings)) == {0}


def test_a_correction_has_both_values(settings, store):
    serve(store, [row(1, 1, nickname="저녁")])
    generation = build(settings, [row(1, 1, nickname="아침", table_offset=4), row(2, 2)], cut=9, run_id="r")
    verify(settings, DAY, "r")
    assert rows(
        settings,
        "SELECT board_id, shown ->> 'nickname', shown ->> 'finality', rebuilt ->> 'nickname', rebuilt ->> 'title'"
        "  FROM detail_correction WHERE generation_id = %s ORDER BY 1",
        (generation,),
    ) == [(1, "저녁", "live", "아침", "v1"), (2, None, None, "하늘", "v2")]


def test_other_places_of_the_same_content_are_no_difference(settings, store):
    serve(store, [row(1, 5, event_id="again", table_offset=3, kafka_offset=8)])
    build(settings, [row(1, 1, title="v5", kafka_offset=2)], cut=9, run_id="r")
    assert verify(settings, DAY, "r").corrections == {}


def test_a_copy_served_with_another_version_of_its_author_is_told_as_such(settings, store):
    serve(store, [row(1, 5, nickname="저녁", table_offset=3)])
    build(settings, [row(1, 1, title="v5", nickname="아침", table_offset=1)], cut=9, run_id="r")
    assert verify(settings, DAY, "r").corrections == {"member_version_changed": 1}


def test_a_late_board_is_told_from_one_that_was_missed(settings):
    build(settings, [row(1, 0), row(3, 3)], cut=5, run_id="a")
    publish(settings, DAY, "a")
    generation = build(settings, [row(1, 0), row(2, 6), row(3, 7, modified_at=LATER), row(4, 4)], cut=9, run_id="b")
    verify(settings, DAY, "b")
    assert classes(settings, generation) == {2: "late", 3: "late", 4: "missing"}


def test_what_came_after_the_cut_is_no_difference(settings, store):
    build(settings, [row(2, 2), row(3, 3)], cut=5, run_id="a")
    publish(settings, DAY, "a")
    serve(store, [row(1, 21), row(2, 22, modified_at=LATER), tombstone(3, 23, LATER)])
    build(settings, [row(2, 2), row(3, 3)], cut=20, run_id="b")
    assert verify(settings, DAY, "b").corrections == {}
    assert set(shown(settings)) == {1, 2}


def test_a_row_from_after_the_cut_that_the_build_knows_to_have_moved_is_a_correction(settings, store):
    serve(store, [row(1, 9)])  # a late copy of the version before the move
    generation = build(settings, [row(2, 2)], cut=5, run_id="r")
    exclude(settings, generation, "moved", 1, 3, LATER)
    verify(settings, DAY, "r")
    publish(settings, DAY, "r")
    assert set(shown(settings)) == {2}
    assert classes(settings, generation) == {1: "moved", 2: "missing"}


BETWEEN = NOON + dt.timedelta(seconds=30)
FORMER = {"stream_partition": -1, "kafka_offset": 50}  # of a topic that was made again since


def served_late(title, at):
    return row(1, -100, title=title, modified_at=at, **FORMER)


@pytest.mark.parametrize("is_compared_again", [True, False])
@pytest.mark.parametrize(
    ("late", "known", "expected"),
    [
        (served_late("shown", LATER), [row(1, 1)], {}),
        (served_late("shown", LATER), [], {}),
        (served_late("between", BETWEEN), [row(1, 1)], {1: ("unexplained", "shown", "between")}),
        (served_late("between", BETWEEN), [], {1: ("unexplained", "shown", "between")}),
    ],
)
def test_a_row_that_the_publication_brings_back_is_compared(settings, store, late, known, expected, is_compared_again):
    """It was served after the build of what is shown, which knows it or something newer, and the new build does not."""
    build(settings, [row(1, 5, title="shown", modified_at=LATER)], cut=10, run_id="shown")
    publish(settings, DAY, "shown")
    generation = build(settings, known, cut=11, run_id="r")
    if is_compared_again:
        verify(settings, DAY, "r")
        serve(store, [late])
        publication.publish(settings, DAY, "r")
    else:
        serve(store, [late])
        publish(settings, DAY, "r")
    assert [columns[TITLE] for columns in shown(settings).values()] == [late["title"]]
    assert corrections(settings, generation) == expected


def test_a_board_that_the_publication_alone_brings_back_is_refused(settings, store):
    """Nobody sees it, and the build does not have it."""
    exclude(settings, build(settings, [], cut=10, run_id="shown"), "deleted", 1, 5, LATER)
    publish(settings, DAY, "shown")
    generation = build(settings, [row(2, 6)], cut=11, run_id="r")
    serve(store, [served_late("between", BETWEEN)])
    with pytest.raises(RowsWouldVanish):
        publish(settings, DAY, "r")
    publish(settings, DAY, "r", accept_vanishing=True)
    assert corrections(settings, generation)[1] == ("unexplained", None, "between")


def test_a_tombstone_after_the_cut_of_a_board_never_shown_is_no_difference(settings, store):
    serve(store, [tombstone(3, 23, LATER), row(1, 1)])
    build(settings, [row(1, 1), row(3, 3)], cut=20, run_id="r")
    assert verify(settings, DAY, "r").corrections == {}


def test_a_board_whose_member_came_after_the_cut_is_no_difference(settings, store):
    generation = build(settings, [row(1, 1)], cut=20, run_id="r", pending=[(2, 2)])  # the members' cut is 0
    serve(store, [row(1, 1), row(2, 2, table_offset=3)])
    verify(settings, DAY, "r")
    assert classes(settings, generation) == {}


def test_a_deleted_member_takes_its_boards_out_of_a_published_day(settings):
    build(settings, [row(1, 1), row(2, 2)], cut=5, run_id="a")
    publish(settings, DAY, "a")
    generation = build(settings, [row(1, 1)], cut=9, run_id="b", pending=[(2, 2)])
    verify(settings, DAY, "b")
    assert classes(settings, generation) == {2: "pending"}


def test_a_board_that_another_day_shows_has_moved_here_and_its_old_day_is_dirty(settings, store):
    build(settings, [row(1, 1), row(2, 2)], cut=5, run_id="a")
    publish(settings, DAY, "a")
    next_day = DAY.date + dt.timedelta(days=1)
    serve(store, [row(2, 7, day=next_day, created_at=NOON + dt.timedelta(days=1), modified_at=LATER)])

    for _ in range(2):  # looking again counts nothing twice
        assert dirty_days(settings) == [DirtyDay(DAY.date, {"moved board": 1}, None)]

    generation = build(settings, [row(1, 1)], cut=9, run_id="b")
    exclude(settings, generation, "moved", 2, 7)
    verify(settings, DAY, "b")
    assert classes(settings, generation) == {2: "moved"}


def test_a_board_that_only_another_day_shows_so_far_has_moved_here(settings, store):
    next_day = DAY.date + dt.timedelta(days=1)
    serve(store, [row(1, 1), row(2, 2, day=next_day, created_at=NOON + dt.timedelta(days=1))])
    generation = build(settings, [row(1, 1), row(2, 7, modified_at=LATER), row(3, 3)], cut=9, run_id="r")
    verify(settings, DAY, "r")
    assert classes(settings, generation) == {2: "moved", 3: "missing"}


def test_comparing_again_starts_anew_and_keeps_the_duplicates_of_the_build(settings, store):
    serve(store, [row(1, 1), row(2, 2)])
    generation = build(settings, [row(1, 1)], cut=9, run_id="r")
    duplicate(settings, generation, board_id=1, copies=3)
    first = verify(settings, DAY, "r").corrections
    exclude(settings, generation, "deleted", 2)
    assert first == {"duplicate": 1, "unexplained": 1}
    assert verify(settings, DAY, "r").corrections == {"deleted": 1, "duplicate": 1}


def test_the_corrections_are_the_differences_between_before_and_after(settings, store):
    serve(store, [row(n, n) for n in range(1, 9)] + [row(30, 25), tombstone(4, 26, LATER)])
    generation = build(settings, [
        row(1, 1), row(2, 2, nickname="x", table_offset=4), row(3, 9, modified_at=LATER), row(4, 4), row(12, 12),
    ], cut=20, run_id="r")  # fmt: skip
    for board_id in (5, 6):
        exclude(settings, generation, "deleted", board_id)
    before = shown(settings)
    verify(settings, DAY, "r")
    publish(settings, DAY, "r", reason="a test", accept_vanishing=True)
    after = shown(settings)
    changed = {board for board in before.keys() | after.keys() if before.get(board) != after.get(board)}
    assert changed == {2, 3, 5, 6, 7, 8, 12}
    assert set(classes(settings, generation)) == changed


def test_a_large_day_of_which_nothing_was_shown_is_counted_not_listed(settings, monkeypatch):
    monkeypatch.setattr(comparison, "LISTED_ROWS", 2)
    generation = build(settings, [row(1, 1), row(2, 2), row(3, 3, replayed=True)], cut=9, run_id="r")
    assert verify(settings, DAY, "r").corrections == {"missing": 2, "recovered_from_fallback": 1}
    assert classes(settings, generation) == {}


def test_a_large_day_of_which_something_was_shown_is_listed(settings, store, monkeypatch):
    monkeypatch.setattr(comparison, "LISTED_ROWS", 2)
    serve(store, [row(1, 1)])
    generation = build(settings, [row(1, 1), row(2, 2), row(3, 3)], cut=9, run_id="r")
    verify(settings, DAY, "r")
    assert classes(settings, generation) == {2: "missing", 3: "missing"}


class TestDiff:
    def test_shows_what_changes_before_and_after_and_publishes_nothing(self, settings, store):
        serve(store, [row(n, n, nickname="저녁") for n in range(1, 9)])
        build(settings, [row(n, n, nickname="아침", table_offset=4) for n in range(1, 9)], cut=9, run_id="r")
        before = shown(settings)
        found = diff(settings, DAY, "r", per_class=3)
        assert found.report.corrections == {"member_version_changed": 8}
        assert [(one.key, one.before, one.after) for one in found.samples] == [
            (n, {"nickname": "저녁", "table_offset": 0}, {"nickname": "아침", "table_offset": 4}) for n in (1, 2, 3)
        ]
        assert shown(settings) == before
        assert rows(settings, "SELECT generation_id FROM day_publication") == [(None,)]

    def test_hides_personal_values_and_cuts_long_ones(self, settings, store):
        serve(store, [row(1, 1, phone="010-1234-5678", body="a" * 1000)])
        build(settings, [row(1, 2, phone="010-8765-4321", body="b" * 1000, modified_at=LATER)], cut=9, run_id="r")
        (sample,) = diff(settings, DAY, "r").samples
        assert sample.before["phone"] == sample.after["phone"] == "(hidden)"
        assert sample.before["body"] == "a" * 59 + "…"

    def test_a_board_without_a_row_before_has_none(self, settings, store):
        serve(store, [row(1, 1)])
        build(settings, [row(1, 1), row(2, 2)], cut=9, run_id="r")
        (sample,) = diff(settings, DAY, "r").samples
        assert (sample.correction, sample.before, sample.after["title"]) == ("missing", None, "v2")
