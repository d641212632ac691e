"""One driver at a time, on a real PostgreSQL: the later one takes the lease, the older one stops before it writes."""

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from psycopg2 import OperationalError

from include.contracts.errors import DatabaseUnavailable, DriverSuperseded, LedgerConflict
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.contracts.validation import Reject
from include.database.driver_lease import DriverAlive, DriverLease, LeaseTaken
from include.database.named import query
from include.database.offset_ledger import OffsetLedger
from include.database.sessions import SessionLimits, connect, open_connection
from include.database.stream_progress import Progress, StreamProgressStore
from spark_jobs.speed.pending_store import PendingRecord, PendingStore
from tests.servers import wait_until
from tests.support.fenced import refuse_unfenced
from tests.support.pipeline import migrated, rows

WRITE = "INSERT INTO stream_progress (query, driver_id) VALUES (%s, 'test')"
WRITTEN = "SELECT query FROM stream_progress ORDER BY query"
NOON = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)
REJECT = Reject("board", 0, 1, "broken", b"1", b"{", NOON)
PENDING = PendingRecord("board", 0, 1, 1, 1, NOON.date(), b"1", b"{}", NOON, None, None, NOON)
PROGRESS = Progress("join", "d", 1, None, 0, None, 0, None, None, None, None, None, None, None, None)
WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted"


@pytest.fixture
def settings(postgres, tmp_path):
    return migrated(None, postgres, "driver_lease", tmp_path)


def taken(settings, driver_id, *queries):
    lease = DriverLease(settings.database, driver_id, queries or ("join", "serve"))
    lease.take()
    return lease


def wait_for_lock(settings):
    wait_until(lambda: rows(settings, WAITING) == [(1,)], 10, "one session waits for the other")


def write(settings, lease, name, hold_first=True):
    with connect(settings.database, "stream") as connection, connection.cursor() as cursor:
        if hold_first:
            lease.hold(cursor)
        cursor.execute(WRITE, (name,))
        if not hold_first:
            lease.hold(cursor)


def test_the_holder_writes_again_and_again(settings):
    lease = taken(settings, "a")
    write(settings, lease, "one")
    write(settings, lease, "two")
    assert rows(settings, WRITTEN) == [("one",), ("two",)]


def test_each_driver_has_a_later_epoch_and_only_the_last_one_writes(settings):
    older = taken(settings, "a")
    later = taken(settings, "b")
    assert (older.epoch, later.epoch) == (1, 2)
    with pytest.raises(DriverSuperseded, match=r"epoch=1, later=2 on "):
        write(settings, older, "older")
    write(settings, later, "later")
    assert rows(settings, WRITTEN) == [("later",)]
    assert rows(settings, "SELECT DISTINCT driver_id, epoch FROM stream_driver") == [("b", 2)]


def test_who_never_took_it_does_not_write(settings):
    with pytest.raises(DriverSuperseded, match="epoch=0, later=None"):
        write(settings, DriverLease(settings.database, "a"), "one")
    assert rows(settings, WRITTEN) == []


def test_other_queries_are_not_concerned(settings):
    lease = taken(settings, "a", "join")
    taken(settings, "b", "serve")
    write(settings, lease, "one")
    assert rows(settings, WRITTEN) == [("one",)]


def test_taking_one_querys_lease_ends_no_transaction_of_the_others(settings):
    join, serve = taken(settings, "a", "join"), taken(settings, "a", "serve")
    later = DriverLease(settings.database, "b", ["serve"], take_s=2)
    with closing(open_connection(settings.database, "stream")) as silent, silent.cursor() as of_serve:
        serve.hold(of_serve)
        with connect(settings.database, "stream") as connection, connection.cursor() as of_join:
            join.hold(of_join)
            later.take()
            of_join.execute(WRITE, ("join",))
        with pytest.raises(OperationalError):
            of_serve.execute(WRITE, ("serve",))
    assert rows(settings, WRITTEN) == [("join",)]


def test_a_driver_of_both_queries_writes_only_with_both_leases(settings):
    both = taken(settings, "a")
    taken(settings, "b", "serve")
    with pytest.raises(DriverSuperseded, match=r"query=serve, epoch=1, later=2 on "):
        write(settings, both, "one")
    assert rows(settings, WRITTEN) == []


def test_both_leases_are_taken_or_none(settings):
    taken(settings, "a", "serve")
    both = DriverLease(settings.database, "b")
    with pytest.raises(LeaseTaken):
        both.take({"join": 0, "serve": 0})
    assert rows(settings, "SELECT query, driver_id FROM stream_driver") == [("serve", "a")]
    assert both.take({"join": 0, "serve": 1}) == 2
    assert {name: holder.driver_id for name, holder in both.holders().items()} == {"join": "b", "serve": "b"}


def test_what_the_older_one_wrote_in_the_transaction_that_finds_out_is_not_there(settings):
    older = taken(settings, "a")
    taken(settings, "b")
    with pytest.raises(DriverSuperseded):
        write(settings, older, "before", hold_first=False)
    assert rows(settings, WRITTEN) == []


def test_taking_it_waits_for_a_transaction_of_the_older_one_that_is_under_way(settings):
    older = taken(settings, "a")
    later = DriverLease(settings.database, "b")
    with ThreadPoolExecutor() as pool:
        with connect(settings.database, "stream") as connection, connection.cursor() as cursor:
            older.hold(cursor)
            taking = pool.submit(later.take)
            wait_for_lock(settings)
            cursor.execute(WRITE, ("older",))
            assert not taking.done()
        assert taking.result(10) == 2
    assert rows(settings, WRITTEN) == [("older",)]


def test_a_transaction_that_meets_a_driver_just_taking_over_waits_and_then_writes_nothing(settings):
    older = taken(settings, "a")
    with ThreadPoolExecutor() as pool:
        with connect(settings.database, "stream") as connection, connection.cursor() as cursor:
            taking_over = {"queries": ["join"], "driver_id": "b", "host": "elsewhere", "after": [None]}
            cursor.execute(query("take_driver_lease", PIPELINE), taking_over)
            writing = pool.submit(write, settings, older, "older")
            wait_for_lock(settings)
        with pytest.raises(DriverSuperseded, match="later=2 on elsewhere"):
            writing.result(10)
    assert rows(settings, WRITTEN) == []


def test_an_epoch_that_a_restored_database_gave_to_another_driver_is_not_this_ones(settings):
    lease = taken(settings, "a")
    rows(settings, "UPDATE stream_driver SET driver_id = 'b'")
    with pytest.raises(DriverSuperseded):
        write(settings, lease, "one")
    assert rows(settings, WRITTEN) == []


def test_of_two_that_saw_the_same_leader_end_one_takes_the_lease(settings):
    first = DriverLease(settings.database, "a", ["join"])
    assert first.holders() == {}
    assert first.take({"join": 0}) == 1
    with pytest.raises(LeaseTaken):
        DriverLease(settings.database, "b", ["join"]).take({"join": 0})
    holder = first.holders()["join"]
    assert (holder.epoch, holder.driver_id, holder.has_ended) == (1, "a", False)
    assert 0 <= holder.age_s < 60
    first.release()
    assert first.holders()["join"].has_ended
    later = DriverLease(settings.database, "b", ["join"])
    assert later.take({"join": 1}) == 2
    with pytest.raises(LeaseTaken):
        DriverLease(settings.database, "c", ["join"]).take({"join": 1})
    first.release()  # of a lease that it has no more
    assert not later.holders()["join"].has_ended


def test_a_heartbeat_is_a_sign_of_life_of_the_driver_that_wrote_it(settings):
    lease = taken(settings, "a")
    taken_at = lease.holders()["serve"].seen_at
    rows(settings, "INSERT INTO stream_progress (query, driver_id) VALUES ('join', 'another')")
    assert lease.holders()["serve"].seen_at == taken_at
    StreamProgressStore(settings.database, lease=lease).save([PROGRESS._replace(driver_id="a")])
    assert lease.holders()["serve"].seen_at > taken_at


def test_a_driver_that_took_its_lease_while_the_servers_clock_was_ahead_gives_signs_of_life(settings):
    lease = taken(settings, "a")
    rows(settings, "UPDATE stream_driver SET taken_at = taken_at + interval '1 day'")
    lease.refuse_live_driver()  # nobody knows when it took it
    signs = set()
    for _ in range(3):
        StreamProgressStore(settings.database, lease=lease).save([PROGRESS._replace(driver_id="a")])
        signs.add(lease.holders()["serve"].seen_at)
        with pytest.raises(DriverAlive):
            lease.refuse_live_driver()
    assert len(signs) == 3
    rows(settings, "UPDATE stream_progress SET heartbeat_at = heartbeat_at + interval '1 day'")
    lease.refuse_live_driver()


class Silent:
    """A client that stops while it sends rows."""

    def __init__(self):
        self.asked, self.go_on = threading.Event(), threading.Event()

    def read(self, _):
        self.asked.set()
        self.go_on.wait(60)
        return ""


def test_a_driver_that_stands_still_in_a_transaction_does_not_keep_the_lease(settings):
    older = taken(settings, "a")
    later = DriverLease(settings.database, "b", take_s=2)
    with closing(open_connection(settings.database, "stream")) as connection, connection.cursor() as cursor:
        older.hold(cursor)
        cursor.execute(WRITE, ("older",))
        assert later.take() == 2
        with pytest.raises(OperationalError):
            cursor.execute(WRITE, ("older too",))
    assert rows(settings, WRITTEN) == []
    write(settings, later, "later")


def test_a_driver_that_stands_still_while_it_sends_rows_does_not_keep_it_either(settings):
    """PostgreSQL ends no COPY by a time-out while it waits for the client."""
    older, silent = taken(settings, "a"), Silent()
    limits = SessionLimits(statement_s=5, idle_in_transaction_s=5)

    def copy():
        with connect(settings.database, "stream", limits=limits) as connection, connection.cursor() as cursor:
            older.hold(cursor)
            cursor.copy_expert("COPY stream_progress (query, driver_id) FROM STDIN", silent)

    with ThreadPoolExecutor() as pool:
        copying = pool.submit(copy)
        try:
            assert silent.asked.wait(10)
            assert DriverLease(settings.database, "b", take_s=2).take() == 2
        finally:
            silent.go_on.set()
        with pytest.raises(DatabaseUnavailable):
            copying.result(10)


def test_short_transactions_that_follow_each_other_without_a_gap_do_not_keep_it_either(settings):
    older, stop = taken(settings, "a"), threading.Event()

    def write_on(turn):
        with connect(settings.database, "stream") as connection:
            while not stop.is_set():
                with connection.cursor() as cursor:
                    older.hold(cursor)
                    cursor.execute("SELECT pg_sleep(%s)", (0.05 + 0.01 * turn,))
                connection.commit()

    with ThreadPoolExecutor() as pool:
        writing = [pool.submit(write_on, turn) for turn in range(4)]
        try:
            later = DriverLease(settings.database, "b", take_s=5)
            assert later.take() == 2
            for each in writing:
                with pytest.raises(DriverSuperseded):
                    each.result(10)
        finally:
            stop.set()


class TestStores:
    """Only the holder of the lease writes the stream's tables."""

    WRITES = (
        ("rejects", lambda s, lease: PendingStore(s.database, lease).save_rejects([REJECT], "join")),
        ("pending", lambda s, lease: PendingStore(s.database, lease).save_pending([PENDING])),
        ("mark sent", lambda s, lease: PendingStore(s.database, lease).mark_sent([("board", 0, 1)])),
        ("forget", lambda s, lease: PendingStore(s.database, lease).forget_superseded()),
        ("open", lambda s, lease: OffsetLedger(s.database).open("join", "board", "id", {0: 3}, lease)),
        ("heartbeat", lambda s, lease: StreamProgressStore(s.database, lease=lease).save([PROGRESS])),
    )
    TABLES = ("offset_ledger", "pending_record", "reject", "stream_progress")

    @pytest.mark.parametrize("write", [pytest.param(write, id=name) for name, write in WRITES])
    def test_the_holder_writes_and_a_superseded_driver_does_not(self, settings, write):
        assert set(refuse_unfenced(settings)) >= {*self.TABLES, "detail_live", "dirty_day", "day_publication"}
        older = taken(settings, "a")
        later = taken(settings, "b")
        with pytest.raises(DriverSuperseded):
            write(settings, older)
        assert [rows(settings, f"SELECT count(*) FROM {table}") for table in self.TABLES] == [[(0,)]] * 4
        write(settings, later)


class TestLedger:
    def advance(self, settings, lease, expected, ends):
        return OffsetLedger(settings.database).advance("join", "board", "id", expected, ends, lease)

    def places(self, settings):
        return dict(rows(settings, "SELECT partition, next_offset FROM offset_ledger"))

    def test_moves_many_partitions_and_opens_added_ones_at_their_beginning(self, settings):
        lease = taken(settings, "a")
        OffsetLedger(settings.database).open("join", "board", "id", {0: 3, 1: 0}, lease)
        assert self.advance(settings, lease, {0: 3, 1: 0}, {0: 5, 1: 0, 2: 7}) == {0: 5, 1: 0, 2: 7}
        assert self.places(settings) == {0: 5, 1: 0, 2: 7}

    def test_an_opened_entry_stays_as_it_is(self, settings):
        lease, ledger = taken(settings, "a"), OffsetLedger(settings.database)
        assert ledger.open("join", "board", "id", {0: 3}, lease) == {0: 3}
        assert ledger.open("join", "board", "id", {0: 9, 1: 2}, lease) == {0: 3, 1: 2}
        assert [entry[:3] for entry in ledger.entries("join", "board")] == [("id", 1, 2), ("id", 0, 3)]
        assert ledger.entries("serve", "board") == []

    def test_an_advance_whose_commit_was_not_answered_is_no_conflict(self, settings):
        lease = taken(settings, "a")
        OffsetLedger(settings.database).open("join", "board", "id", {0: 0, 1: 0}, lease)
        self.advance(settings, lease, {0: 0, 1: 0}, {0: 5, 1: 2})
        self.advance(settings, lease, {0: 0, 1: 0}, {0: 5, 1: 2})
        self.advance(settings, lease, {0: 0, 1: 0}, {0: 9, 1: 2})
        assert self.places(settings) == {0: 9, 1: 2}

    @pytest.mark.parametrize("place", [2, 10])
    def test_a_place_that_nobody_of_ours_wrote_is_a_conflict_and_nothing_moves(self, settings, place):
        lease = taken(settings, "a")
        OffsetLedger(settings.database).open("join", "board", "id", {0: 0, 1: place}, lease)
        with pytest.raises(LedgerConflict, match=f"partition=1, ledger={place}, expected=3, next_offset=9"):
            self.advance(settings, lease, {0: 0, 1: 3}, {0: 5, 1: 9})
        assert self.places(settings) == {0: 0, 1: place}

    def test_queries_that_share_it_do_not_mix_their_transactions(self, settings):
        lease, ledger = taken(settings, "a"), OffsetLedger(settings.database)

        def take(consumer):
            places = ledger.open(consumer, "board", "id", {0: 0}, lease)
            for end in range(1, 101):
                places = ledger.advance(consumer, "board", "id", places, {0: end}, lease)

        with ThreadPoolExecutor() as pool:
            list(pool.map(take, ("join", "serve")))
        assert rows(settings, "SELECT consumer, next_offset FROM offset_ledger ORDER BY 1") == [
            ("join", 100),
            ("serve", 100),
        ]

    def test_a_superseded_driver_moves_nothing(self, settings):
        older = taken(settings, "a")
        later = taken(settings, "b")
        OffsetLedger(settings.database).open("join", "board", "id", {0: 0}, later)
        with pytest.raises(DriverSuperseded):
            self.advance(settings, older, {0: 0}, {0: 5, 1: 1})
        assert self.places(settings) == {0: 0}
