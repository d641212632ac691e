"""Spark's checkpoint folders. Each is used by one driver only, because queries start from the offset ledger."""

import json
import shutil
import time
from pathlib import Path

from include.contracts.offsets import OffsetRange, Offsets
from spark_jobs.speed.presence import is_running

LEFT_S = 3600.0


def folder_of(parent: Path, driver_id: str) -> Path:
    """Create the driver's checkpoint folder. Drivers share none, because a superseded one may still be running.

    Folders that have not changed for an hour are removed, except those of drivers that run on this machine.
    """
    parent = parent.resolve()
    folder = parent / driver_id
    folder.mkdir(parents=True)
    for left in parent.iterdir():
        if left.is_dir() and time.time() - left.stat().st_mtime > LEFT_S and not is_running(parent, left.name):
            shutil.rmtree(left, ignore_errors=True)
    return folder


class BatchRanges:
    """Offset ranges of a query's batches, from Spark's offset log, which is written before a batch starts."""

    def __init__(self, folder: Path, topic: str, start: Offsets) -> None:
        """`start` holds the starting offsets of the first batch."""
        self._folder = folder
        self._topic = topic
        self._start = start

    def of(self, batch_id: int) -> OffsetRange:
        """Return the range of a batch."""
        end = self._end(batch_id)
        start = self._end(batch_id - 1) if batch_id else self._start
        return OffsetRange({partition: start.get(partition, 0) for partition in end}, end)

    def _end(self, batch_id: int) -> Offsets:
        lines = (self._folder / "offsets" / str(batch_id)).read_text(encoding="utf-8").splitlines()
        return {int(partition): offset for partition, offset in json.loads(lines[2])[self._topic].items()}
