"""Lag behind the end of a topic, in records and seconds, without reading the topic, and the progress of the queries.

The state of a streaming query is read from Spark once a second.
"""

import datetime as dt
import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.speed.health.state import KEPT_BATCHES

log = logging.getLogger(__name__)


WINDOW = dt.timedelta(seconds=15)
MOST_SAMPLES = 512


@dataclass(frozen=True)
class Lag:
    """Records that are not processed yet, and an upper bound of the seconds that the first of them has waited."""

    records: int
    seconds: float


@dataclass(frozen=True)
class Held:
    """Records that cannot be read because an open transaction precedes them, and the time when it was first seen.

    `partition` and `offset` are the start of the transaction that has been open for the longest time.
    """

    records: int
    partition: int
    offset: int
    since: dt.datetime


class _Sample(NamedTuple):
    """Offsets by partition at a time: the last stable ones, and the high watermarks."""

    at: dt.datetime
    ends: Mapping[int, int]
    highs: Mapping[int, int]


class TopicEnds:
    """Samples of a topic's end offsets, taken every few seconds. One thread adds them, others read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: list[_Sample] = []
        self._held: dict[int, tuple[int, dt.datetime, int]] = {}

    def note(self, at: dt.datetime, ends: Mapping[int, int], high_watermarks: Mapping[int, int] | None = None) -> None:
        """Add a sample. Beyond `MOST_SAMPLES`, every second of the older samples is dropped."""
        with self._lock:
            held = {}
            for partition, high in (high_watermarks or {}).items():
                end = ends.get(partition, high)
                if high > end:
                    before = self._held.get(partition)  # a last stable offset that moves is not a hung transaction
                    held[partition] = (end, before[1] if before and before[0] == end else at, high - end)
            self._held = held
            self._samples.append(_Sample(at, dict(ends), dict(high_watermarks or ends)))
            if len(self._samples) > MOST_SAMPLES:
                del self._samples[1 : MOST_SAMPLES // 2 : 2]

    @property
    def last_seen_at(self) -> dt.datetime | None:
        """Time of the last sample; None before the first one."""
        with self._lock:
            return self._samples[-1].at if self._samples else None

    @property
    def held(self) -> Held | None:
        """Records between the last stable offset and the high watermark; None if there are none."""
        with self._lock:
            if not self._held:
                return None
            partition, (offset, since, _) = min(self._held.items(), key=lambda item: item[1][1])
            return Held(sum(records for _, _, records in self._held.values()), partition, offset, since)

    def appended_per_s(self) -> float | None:
        """Return the records per second that were appended over the last 15 s; None with fewer than two samples."""
        with self._lock:
            if len(self._samples) < 2:
                return None
            last = self._samples[-1]
            recent = [sample for sample in self._samples[:-1] if last.at - sample.at <= WINDOW]
            first = recent[0] if recent else self._samples[-2]
        seconds = (last.at - first.at).total_seconds()
        grown = sum(last.ends.values()) - sum(first.ends.values())
        return max(0.0, grown / seconds) if seconds > 0 else None

    def taken_until(self, position: Mapping[int, int]) -> dt.datetime | None:
        """Return a time before which nothing was appended that the position has not reached; None if none is known.

        Records behind an open transaction are not reached, though nobody can read them yet.
        """
        with self._lock:
            return next((one.at for one in reversed(self._samples) if _behind(one.highs, position) == 0), None)

    def lag(self, position: Mapping[int, int], newest_at: dt.datetime | None, now: dt.datetime) -> Lag | None:
        """Return the lag of a consumer at `position`; None before the first sample.

        The first unprocessed record was appended after the last sample whose end offsets the position has reached. It
        was also appended after the newest processed record, `newest_at`, which is the closer bound while a backlog is
        processed. If neither is known, the seconds count from the first sample, and the true lag may be greater.
        """
        with self._lock:
            if not self._samples:
                return None
            records = _behind(self._samples[-1].ends, position)
            if records == 0:
                return Lag(0, 0.0)
            all_taken_at = next((one.at for one in reversed(self._samples) if _behind(one.ends, position) == 0), None)
            came_after = [at for at in (all_taken_at, newest_at) if at is not None and at <= now]
            since = max(came_after, default=self._samples[0].at)
        return Lag(records, max(0.0, (now - since).total_seconds()))


def _behind(ends: Mapping[int, int], position: Mapping[int, int]) -> int:
    return sum(max(0, end - position.get(partition, 0)) for partition, end in ends.items())


@dataclass(frozen=True)
class SparkBatch:
    """A batch that had records. `phases_s` are Spark's durationMs."""

    batch_id: int
    rows: int
    duration_s: float
    phases_s: Mapping[str, float]


@dataclass(frozen=True)
class _Told:
    """A batch that Spark told of, and since when it has rows: None before any of it has taken effect."""

    batch: SparkBatch
    since: dt.datetime | None = None


@dataclass
class QueryWatch:
    """The last polled state. Only one thread may call `look`; any may read, because values are replaced as a whole.

    Spark gives a batch its offsets and times. The driver gives its rows, by `rows_of` its id: transaction markers have
    offsets and are no records, and Spark's numInputRows counts what the batch function reads, none of them or all
    twice. The rows grow while the parts of a batch are written, also after Spark has told of it.
    """

    query: StreamingQuery
    rows_of: Callable[[int], int]
    is_active: bool = True
    position: dict[int, int] | None = None
    _told: tuple[_Told, ...] = ()

    @property
    def batch(self) -> SparkBatch | None:
        """The last batch that had records, with those that have taken effect."""
        return next((told.batch for told in reversed(self._told) if told.since is not None), None)

    def look(self, now: dt.datetime) -> None:
        """Poll Spark. If the JVM does not respond, the query counts as ended."""
        try:
            is_active, progress = self.query.isActive, self.query.lastProgress
        except (Py4JError, OSError) as exc:
            if self.is_active:
                log.warning("Spark does not respond: %s", type(exc).__name__)
            self.is_active = False
            return
        self.is_active = is_active
        told = [*self._told]
        if progress is not None and (batch := self._taken(json.loads(progress.json))) is not None:
            told.append(_Told(batch))
        self._told = tuple(self._counted(each, now) for each in told[-KEPT_BATCHES:])

    def processed_per_s(self, now: dt.datetime) -> float:
        """Return the records per second of batch time, over the batches that took effect in the last 15 s."""
        recent = [told.batch for told in self._told if told.since is not None and now - told.since <= WINDOW]
        seconds = sum(batch.duration_s for batch in recent)
        return sum(batch.rows for batch in recent) / seconds if seconds else 0.0

    def _taken(self, progress: dict[str, Any]) -> SparkBatch | None:
        """Take over the position, and return the batch, without rows, if it is another one than before."""
        source, batch_id = progress["sources"][0], progress["batchId"]
        ends = _offsets(source.get("endOffset"))
        if ends is None:
            return None
        self.position = ends
        is_known = bool(self._told) and self._told[-1].batch.batch_id == batch_id
        if is_known or ends == _offsets(source.get("startOffset")):
            return None
        phases = {name: ms / 1000 for name, ms in progress.get("durationMs", {}).items()}
        return SparkBatch(batch_id, 0, progress["batchDuration"] / 1000, phases)

    def _counted(self, told: _Told, now: dt.datetime) -> _Told:
        """Take over the rows, which the driver forgets after a while."""
        rows = self.rows_of(told.batch.batch_id)
        return told if rows <= told.batch.rows else _Told(replace(told.batch, rows=rows), told.since or now)


def _offsets(of_topics: Mapping[str, Mapping[str, int]] | None) -> dict[int, int] | None:
    """Return the offsets by partition. Each query reads one topic."""
    if not of_topics:
        return None
    (partitions,) = of_topics.values()
    return {int(partition): offset for partition, offset in partitions.items()}
