"""Polls the state of a streaming query from Spark, once a second."""

import datetime as dt
import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.speed.lag import WINDOW

log = logging.getLogger(__name__)

_UNSETTLED = 100  # batches that have not taken effect yet, or whose records were taken one by one


@dataclass(frozen=True)
class SparkBatch:
    """A batch that had records. `phases_s` are Spark's durationMs."""

    batch_id: int
    rows: int
    duration_s: float
    phases_s: Mapping[str, float]


@dataclass
class QueryWatch:
    """The last polled state. Only one thread may call `look`; any may read, because values are replaced as a whole.

    Spark gives a batch its offsets and times. The driver gives its rows, by `rows_of` its id, None before it has taken
    effect: transaction markers have offsets and are no records, and Spark's numInputRows counts what the batch function
    reads, none of them or all twice.
    """

    query: StreamingQuery
    rows_of: Callable[[int], int | None]
    is_active: bool = True
    batch: SparkBatch | None = None
    position: dict[int, int] | None = None
    _last_id: int | None = None
    _unsettled: deque[tuple[dt.datetime, SparkBatch]] = field(default_factory=lambda: deque(maxlen=_UNSETTLED))
    _recent: deque[tuple[dt.datetime, SparkBatch]] = field(default_factory=deque)

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
        if progress is not None:
            self._take(json.loads(progress.json), now)
        self._settle(now)

    def processed_per_s(self, now: dt.datetime) -> float:
        """Return the records per second of batch time, over the batches of the last 15 s."""
        recent = [batch for at, batch in list(self._recent) if now - at <= WINDOW]
        seconds = sum(batch.duration_s for batch in recent)
        return sum(batch.rows for batch in recent) / seconds if seconds else 0.0

    def _take(self, progress: dict[str, Any], now: dt.datetime) -> None:
        source, batch_id = progress["sources"][0], progress["batchId"]
        ends = _offsets(source.get("endOffset"))
        if ends is None:
            return
        self.position = ends
        if batch_id == self._last_id or ends == _offsets(source.get("startOffset")):
            return
        self._last_id = batch_id
        phases = {name: ms / 1000 for name, ms in progress.get("durationMs", {}).items()}
        self._unsettled.append((now, SparkBatch(batch_id, 0, progress["batchDuration"] / 1000, phases)))

    def _settle(self, now: dt.datetime) -> None:
        """Take over the batches whose rows are known by now."""
        for waiting in list(self._unsettled):
            at, batch = waiting
            rows = self.rows_of(batch.batch_id)
            if rows is None:
                continue
            self._unsettled.remove(waiting)
            if rows:
                self.batch = replace(batch, rows=rows)
                self._recent.append((at, self.batch))
        while self._recent and now - self._recent[0][0] > WINDOW:
            self._recent.popleft()


def _offsets(of_topics: Mapping[str, Mapping[str, int]] | None) -> dict[int, int] | None:
    """Return the offsets by partition. Each query reads one topic."""
    if not of_topics:
        return None
    (partitions,) = of_topics.values()
    return {int(partition): offset for partition, offset in partitions.items()}
