"""A board is in the view or pending, never both: the table in docs/architecture/contracts.md, case by case.

tests/property/test_view.py holds the same for histories of both sides.
"""

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import NamedTuple

import pytest

from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.database.named import query
from include.integrity.days.day_checks import check_days, mark_left_days
from include.integrity.days.pruning import collect_orphans, cover
from include.integrity.days.publication import UndoRefused, redo, undo
from spark_jobs.speed.pending_store import Coordinates, PendingRecord, PendingStore
from tests.servers import wait_until
from tests.support.certifying import certify_alone
from tests.support.messages import NOT_KEPT
from tests.support.oracle import Version, author
from tests.support.pipeline import migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, NOON, build, exclude, opened_store, row, serve, tombstone
from tests.support.sessions import is_waiting, session

BOARD, AUTHOR_OF_V1, AUTHOR_OF_V2 = 1, 7, 8
V1, V2 = NOON - dt.timedelta(hours=2), NOON
BEFORE, AFTER = NOON - dt.timedelta(minutes=1), NOON + dt.timedelta(minutes=1)
LONG_AGO = NOON - dt.timedelta(days=9)
OTHER_DAY = DAY.before(1)  # of a version whose createdAt another one contradicts
# The versions of the author of v2, in the order of the log; a deletion has reached the stream before v2.
AUTHORS = {
    "known": [(LONG_AGO, False)],
    "unknown": [],
    "deleted before": [(LONG_AGO, False), (BEFORE, True)],
    "deleted after": [(LONG_AGO, False), (AFTER, True)],
}
# The table in contracts.md: (the title in the view, pending) in the stream, and after the rebuild.
STREAMED = {"known": ("v2", 0), "unknown": (None, 1), "deleted before": (None, 1), "deleted after": (None, 1)}
REBUILT = {"known": ("v2", 0), "unknown": (None, 1), "deleted before": (None, 1), "deleted after": ("v2", 0)}


class Found(NamedTuple):
    """The answers of all places about the day, which has one board."""

    title: str | None
    by_key: str | None
    shown_rows: int
    pending: int  # of the day, as its page and its views count
    waiting: int  # as the stream, its metrics and alerts count
    places: int  # in which `find` finds it pending, without builds


@pytest.fixture
def settings(postgres, tmp_path):
    made = migrated(None, postgres, "waiting_boards", tmp_path)
    rows(made, "INSERT INTO day_publication (day) VALUES (%s)", (DAY.date,))  # as the stream does with other boards
    return made


@pytest.fixture
def store(settings):
    with closing(opened_store(settings)) as made:
        yield made


@pytest.fixture
def join(settings, store):
    return PendingStore(settings.database, store._lease)


def found(settings):
    def one(statement, parameters):
        return [first for (first,) in rows(settings, statement, parameters, role="batch")]

    title = one("SELECT title FROM board_detail WHERE day = %s", (DAY.date,))
    status = rows(settings, query("select_day_status", PIPELINE), {"day": DAY.date, "limit": 1}, role="integrity")
    traces = rows(settings, query("select_traces", PIPELINE), {"key": BOARD}, role="integrity")
    assert len(title) <= 1
    return Found(
        title[0] if title else None,
        next(iter(one("SELECT title FROM board_detail_by_key(%s)", ([BOARD],))), None),
        next(iter(one("SELECT shown_rows FROM day_status WHERE day = %s", (DAY.date,))), 0),
        status[0][3] if status else 0,
        rows(settings, query("count_pending", PIPELINE), role="stream")[0][0],
        sum(place == "pending" and generation_id is None for place, _, generation_id, *_ in traces),
    )


def expected(title, pending):
    return Found(title, title, int(title is not None), pending, pending, pending)


def board(version_at, offset, member):
    return Version("board", BOARD, offset, version_at, f"e{offset}", created=NOON, member=member)


def pending(offset=1, version_at=V2):
    return PendingRecord("board", 0, offset, BOARD, AUTHOR_OF_V2, DAY.date, None, b"{}", NOON, f"e{offset}", None,
                         version_at)  # fmt: skip


def v(number, **more):
    at = {1: V1, 2: V2}[number]
    member = {1: AUTHOR_OF_V1, 2: AUTHOR_OF_V2}[number]
    return row(BOARD, number - 1, title=f"v{number}", modified_at=at, member_id=member, **more)


def rebuild(settings, run_id, members, with_v2=True):
    """Build the day by the rule, in plain Python, verify and publish it."""
    newest, made = (board(V2, 1, AUTHOR_OF_V2), v(2)) if with_v2 else (board(V1, 0, AUTHOR_OF_V1), v(1))
    versions = [Version("member", key, number, at, f"m{number}", deleted=deleted)
                for number, (key, at, deleted) in enumerate(members)]  # fmt: skip
    taken = author(newest, versions)
    build(settings, [] if taken is None else [made | {"table_offset": taken.offset}], cut=1 + with_v2, run_id=run_id,
          members=len(versions), pending=[(BOARD, newest.offset)] if taken is None else [])  # fmt: skip
    return publish(settings, DAY, run_id)


@pytest.mark.parametrize("of_v2", AUTHORS)
@pytest.mark.parametrize("shown", ["nothing", "live", "final"])
def test_each_place_says_what_the_table_says(settings, store, join, shown, of_v2):
    members = [(AUTHOR_OF_V1, LONG_AGO, False), *((AUTHOR_OF_V2, *version) for version in AUTHORS[of_v2])]
    if shown != "nothing":
        serve(store, [v(1)])
        assert found(settings).title == "v1"
    if shown == "final":
        rebuild(settings, "first", members, with_v2=False)

    if of_v2 == "known":
        serve(store, [v(2, table_offset=1)])
    else:
        join.save_pending([pending()])
    assert found(settings) == expected(*STREAMED[of_v2])
    late = [("late board", 1)] if shown == "final" else []
    assert rows(settings, "SELECT cause, count FROM dirty_day") == late

    rebuild(settings, "night", members)
    assert found(settings) == expected(*REBUILT[of_v2])
    assert rows(settings, "SELECT * FROM dirty_day") == []
    certificate, (title, waits) = certify_alone(settings, DAY), REBUILT[of_v2]
    assert certificate.reason is None
    assert [certificate.count(term) for term in ("rows", "pending", "rejected")] == [int(title is not None), waits, 0]

    undo(settings, DAY, "test")
    assert found(settings) == expected(*STREAMED[of_v2])
    redo(settings, DAY, "test")
    assert found(settings) == expected(*REBUILT[of_v2])

    if of_v2 != "known":  # the author comes back, and v2 is sent
        serve(store, [v(2, table_offset=9)])
        assert found(settings) == expected("v2", 0)
        assert rows(settings, "SELECT count(*) FROM pending_record") == [(0,)]


@pytest.mark.parametrize("is_published", [False, True])
def test_the_older_version_shows_again_when_the_one_that_waits_is_rejected(settings, store, join, is_published):
    serve(store, [v(1)])
    if is_published:
        rebuild(settings, "first", [(AUTHOR_OF_V1, LONG_AGO, False)], with_v2=False)
    join.save_pending([pending()])
    assert found(settings) == expected(None, 1)
    join.reject_pending(Coordinates("board", 0, 1), "a test")
    assert found(settings) == expected("v1", 0)


def test_a_later_record_of_the_same_time_waits_if_neither_has_an_event_id(settings, store, join):
    serve(store, [v(1, event_id=None)])
    join.save_pending([pending(offset=5, version_at=V1)._replace(event_id=None)])
    assert found(settings) == expected(None, 1)
    join.forget_superseded()
    assert found(settings) == expected(None, 1)


def test_a_copy_of_a_board_that_is_shown_does_not_wait(settings, store, join):
    """The author of a shown board was deleted, and the board's event comes once more."""
    serve(store, [v(1)])
    join.save_pending([pending(offset=5, version_at=V1)._replace(event_id="e0")])
    assert found(settings) == expected("v1", 0)
    rebuild(settings, "night", [(AUTHOR_OF_V1, LONG_AGO, False)], with_v2=False)
    join.save_pending([pending(offset=6, version_at=V1)._replace(event_id="e0")])
    assert found(settings) == expected("v1", 0)
    assert rows(settings, "SELECT * FROM dirty_day") == []


@pytest.mark.parametrize("is_one_batch", [True, False])
def test_an_event_before_one_that_is_shown_does_not_wait_in_a_topic_made_again(settings, store, join, is_one_batch):
    """The topic is sent again, with two events of one time; the second one is shown, and its author was deleted."""
    serve(store, [v(1, event_id="second", stream_partition=-1, stream_offset=-10)])
    first = pending(offset=5, version_at=V1)._replace(event_id="first")
    second = pending(offset=6, version_at=V1)._replace(event_id="second")
    for batch in [[first, second]] if is_one_batch else [[first], [second]]:
        join.save_pending(batch)
    assert found(settings) == expected("v1", 0)


def test_an_older_version_that_comes_after_the_publication_does_not_wait(settings, store, join):
    rebuild(settings, "night", [(AUTHOR_OF_V1, LONG_AGO, False), (AUTHOR_OF_V2, LONG_AGO, False)])
    join.save_pending([pending(offset=7, version_at=V1)])
    assert found(settings) == expected("v2", 0)
    assert rows(settings, "SELECT * FROM dirty_day") == []


def test_a_board_that_begins_to_wait_while_its_day_is_published_is_covered(settings, store, join):
    """The publication is about to commit: the record waits for it, and sees what the day shows then."""
    members = [(AUTHOR_OF_V1, LONG_AGO, False), *((AUTHOR_OF_V2, *version) for version in AUTHORS["deleted after"])]
    with ThreadPoolExecutor(1) as threads:
        holder = session(settings)
        with closing(holder), holder.cursor() as cursor:
            cursor.execute(query("hold_pointers", PIPELINE))
            inserting = threads.submit(join.save_pending, [pending()])
            wait_until(lambda: is_waiting(settings, "join"), 20, "the record waits for the publication")
            holder.rollback()
        inserting.result(20)
    rebuild(settings, "night", members)
    assert found(settings) == expected("v2", 0)


def test_covered_records_are_removed_when_no_undo_needs_them(settings, store, join):
    members = [(AUTHOR_OF_V1, LONG_AGO, False), *((AUTHOR_OF_V2, *version) for version in AUTHORS["deleted after"])]
    join.save_pending([pending()])
    rebuild(settings, "night", members)
    assert collect_orphans(settings) == []
    assert rows(settings, "SELECT covered_by IS NOT NULL FROM pending_record") == [(True,)]
    rows(settings, "UPDATE day_publication SET moved_at = moved_at - interval '30 days'")
    rows(settings, "UPDATE publication SET made_at = made_at - interval '30 days'")
    collect_orphans(settings)
    assert rows(settings, "SELECT * FROM pending_record") == []
    with pytest.raises(UndoRefused, match=NOT_KEPT):
        undo(settings, DAY, "test")


def days_are_checked(settings):
    """As the night does it, and `certify`."""
    mark_left_days(settings)
    check_days(settings)


def dirty(settings):
    return rows(settings, "SELECT day, cause, count FROM dirty_day ORDER BY day, cause")


def on_the_other_day(**more):
    """Version 3, an hour after v2, whose author is known."""
    return row(BOARD, 5, title="v3", modified_at=NOON + dt.timedelta(hours=1), day=OTHER_DAY.date,
               created_at=OTHER_DAY.start, **more)  # fmt: skip


def other_day_shows(settings, made, cut=6):
    build(settings, [made], cut=cut, run_id="other", day=OTHER_DAY, members=1)
    publish(settings, OTHER_DAY, "other")
    cover(settings, OTHER_DAY)


def pending_generation(settings, join):
    """The day was built while v2 waited, and is certified with it."""
    join.save_pending([pending()])
    rebuild(settings, "night", [(AUTHOR_OF_V1, LONG_AGO, False)])
    assert certify_alone(settings, DAY).reason is None
    assert dirty(settings) == []


def test_the_deletion_of_a_board_that_the_build_has_as_pending_marks_its_day(settings, store, join):
    pending_generation(settings, join)
    serve(store, [tombstone(BOARD, 5, NOON + dt.timedelta(hours=1))])
    assert dirty(settings) == [(DAY.date, "late board", 1)]
    assert found(settings) == expected(None, 0)
    id_ = build(settings, [], cut=6, run_id="again", raw_distinct=0, members=1)
    exclude(settings, id_, "deleted", BOARD, 5, NOON + dt.timedelta(hours=1))
    publish(settings, DAY, "again")
    assert dirty(settings) == []
    cover(settings, DAY)
    assert rows(settings, "SELECT count(*) FROM detail_live") == [(0,)]
    assert found(settings) == expected(None, 0)


def test_the_deletion_of_a_board_that_began_to_wait_after_the_cut_is_of_its_day(settings, store, join):
    build(settings, [], cut=1, run_id="night")
    publish(settings, DAY, "night")
    join.save_pending([pending()])
    serve(store, [tombstone(BOARD, 5, NOON + dt.timedelta(hours=1))])
    assert rows(settings, "SELECT day FROM detail_live") == [(DAY.date,)]
    assert dirty(settings) == [(DAY.date, "late board", 2)]


def test_a_deletion_that_was_served_before_its_board_was_built_as_pending_marks_the_day(settings, store, join):
    """The cut ends before the deletion, and the stream never knew the board."""
    serve(store, [tombstone(BOARD, 5, NOON + dt.timedelta(hours=1))])
    rebuild(settings, "night", [])
    assert dirty(settings) == [(DAY.date, "late board", 1)]


def test_a_board_that_moved_while_its_day_had_it_as_pending_marks_that_day(settings, store, join):
    pending_generation(settings, join)
    serve(store, [on_the_other_day()])
    days_are_checked(settings)
    assert dirty(settings) == [(DAY.date, "moved board", 1)]
    rows(settings, "DELETE FROM dirty_day")
    other_day_shows(settings, on_the_other_day())
    days_are_checked(settings)
    assert dirty(settings) == [(DAY.date, "moved board", 1)]


def test_a_board_that_is_pending_on_two_days_marks_the_older_one(settings, store, join):
    pending_generation(settings, join)
    build(settings, [], cut=6, run_id="other", day=OTHER_DAY, members=1, pending=[(BOARD, 5)])
    publish(settings, OTHER_DAY, "other")
    days_are_checked(settings)
    assert dirty(settings) == [(DAY.date, "moved board", 1)]


@pytest.mark.parametrize("is_built", [False, True])
def test_a_board_that_waits_on_another_day_marks_the_day_in_which_it_is_hidden(settings, store, join, is_built):
    serve(store, [v(1)])
    rebuild(settings, "first", [(AUTHOR_OF_V1, LONG_AGO, False)], with_v2=False)
    assert certify_alone(settings, DAY).reason is None
    join.save_pending([pending()._replace(day=OTHER_DAY.date)])
    if is_built:
        build(settings, [], cut=2, run_id="other", day=OTHER_DAY, members=1, pending=[(BOARD, 1)])
        publish(settings, OTHER_DAY, "other")
    assert found(settings)[:3] == (None, None, 0)
    days_are_checked(settings)
    assert dirty(settings) == [(DAY.date, "moved board", 1)]


@pytest.mark.parametrize("began_first", [False, True])
def test_a_board_that_waits_on_another_day_is_hidden_by_a_later_publication(settings, store, join, began_first):
    if began_first:  # a new board then
        join.save_pending([pending()._replace(day=OTHER_DAY.date)])
    build(settings, [v(1)], cut=1, run_id="night", members=1)
    publish(settings, DAY, "night")
    if not began_first:
        join.save_pending([pending()._replace(day=OTHER_DAY.date)])
    for _ in range(2):
        assert found(settings)[:3] == (None, None, 0)
        join.forget_superseded()
    days_are_checked(settings)
    assert dirty(settings) == [(DAY.date, "moved board", 1)]


@pytest.mark.parametrize("known", ["live", "covered", "final alone"])
def test_an_older_version_of_another_day_does_not_wait(settings, store, join, known):
    """It would hide the newer one, which is served, or of which the other day's build knows alone."""
    if known != "final alone":
        serve(store, [on_the_other_day()])
    if known != "live":
        other_day_shows(settings, on_the_other_day())
    join.save_pending([pending(offset=8)])
    join.forget_superseded()
    assert rows(settings, "SELECT title FROM board_detail") == [("v3",)]
    assert rows(settings, "SELECT * FROM pending_record") == []
    days_are_checked(settings)
    assert dirty(settings) == []


@pytest.mark.parametrize("is_served", [False, True])
def test_an_older_version_waits_until_another_day_shows_a_newer_one(settings, store, join, is_served):
    join.save_pending([pending(offset=1)])
    if is_served:
        serve(store, [on_the_other_day()])
    other_day_shows(settings, on_the_other_day())
    assert rows(settings, "SELECT title FROM board_detail") == [("v3",)]
    assert rows(settings, "SELECT * FROM pending_record") == []


def test_a_day_whose_only_board_waits_has_a_status(settings, join):
    rows(settings, "DELETE FROM day_publication")
    join.save_pending([pending()])
    assert rows(settings, "SELECT day, pending_count, shown_rows FROM day_status") == [(DAY.date, 1, 0)]
    assert found(settings) == expected(None, 1)


def test_an_author_that_was_deleted_before_and_comes_back_after_its_board(settings, store, join):
    """The stream knows the newest version alone, and shows v2; the rebuild goes by the times, so v2 waits again."""
    members = [(AUTHOR_OF_V1, LONG_AGO, False), *((AUTHOR_OF_V2, *version) for version in AUTHORS["deleted before"])]
    join.save_pending([pending()])
    rebuild(settings, "first", members)
    assert found(settings) == expected(None, 1)
    serve(store, [v(2, table_offset=len(members))])
    assert found(settings) == expected("v2", 0)
    assert dirty(settings) == [(DAY.date, "late member", 1)]
    rebuild(settings, "night", [*members, (AUTHOR_OF_V2, AFTER, False)])
    assert found(settings) == expected(None, 1)._replace(places=0)
    assert certify_alone(settings, DAY).reason is None
    undo(settings, DAY, "test")
    assert found(settings) == expected("v2", 0)
    redo(settings, DAY, "test")
    assert found(settings) == expected(None, 1)._replace(places=0)
