"""State of the driver's queries: the queries' threads record it, the monitor reads it."""

import datetime as dt
import itertools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from include.contracts.definition import Definition
from include.contracts.errors import Transient
from spark_jobs.state.table_state import TableSize

Query = Literal["join", "serve"]
Count = Literal["sent", "rejects", "pending_kept", "pending_sent", "duplicates", "rows_written", "isolated"]
KEPT_BATCHES = 100  # of a query, with their rows


def topics_of(definition: Definition) -> dict[Query, str]:
    """Return the topic that each query reads."""
    return {"join": definition.stream.name, "serve": definition.output.name}


@dataclass(frozen=True)
class Batch:
    """A batch of a query, or a part of one.

    `rows` are the records that the driver decoded, and `newest_at` is their newest timestamp. `batch_id` is Spark's; a
    negative one means that Spark did not make the batch.
    """

    batch_id: int
    rows: int
    phases_s: Mapping[str, float]
    newest_at: dt.datetime | None


@dataclass(frozen=True)
class Done:
    """Batches and rows of a query since the start of the driver, and when it last finished a batch."""

    batches: int = 0
    rows: int = 0
    last_at: dt.datetime | None = None


@dataclass
class DriverState:
    """Positions, counts and waits of the queries. Thread-safe; counts grow from the start of the driver."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _batches: dict[Query, Batch] = field(default_factory=dict)
    _done: dict[Query, Done] = field(default_factory=dict)
    _rows: dict[Query, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    _positions: dict[str, dict[int, int]] = field(default_factory=dict)
    _counts: Counter[str] = field(default_factory=Counter)
    _waiting: dict[tuple[Query, int], tuple[str, dt.datetime]] = field(default_factory=dict)
    _wait_numbers: Iterator[int] = field(default_factory=itertools.count)
    _table: TableSize = field(default_factory=TableSize)

    def record_batch(self, query: Query, batch: Batch) -> None:
        """Record a finished batch."""
        with self._lock:
            self._batches[query] = batch
            rows = self._rows[query]
            rows[batch.batch_id] = rows.get(batch.batch_id, 0) + batch.rows
            for old in [*rows][:-KEPT_BATCHES]:
                del rows[old]
            done = self._done.get(query, Done())
            self._done[query] = Done(done.batches + 1, done.rows + batch.rows, dt.datetime.now(dt.UTC))

    def set_position(self, topic: str, next_offsets: Mapping[int, int]) -> None:
        """Set the next offsets of a topic: at the start, and after each batch that took effect.

        Partitions that are not named stay as they are.
        """
        with self._lock:
            self._positions[topic] = {**self._positions.get(topic, {}), **next_offsets}

    def add_count(self, name: Count, number: int) -> None:
        """Add to a count."""
        with self._lock:
            self._counts[name] += number

    def set_table_size(self, size: TableSize) -> None:
        """Set the size of the table."""
        with self._lock:
            self._table = size

    def waiting_callback(self, query: Query) -> Callable[[Transient | None], None]:
        """Return a callback for `retry_transient` that records what the query waits for; several may be in use."""
        key = (query, next(self._wait_numbers))

        def note(error: Transient | None) -> None:
            with self._lock:
                if error is None:
                    self._waiting.pop(key, None)
                else:
                    _, since = self._waiting.get(key, ("", dt.datetime.now(dt.UTC)))
                    self._waiting[key] = (f"{type(error).__name__}: {error}", since)

        return note

    def last_batch(self, query: Query) -> Batch | None:
        """The query's last batch that had records."""
        with self._lock:
            return self._batches.get(query)

    def rows_of(self, query: Query, batch_id: int) -> int:
        """The rows of one of Spark's last 100 batches that have taken effect."""
        with self._lock:
            return self._rows[query].get(batch_id, 0)

    def done(self, query: Query) -> Done:
        """The query's batches and rows so far."""
        with self._lock:
            return self._done.get(query, Done())

    def position_in(self, topic: str) -> dict[int, int] | None:
        """The next offsets of the topic; None before they are set."""
        with self._lock:
            found = self._positions.get(topic)
            return None if found is None else dict(found)

    def counts(self) -> dict[str, int]:
        """All counts."""
        with self._lock:
            return dict(self._counts)

    def table_size(self) -> TableSize:
        """The size of the table as last set."""
        with self._lock:
            return self._table

    def waiting_for(self, query: Query) -> tuple[str, dt.datetime] | None:
        """The error that the query waits out, the oldest of two, and since when; None while it does not wait."""
        with self._lock:
            waits = [wait for (name, _), wait in self._waiting.items() if name == query]
        return min(waits, key=lambda wait: wait[1], default=None)
