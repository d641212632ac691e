"""Lag behind the end of a topic, in records and in seconds, computed without reading the topic."""

import datetime as dt
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

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
