"""Raw records in files, read by a rebuild in the place of topics."""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from include.contracts.clock import epoch_ms
from include.kafka.record_table import RAW
from spark_jobs.batch.sources import Sources
from spark_jobs.connectors.splits import FileSplit


class Record(NamedTuple):
    """A record in a topic's log; `value` None is a tombstone."""

    topic: str
    offset: int
    key: str | None
    value: bytes | None
    timestamp: dt.datetime
    headers: Sequence[tuple[str, str]] = ()
    partition: int = 0


def file_sources(folder: Path, records: Sequence[Record], files: int = 1) -> Sources:
    """The records of the topics, in their order, in so many files a topic. Without a topic there is no id."""
    splits: dict[str, list[FileSplit]] = {"board": [], "member": [], "board-detail": []}
    for topic, found in splits.items():
        of_topic = [record for record in records if record.topic == topic]
        for number in range(files):
            path = folder / f"{topic}-{number}.parquet"
            pq.write_table(raw_table(of_topic[number::files]), path)
            found.append(FileSplit(topic, str(path)))
    return Sources(
        stream=tuple(splits["board"]), table=tuple(splits["member"]), output=tuple(splits["board-detail"]),
        cut={"board": {0: 1 << 40}, "member": {0: 1 << 40}}, starts={}, records=len(records),
    )  # fmt: skip


def raw_table(records: Sequence[Record]) -> pa.Table:
    """The records with the columns of RAW."""
    return pa.Table.from_pylist([_row(record) for record in records], RAW)


def _row(record: Record) -> dict[str, object]:
    return {
        "partition": record.partition, "offset": record.offset, "timestamp": epoch_ms(record.timestamp),
        "key": None if record.key is None else record.key.encode(), "value": record.value,
        "headers": [{"key": name, "value": text.encode()} for name, text in record.headers] or None,
    }  # fmt: skip
