"""Polls the state of a streaming query from Spark, once a second."""

import datetime as dt
import json
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

from spark_jobs.speed.lag import WINDOW

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SparkBatch:
    """Spark's last batch that had records. `phases_s` are Spark's durationMs."""

    batch_id: int
    rows: int
    duration_s: float
    phases_s: Mapping[str, float]


@dataclass
class QueryWatch:
    """The last polled state. Only one thread may call `look`; any may read, because values are replaced as a whole."""

    query: StreamingQuery
    start: Mapping[int, int]  # where the query began: Spark does not say it of the first batch
    is_active: bool = True
    batch: SparkBatch | None = None
    position: dict[int, int] | None = None
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

    def processed_per_s(self, now: dt.datetime) -> float:
        """Return the records per second of batch time, over the batches of the last 15 s."""
        recent = [batch for at, batch in list(self._recent) if now - at <= WINDOW]
        seconds = sum(batch.duration_s for batch in recent)
        return sum(batch.rows for batch in recent) / seconds if seconds else 0.0

    def _take(self, progress: dict[str, Any], now: dt.datetime) -> None:
        source = progress["sources"][0]
        ends = _offsets(source.get("endOffset"))
        if ends is None:
            return
        starts = _offsets(source.get("startOffset")) or self.start
        self.position = ends
        rows = _distance(starts, ends)
        if rows == 0 or (self.batch is not None and self.batch.batch_id == progress["batchId"]):
            return
        phases = {name: ms / 1000 for name, ms in progress.get("durationMs", {}).items()}
        self.batch = SparkBatch(progress["batchId"], rows, progress["batchDuration"] / 1000, phases)
        self._recent.append((now, self.batch))
        while now - self._recent[0][0] > WINDOW:
            self._recent.popleft()


def _distance(starts: Mapping[int, int], ends: Mapping[int, int]) -> int:
    return sum(end - starts.get(partition, 0) for partition, end in ends.items())


def _offsets(of_topics: Mapping[str, Mapping[str, int]] | None) -> dict[int, int] | None:
    """Return the offsets by partition. Each query reads one topic."""
    if not of_topics:
        return None
    (partitions,) = of_topics.values()
    return {int(partition): offset for partition, offset in partitions.items()}
