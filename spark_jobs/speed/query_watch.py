"""Polls the state of a streaming query from Spark, once a second."""

import datetime as dt
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.speed.driver_state import KEPT_BATCHES
from spark_jobs.speed.lag import WINDOW

log = logging.getLogger(__name__)


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
