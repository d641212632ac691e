"""A board is in the view or pending, never both: the table in docs/architecture/contracts.md, case by case.

tests/property/test_view.py holds the same for histories of both sides.
"""

import datetime as dt
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import NamedTuple

import pytest

from include.adapters.postgres.pending_store import Coordinates, PendingRecord, PendingStore
from include.contracts.site import BOARD_DETAIL_PIPELINE as PIPELINE
from include.integrity.pruning import collect_orphans
from include.integrity.publication import UndoRefused, redo, undo
from include.sql.named import query
from tests.servers import wait_until
from tests.support.certifying import certify_alone
from tests.support.oracle import Version, author
from tests.support.pipeline import migrated, rows
from tests.support.publication import publish
from tests.support.serving import DAY, NOON, build, opened_store, row, serve
from tests.support.sessions import is_waiting, session

BOARD, AUTHOR_OF_V1, AUTHOR_OF_V2 = 1, 7, 8
V1, V2 = NOON - dt.timedelta(hours=2), NOON
BEFORE, AFTER = NOON - dt.timedelta(minutes=1), NOON + dt.timedelta(minutes=1)
LONG_AGO = NOON - dt.timedelta(days=9)
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


def test_a_copy_of_a_board_that_is_shown_does_not_wait(settings, store, join):
    """The author of a shown board was deleted, and the board's event comes once more."""
    serve(store, [v(1)])
    join.save_pending([pending(offset=5, version_at=V1)._replace(event_id="e0")])
    assert found(settings) == expected("v1", 0)
    rebuild(settings, "night", [(AUTHOR_OF_V1, LONG_AGO, False)], with_v2=False)
    join.save_pending([pending(offset=6, version_at=V1)._replace(event_id="e0")])
    assert found(settings) == expected("v1", 0)
    assert rows(settings, "SELECT * FROM dirty_day") == []


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
            cursor.execute(query("lock_day_in_transaction", PIPELINE), {"day_number": DAY.date.toordinal()})
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
    with pytest.raises(UndoRefused, match="not kept any more"):
        undo(settings, DAY, "test")
