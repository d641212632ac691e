"""Splits of the raw input, ranges of a topic or files of the archive, read as Arrow tables in a Python worker."""

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import pyarrow as pa

from include.kafka.reader import MAX_RECORDS, RangeReader
from include.kafka.record_table import RAW, raw_schema, record_table
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.connectors.archive_files import ArchiveFolder

ROWS = MAX_RECORDS  # per table
READ_TIMEOUT_S = 60.0  # without records


@dataclass(frozen=True)
class TopicSplit:
    """The records of one partition with `start <= offset < end`."""

    topic: str
    partition: int
    start: int
    end: int

    def holds(self, topic: str, partition: int, offset: int) -> bool:
        """True if the record is among those of the split."""
        return (topic, partition) == (self.topic, self.partition) and self.start <= offset < self.end


@dataclass(frozen=True)
class FileSplit:
    """A Parquet file with the columns of RAW, at a path in the folder. Other columns are not read."""

    topic: str
    path: str
    folder: ArchiveFolder = field(default_factory=lambda: ArchiveFolder("/"))


@dataclass(frozen=True)
class ColumnsFile:
    """A Parquet file of the archive with columns decoded from raw records: versions, or OUTPUT_COORDINATES."""

    topic: str
    path: str
    folder: ArchiveFolder


Split = TopicSplit | FileSplit


def read_split(
    split: Split, kafka: KafkaConnection, columns: Collection[str] = RAW.names, all_headers: bool = True
) -> Iterator[pa.Table]:
    """Yield the split's records in tables of at most `ROWS` rows, with the given columns in the order of RAW.

    Errors and `all_headers` are as in `read_topic`.
    """
    match split:
        case TopicSplit():
            return read_topic([split], kafka, columns, all_headers)
        case FileSplit():
            return read_columns(split, raw_schema(columns))


def read_topic(
    splits: Sequence[TopicSplit], kafka: KafkaConnection, columns: Collection[str] = RAW.names, all_headers: bool = True
) -> Iterator[pa.Table]:
    """Yield the records of several splits of one topic, in tables as those of `read_split`.

    Different partitions are fetched at the same time. Without `all_headers` only tombstones have headers; reading them
    takes a third of the time for a small record. Either all records are returned or an error is raised: MissingRange
    if Kafka no longer holds a range, BrokerUnavailable if no record arrives for `READ_TIMEOUT_S`.
    """
    waiting = list(splits)
    while waiting:  # a consumer has one position per partition, so splits of the same partition take turns
        together = {split.partition: split for split in reversed(waiting)}
        waiting = [split for split in waiting if together[split.partition] is not split]
        yield from _read_partitions(together, kafka, raw_schema(columns), all_headers)


def read_columns(split: FileSplit | ColumnsFile, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the file's rows in tables of at most `ROWS` rows, with the columns of `schema`."""
    with split.folder.open(split.path) as file:
        for number in range(file.num_row_groups):  # all row groups at once would be buffered together
            for batch in file.iter_batches(ROWS, row_groups=[number], columns=schema.names):
                yield pa.Table.from_batches([batch]).cast(schema)


def _read_partitions(
    splits: Mapping[int, TopicSplit], kafka: KafkaConnection, schema: pa.Schema, all_headers: bool
) -> Iterator[pa.Table]:
    (topic,) = {split.topic for split in splits.values()}
    positions = {partition: split.start for partition, split in splits.items() if split.start < split.end}
    ends = {partition: splits[partition].end for partition in positions}
    reader = _reader(kafka, threading.get_ident())
    reader.begin(topic, positions)
    try:
        for records in reader.iter_to(ends, positions, READ_TIMEOUT_S):
            yield record_table(records, schema, all_headers)
    finally:
        reader.release()


@cache
def _reader(kafka: KafkaConnection, _thread: int) -> RangeReader:
    """Return the thread's reader, which is reused for every split: creating one takes longer than reusing it."""
    return RangeReader(kafka)
