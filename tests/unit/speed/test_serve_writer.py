"""The writer's thread: one batch at a time, none after one that failed, and an end that does not hang."""

import threading

import pytest

from include.contracts.errors import DatabaseUnavailable, LedgerConflict
from spark_jobs.speed.health.state import DriverState
from spark_jobs.speed.live_table import Applied
from spark_jobs.speed.serve import BatchWriter, DecodedBatch
from tests.servers import wait_until
from tests.support.driver import driver_context
from tests.support.serving import batch, row

FIRST, SECOND = (DecodedBatch(n, batch([row(n, n)]), {}) for n in (1, 2))


class Store:
    """A serving store that fails as it is told, and holds its batches back until `gate` is open."""

    topic = "board-detail"

    def __init__(self, *failures):
        self.failures = list(failures)
        self.given, self.written = [], []
        self.gate = threading.Event()
        self.gate.set()
        self.is_closed = False

    @property
    def committed_offsets(self):
        return {0: self.written[-1] + 1}

    def apply(self, records, beyond):
        (offset,) = records["kafka_offset"].to_pylist()
        self.given.append(offset)
        assert self.gate.wait(20)
        if self.failures:
            raise self.failures.pop(0)
        self.written.append(offset)
        return Applied(written=1)

    def cancel(self):
        self.failures.append(DatabaseUnavailable("cancelled"))
        self.gate.set()

    def close(self):
        self.is_closed = True


class Heard(DriverState):
    """A DriverState that remembers every wait."""

    def __init__(self):
        super().__init__()
        self.reasons = []

    def waiting_callback(self, query):
        note = super().waiting_callback(query)

        def remember(error):
            self.reasons.append((query, None if error is None else str(error)))
            note(error)

        return remember


def writer_of(store, state=None, stop=None):
    return BatchWriter(driver_context(state=state or DriverState(), stop=stop or threading.Event()), store)


def test_batches_are_written_in_their_order_one_at_a_time():
    store = Store()
    store.gate.clear()
    writer = writer_of(store)
    assert writer.hand_over(FIRST)
    second = threading.Thread(target=writer.hand_over, args=(SECOND,))
    second.start()
    wait_until(lambda: store.given == [1], 20, "the first batch is begun")
    assert writer.is_writing
    store.gate.set()
    second.join(20)
    assert writer.close()
    assert store.given == store.written == [1, 2]
    assert store.is_closed


def test_what_passes_is_waited_out_and_said_meanwhile():
    store = Store(DatabaseUnavailable("out"), DatabaseUnavailable("still out"))
    state = Heard()
    writer = writer_of(store, state)
    writer.hand_over(FIRST)
    wait_until(lambda: not writer.is_writing, 20, "the batch is written")
    writer.check()
    assert store.given == [1, 1, 1]
    assert state.reasons == [("serve", "out"), ("serve", "still out"), ("serve", None)]
    assert state.position_in("board-detail") == {0: 2}
    assert state.counts() == {"rows_written": 1, "rejects": 0, "duplicates": 0}


def test_no_batch_comes_after_one_that_failed():
    store = Store(LedgerConflict("moved"))
    writer = writer_of(store)
    writer.hand_over(FIRST)
    for _ in range(2):
        with pytest.raises(LedgerConflict, match="moved"):
            writer.hand_over(SECOND)
    with pytest.raises(LedgerConflict, match="moved"):
        writer.check()
    assert store.given == [1]
    assert writer.close() is False


def test_once_it_stops_no_batch_is_begun():
    store = Store()
    store.gate.clear()
    stop = threading.Event()
    writer = writer_of(store, stop=stop)
    writer.hand_over(FIRST)
    stop.set()
    assert writer.hand_over(SECOND) is False
    store.gate.set()
    assert writer.close() is True
    assert writer.hand_over(SECOND) is False
    assert store.written == [1]


def test_closing_ends_the_waiting_for_a_database_that_is_out():
    store = Store(*[DatabaseUnavailable("out")] * 1_000)
    writer = writer_of(store)
    writer.hand_over(FIRST)
    wait_until(lambda: store.given != [], 20, "the batch is tried")
    assert writer.close() is False
    assert not writer.is_writing
    assert store.written == []


def test_closing_breaks_off_a_statement_that_takes_too_long():
    store = Store()
    store.gate.clear()
    writer = writer_of(store)
    writer.hand_over(FIRST)
    assert writer.close(max_wait_s=0.05) is False
    assert store.written == []
