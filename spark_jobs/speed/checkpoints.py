"""Spark's checkpoint folders. They live as long as the driver: where to begin is said by the offset ledger."""

import json
import shutil
from pathlib import Path

from include.adapters.kafka_offsets import Offsets


def fresh_folder(parent: Path, query: str) -> Path:
    """An empty folder for the query's checkpoint. What an earlier driver left there is of no use to anyone."""
    folder = parent.resolve() / query
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def batch_ends(folder: Path, batch_id: int, topic: str) -> Offsets:
    """Up to where a batch goes (exclusive), a partition. Spark writes it down before the batch begins."""
    lines = (folder / "offsets" / str(batch_id)).read_text(encoding="utf-8").splitlines()
    return {int(partition): offset for partition, offset in json.loads(lines[2])[topic].items()}
