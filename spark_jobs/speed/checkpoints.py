"""Spark's checkpoint folders. They live as long as the driver: where to begin is said by the offset ledger."""

import json
import shutil
import time
from pathlib import Path

from include.adapters.kafka_offsets import OffsetRange, Offsets

LEFT_S = 3600.0


def folder_of(parent: Path, driver_id: str) -> Path:
    """A folder of the driver's own: an older one that still runs must not find another's batches in its place.

    What drivers that are gone left there is of no use to anyone, and is removed after an hour.
    """
    parent = parent.resolve()
    folder = parent / driver_id
    folder.mkdir(parents=True)
    for left in parent.iterdir():
        if left.is_dir() and time.time() - left.stat().st_mtime > LEFT_S:
            shutil.rmtree(left, ignore_errors=True)
    return folder


class BatchRanges:
    """Which records each batch of a query has. Spark writes it down before the batch begins."""

    def __init__(self, folder: Path, topic: str, start: Offsets) -> None:
        """`start`: where the first batch begins."""
        self._folder = folder
        self._topic = topic
        self._start = start

    def of(self, batch_id: int) -> OffsetRange:
        """The range of a batch."""
        end = self._end(batch_id)
        start = self._end(batch_id - 1) if batch_id else self._start
        return OffsetRange({partition: start.get(partition, 0) for partition in end}, end)

    def _end(self, batch_id: int) -> Offsets:
        lines = (self._folder / "offsets" / str(batch_id)).read_text(encoding="utf-8").splitlines()
        return {int(partition): offset for partition, offset in json.loads(lines[2])[self._topic].items()}
