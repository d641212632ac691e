"""Splits of the raw input, ranges of a topic or files of the archive, read as Arrow tables in a Python worker."""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from include.errors import BrokerUnavailable, MissingRange

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
RAW = pa.schema([
    ("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.timestamp("ms", "UTC")),
    ("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS),
])  # fmt: skip

# Coordinates of the output topic's records and of the board records they were made from; `key` is the board's id.
PLACES = pa.schema([
    ("partition", pa.int32()), ("offset", pa.int64()), ("key", pa.int64()), ("stream_partition", pa.int32()),
    ("stream_offset", pa.int64()),
])  # fmt: skip

ROWS = 16_384  # per table: about 10 MB with texts
READ_TIMEOUT_S = 60.0  # without records
RENEWAL_S = 5.0  # without records, until the consumer is replaced; doubles each time
POLL_S = 0.2


@dataclass(frozen=True)
class TopicSplit:
    """The records of one partition with `start <= offset < end`."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class FileSplit:
    """A Parquet file with the columns of RAW, given by a path or a URI. Other columns are not read."""

    topic: str
    path: str


@dataclass(frozen=True)
class ColumnsFile:
    """A Parquet file of the archive with columns decoded from raw records: versions, or PLACES."""

    topic: str
    path: str


Split = TopicSplit | FileSplit


def read_split(
    split: Split, bootstrap_servers: str, columns: Collection[str] = RAW.names, all_headers: bool = True
) -> Iterator[pa.Table]:
    """Yield the split's records in tables of at most `ROWS` rows, with the given columns in the order of RAW.

    Errors and `all_headers` are as in `read_topic`.
    """
    match split:
        case TopicSplit():
            return read_topic([split], bootstrap_servers, columns, all_headers)
        case FileSplit():
            return _read_file(split.path, _schema(columns))


def read_topic(
    splits: Sequence[TopicSplit], bootstrap_servers: str, columns: Collection[str] = RAW.names, all_headers: bool = True
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
        yield from _read_partitions(together, bootstrap_servers, _schema(columns), all_headers)


def read_columns(file: ColumnsFile, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the file's rows in tables of at most `ROWS` rows, with the columns of `schema`."""
    return _read_file(file.path, schema)


def _schema(columns: Collection[str]) -> pa.Schema:
    return pa.schema([field for field in RAW if field.name in columns])


def _read_partitions(
    splits: Mapping[int, TopicSplit], bootstrap_servers: str, schema: pa.Schema, all_headers: bool
) -> Iterator[pa.Table]:
    positions = {partition: split.start for partition, split in splits.items() if split.start < split.end}
    consumer = _assigned(bootstrap_servers, splits, positions)
    renewal_s = RENEWAL_S
    deadline, renewal = time.monotonic() + READ_TIMEOUT_S, time.monotonic() + renewal_s
    try:
        while positions:
            if time.monotonic() > deadline:
                raise BrokerUnavailable(
                    "Kafka did not give the records in time", wanted=positions, splits=[*splits.values()]
                )
            if time.monotonic() > renewal:
                # librdkafka ignores a leader epoch lower than one it has seen: after a topic was deleted and created
                # again, a client that read the former one waits forever
                consumer.close()
                _consumer.cache_clear()
                consumer = _assigned(bootstrap_servers, splits, positions)
                renewal_s *= 2
                renewal = time.monotonic() + renewal_s
            left = sum(splits[partition].end - position for partition, position in positions.items())
            messages = _consume(consumer, min(ROWS, left), splits)
            records = _records_of(messages, splits, positions)
            for partition in [p for p, position in positions.items() if position >= splits[p].end]:
                del positions[partition]
                consumer.pause([TopicPartition(splits[partition].topic, partition)])
            if records:
                yield _table(records, schema, all_headers)
                deadline, renewal = time.monotonic() + READ_TIMEOUT_S, time.monotonic() + renewal_s
    finally:
        # the cached consumer reads the worker's next split: partitions would stay paused
        consumer.resume([TopicPartition(split.topic, partition) for partition, split in splits.items()])
        consumer.unassign()


def _assigned(bootstrap_servers: str, splits: Mapping[int, TopicSplit], positions: Mapping[int, int]) -> Consumer:
    consumer = _consumer(bootstrap_servers)
    consumer.assign([TopicPartition(splits[p].topic, p, position) for p, position in positions.items()])
    return consumer


@cache
def _consumer(bootstrap_servers: str) -> Consumer:
    """Return the worker's consumer, which is reused for every split: creating one takes longer than reusing it."""
    return Consumer({
        "bootstrap.servers": bootstrap_servers,
        "group.id": "rebuild",  # required by the client, used for nothing
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",  # a range that is gone must raise an error
        "isolation.level": "read_committed",
        "enable.partition.eof": True,  # a split may end in transaction markers, which have offsets but no records
        "queued.max.messages.kbytes": 32_768,
        "fetch.queue.backoff.ms": 10,  # a full queue would stop fetching for a second, its default
        "fetch.message.max.bytes": 4 << 20,
    })  # fmt: skip


def _consume(consumer: Consumer, count: int, splits: Mapping[int, TopicSplit]) -> list[Message]:
    """Return up to `count` messages; blocks for at most `POLL_S`."""
    try:
        messages: list[Message] = consumer.consume(count, POLL_S)
    except KafkaException as exc:
        raise BrokerUnavailable(splits=[*splits.values()], reason=str(exc)) from exc
    return messages


def _records_of(messages: list[Message], splits: Mapping[int, TopicSplit], positions: dict[int, int]) -> list[Message]:
    """Return the messages that are records of the splits, and advance the positions past them."""
    if [message for message in messages if message.error() is not None]:
        messages = [message for message in messages if not _is_no_record(message, splits, positions)]
    partitions = np.fromiter([message.partition() for message in messages], np.int32, len(messages))
    offsets = np.fromiter([message.offset() for message in messages], np.int64, len(messages))
    beyond = np.zeros(len(messages), bool)
    for partition in np.unique(partitions).tolist():
        of_it = partitions == partition
        beyond |= of_it & (offsets >= splits[partition].end)
        if partition in positions:
            positions[partition] = max(positions[partition], int(offsets[of_it][-1]) + 1)  # in order per partition
    return (
        [message for message, is_out in zip(messages, beyond, strict=True) if not is_out] if beyond.any() else messages
    )


def _is_no_record(message: Message, splits: Mapping[int, TopicSplit], positions: dict[int, int]) -> bool:
    """True if the message is an error or an event of the client and not a record. Raises errors that can't be retried.

    At the end of a partition it advances the position.
    """
    error, partition, offset = message.error(), message.partition(), message.offset()
    if error is None:
        return False
    if error.code() == KafkaError._PARTITION_EOF:
        if partition in positions:
            positions[partition] = max(positions[partition], offset)
    elif error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
        raise MissingRange(split=splits[partition], wanted=positions.get(partition))
    elif not error.retriable() and error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
        raise BrokerUnavailable(splits=[*splits.values()], partition=partition, reason=str(error))
    return True


def _table(records: list[Message], schema: pa.Schema, all_headers: bool) -> pa.Table:
    return pa.Table.from_arrays([_column(records, field, all_headers) for field in schema], schema=schema)


def _column(records: list[Message], field: pa.Field, all_headers: bool) -> pa.Array:
    match field.name:
        case "timestamp":
            return pa.array([record.timestamp()[1] for record in records], pa.int64()).cast(field.type)
        case "headers":
            return _headers([r.headers() if all_headers or r.value() is None else None for r in records])
        case name:
            return pa.array([getattr(record, name)() for record in records], field.type)


def _headers(headers: list[list[tuple[str, bytes]] | None]) -> pa.Array:
    offsets, names, values = [0], [], []
    for each in headers:
        for name, value in each or ():
            names.append(name)
            values.append(value)
        offsets.append(len(names))
    entries = pa.StructArray.from_arrays([pa.array(names, pa.string()), pa.array(values, pa.binary())],
                                         fields=list(HEADERS.value_type))  # fmt: skip
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), entries, type=HEADERS)


def _read_file(path: str, schema: pa.Schema) -> Iterator[pa.Table]:
    if "://" in path:
        filesystem, inner = pa_fs.FileSystem.from_uri(path)
    else:
        filesystem, inner = pa_fs.LocalFileSystem(), path
    with filesystem.open_input_file(inner) as source:
        for batch in pq.ParquetFile(source, page_checksum_verification=True).iter_batches(ROWS, columns=schema.names):
            yield pa.Table.from_batches([batch]).cast(schema)
