"""Pending boards are read in pages of any size: each board with a known member exactly once, and no other."""

import datetime as dt

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from include.database.driver_lease import DriverLease
from spark_jobs.speed.pending_store import PendingPages, PendingRecord, PendingStore
from tests.support.pipeline import migrated, rows

AT = dt.datetime(2026, 11, 20, 3, tzinfo=dt.UTC)
MEMBERS = st.integers(-5, 5)
STEPS = 4


@st.composite
def histories(draw):
    """Boards with their member and size; the members that are there, and those that come step by step."""
    boards = draw(st.lists(st.tuples(MEMBERS, st.integers(1, 2_000)), max_size=25))
    there = draw(st.sets(MEMBERS))
    comes = [draw(st.none() | st.sets(MEMBERS, max_size=3)) for _ in range(STEPS)]  # None: too many to be named
    return boards, there, comes


@pytest.fixture(scope="module")
def database(postgres, tmp_path_factory):
    return migrated(None, postgres, "pending_pages", tmp_path_factory.mktemp("pending-pages"))


@pytest.fixture(scope="module")
def store(database):
    lease = DriverLease(database.database, "test")
    lease.take()
    return PendingStore(database.database, lease)


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=30)
@given(histories(), st.integers(1, 5_000), st.integers(1, 8), st.integers(1, 8))
def test_each_board_whose_member_came_is_offered_in_pages(database, store, drawn, max_bytes, members, boards_a_page):
    boards, there, comes = drawn
    rows(database, "DELETE FROM pending_record")
    store.save_pending(
        PendingRecord("board", offset % 3, offset, offset, member, AT.date(), b"", b"x" * size, AT, None, None, AT)
        for offset, (member, size) in enumerate(boards)
    )
    there = set(there)
    pages = PendingPages(store, lambda ids: [i for i in ids if i in there], max_bytes, members, boards_a_page)
    sent = []

    def walk():
        while not pages.is_done:
            page = pages.next()
            if page:
                assert len(page) <= boards_a_page
                assert sum(len(board.value) for board in page) <= max_bytes or len(page) == 1
                due = [(b.topic, b.partition, b.offset) for b in page if boards[b.offset][0] in there]
                if due:
                    store.mark_sent(due)
                sent.extend(place[2] for place in due)
                pages.taken()

    walk()
    for came in comes:
        there |= set(range(-5, 6) if came is None else came)
        pages.note(None if came is None else sorted(came))
        walk()
        assert sorted(sent) == [offset for offset, (member, _) in enumerate(boards) if member in there]
