"""The tasks of a rebuild, run in Python workers: read, choose, find, load. They exchange blobs.

A blob is an Arrow table in a shuffle between tasks: split by bucket and serialized, so that the JVM moves few large
values.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from include.contracts.day import Day
from include.contracts.definition import Definition
from include.database.bulk_copy import copy_rows
from include.database.generation_store import Counts, GenerationStore, Part
from include.kafka.record_table import RAW
from include.runtime.failpoints import failpoint
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.settings import DatabaseSettings
from spark_jobs.batch.day_rows import (
    BROKEN,
    CHOSEN,
    SOURCES,
    VERSIONS,
    CandidateReader,
    day_rows,
    decide,
    without_forgotten,
)
from spark_jobs.connectors.splits import (
    ColumnsFile,
    FileSplit,
    Split,
    TopicSplit,
    read_columns,
    read_split,
    read_topic,
)
from spark_jobs.decoding.arrow import (
    RawColumns,
    array,
    candidate_schema,
    coordinates,
    first_header,
    longs,
    table_schema,
)
from spark_jobs.decoding.dated_rows import OUTPUT_COORDINATES

ROWS_PER_BLOB = 32  # on average; with fewer, the blob's overhead exceeds its rows
MAX_GATHERED_BYTES = 64 << 20
ROWS_NEEDED_AT_ONCE = 16_384

Buckets = npt.NDArray[np.int64]
RowIndexes = npt.NDArray[np.int64]

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing: consecutive ids get different buckets
_SHIFT = np.uint64(33)


class Kind(IntEnum):
    """Content of a blob."""

    VERSIONS = auto()  # every version of a key of the stream, without its texts
    BROKEN = auto()  # records of the day that break the contract
    COORDINATES = auto()  # coordinates of a key's records in the output topic
    TABLE = auto()  # versions of the table, by the bucket of their key
    NEEDED = auto()  # keys of the table that a bucket's records have, by the bucket of the key
    CANDIDATES = auto()  # records of the day with all their columns
    CHOSEN = auto()  # the records that become rows or pending
    MATCHES = auto()  # versions of the table, for each bucket that has records of theirs
    COUNTS = auto()


_STEPS: Mapping[Kind, int] = {
    Kind.VERSIONS: 0, Kind.BROKEN: 0, Kind.COORDINATES: 0,
    Kind.TABLE: 1, Kind.NEEDED: 1,
    Kind.CANDIDATES: 2, Kind.CHOSEN: 2, Kind.MATCHES: 2, Kind.COUNTS: 2,
}  # fmt: skip

Blob = tuple[int, tuple[int, bytes]]  # partition, kind, an Arrow record batch


def identity_partitioner(partition: int) -> int:
    """Return the key itself, which is a partition number. All shuffles use it, so they are co-partitioned."""
    return partition


def steps(buckets: int) -> tuple[range, range, range]:
    """Return the partitions of the three steps: choosing records, finding matches, loading rows.

    Each bucket has one partition per step, so that a step is not sent blobs that only another one needs, above all
    texts.
    """
    return range(buckets), range(buckets, 2 * buckets), range(2 * buckets, 3 * buckets)


def partition_of(bucket: int, kind: Kind, buckets: int) -> int:
    """Return the bucket's partition for blobs of this kind."""
    return steps(buckets)[_STEPS[kind]][bucket]


def needed_rows(
    ids: pa.ChunkedArray, wanted: pa.ChunkedArray, buckets: pa.ChunkedArray
) -> Iterator[tuple[RowIndexes, Buckets]]:
    """Yield the indexes of rows with a wanted id, and the bucket that wants each: in chunks, ordered by bucket."""
    have = array(ids).to_numpy(zero_copy_only=False)
    by_id = np.argsort(have, kind="stable")
    have = have[by_id]
    by_bucket = pc.sort_indices(buckets)
    wants, goes = (array(each.take(by_bucket)).to_numpy(zero_copy_only=False) for each in (wanted, buckets))
    first = np.searchsorted(have, wants, side="left")
    counts = np.searchsorted(have, wants, side="right") - first
    ends = np.cumsum(counts)
    begin = 0
    while begin < len(wants):
        before = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, before + ROWS_NEEDED_AT_ONCE, side="right")))
        of = counts[begin:end]
        within = np.arange(of.sum()) - np.repeat(np.cumsum(of) - of, of)
        yield by_id[np.repeat(first[begin:end], of) + within], np.repeat(goes[begin:end], of)
        begin = end


def buckets_of(ids: pa.Array, buckets: int) -> Buckets:
    """Return the bucket of each id. It depends on the id and the number of buckets only."""
    spread = ids.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64) * _SPREAD
    found: Buckets = ((spread >> _SHIFT) % np.uint64(buckets)).astype(np.int64)
    return found


class Gathered:
    """Collects rows before it splits them by bucket, so that blobs stay few even with many buckets.

    `schemas` has the columns of each kind of blob: a blob is written and read without its schema.
    """

    def __init__(self, buckets: int, schemas: Mapping[Kind, pa.Schema]) -> None:
        self._buckets = buckets
        self._schemas = schemas
        self._held: defaultdict[Kind, list[tuple[pa.Table, Buckets]]] = defaultdict(list)

    def add(self, kind: Kind, table: pa.Table, buckets: Buckets) -> Iterator[Blob]:
        """Add rows, each with its bucket; yields blobs once enough rows are collected."""
        if not table.num_rows:
            return
        held = self._held[kind]
        held.append((table.cast(self._schemas[kind]), buckets))
        rows, size = sum(each.num_rows for each, _ in held), sum(each.nbytes for each, _ in held)
        if rows >= ROWS_PER_BLOB * self._buckets or size >= MAX_GATHERED_BYTES:
            yield from self._split_by_bucket(kind)

    def rest(self) -> Iterator[Blob]:
        """Yield blobs of the rows that are left."""
        for kind in [*self._held]:
            yield from self._split_by_bucket(kind)

    def _split_by_bucket(self, kind: Kind) -> Iterator[Blob]:
        held = self._held.pop(kind)
        table, buckets = pa.concat_tables([each for each, _ in held]), np.concatenate([each for _, each in held])
        del held
        order = np.argsort(buckets, kind="stable")
        ends = np.searchsorted(buckets[order], np.arange(self._buckets + 1))
        (rows,) = table.combine_chunks().take(pa.array(order)).combine_chunks().to_batches()
        for bucket in np.flatnonzero(np.diff(ends)).tolist():
            first, end = int(ends[bucket]), int(ends[bucket + 1])
            yield partition_of(bucket, kind, self._buckets), (kind, packed(rows.slice(first, end - first)))


def packed(rows: pa.RecordBatch) -> bytes:
    """Serialize the rows in Arrow's format, without their schema."""
    found: bytes = rows.serialize().to_pybytes()
    return found


def unpacked(blobs: Iterable[bytes], schema: pa.Schema) -> pa.Table:
    """Return the rows of these blobs as one table."""
    batches = [pa.ipc.read_record_batch(pa.py_buffer(blob), schema) for blob in blobs]
    return pa.Table.from_batches(batches, schema).combine_chunks()


_COUNTS = pa.schema([(name, pa.int64()) for name in ("distinct", "rejected", "misplaced")])
_NEEDED = pa.schema([("table_key", pa.int64()), ("bucket", pa.int64())])
Read = FileSplit | ColumnsFile | list[TopicSplit]
_READ_OF_OUTPUT = ("partition", "offset", "key", "headers")


@dataclass(frozen=True)
class RebuildContext:
    """Parameters that all tasks share. It is sent to each of them, so it holds no password except the batch role's."""

    definition: Definition
    day: Day
    generation_id: int
    buckets: int
    reads_table: bool  # True if tasks read versions of the table that the driver did not preload; `find` then runs
    database: DatabaseSettings
    kafka: KafkaConnection
    forgotten: frozenset[int] = frozenset()  # keys of the table whose records of the stream count as deleted

    @property
    def schemas(self) -> Mapping[Kind, pa.Schema]:
        """The schema of each kind of blob."""
        versions = table_schema(self.definition)
        return {
            Kind.VERSIONS: VERSIONS, Kind.BROKEN: BROKEN, Kind.COORDINATES: SOURCES, Kind.TABLE: versions,
            Kind.NEEDED: _NEEDED, Kind.CANDIDATES: candidate_schema(self.definition), Kind.CHOSEN: CHOSEN,
            Kind.MATCHES: versions, Kind.COUNTS: _COUNTS,
        }  # fmt: skip

    def gathered(self) -> Gathered:
        """Return an empty collector for blobs of this rebuild."""
        return Gathered(self.buckets, self.schemas)

    def buckets_of(self, ids: pa.ChunkedArray | pa.Array) -> Buckets:
        """Return the bucket of each id."""
        return buckets_of(array(ids), self.buckets)


def read(
    pieces: Iterable[Split | ColumnsFile], rebuild: RebuildContext, count: Callable[[int], None]
) -> Iterator[Blob]:
    """Read pieces of the input; yields blobs for the buckets of the keys in them.

    `count` is called with the number of records read.
    """
    topics = rebuild.definition
    readers = {topics.stream.name: _stream, topics.table.name: _table, topics.output.name: _output}
    together: defaultdict[str, list[TopicSplit]] = defaultdict(list)
    gathered = rebuild.gathered()
    for piece in pieces:
        if isinstance(piece, TopicSplit):
            together[piece.topic].append(piece)
        else:
            yield from readers[piece.topic](piece, rebuild, gathered, count)
    for topic, splits in together.items():
        yield from readers[topic](splits, rebuild, gathered, count)
    yield from gathered.rest()


def _stream(piece: Read, rebuild: RebuildContext, gathered: Gathered, count: Callable[[int], None]) -> Iterator[Blob]:
    assert not isinstance(piece, ColumnsFile)
    reader = CandidateReader(rebuild.definition, rebuild.day)
    store = GenerationStore(rebuild.database)
    key = rebuild.definition.stream.key_column
    for records in _records(piece, rebuild):
        parts = reader.read(records)
        store.save_rejects(parts.rejects)
        yield from gathered.add(Kind.CANDIDATES, parts.candidates, rebuild.buckets_of(parts.candidates[key]))
        yield from gathered.add(Kind.VERSIONS, parts.versions, rebuild.buckets_of(parts.versions["key"]))
        # a record without an id has a key of its own, so any bucket will do
        ids = pc.coalesce(parts.broken["key"], parts.broken["offset"])
        yield from gathered.add(Kind.BROKEN, parts.broken, rebuild.buckets_of(ids))
        count(records.num_rows)


def _table(piece: Read, rebuild: RebuildContext, gathered: Gathered, count: Callable[[int], None]) -> Iterator[Blob]:
    schema = table_schema(rebuild.definition)
    key = rebuild.definition.table.key_column
    if isinstance(piece, ColumnsFile):
        for versions in read_columns(piece, schema):
            yield from gathered.add(Kind.TABLE, versions, rebuild.buckets_of(versions[key]))
        return
    columns = RawColumns(rebuild.definition.table, schema.names)
    store = GenerationStore(rebuild.database)
    for records in _records(piece, rebuild, all_headers=False):
        versions, rejects = columns.read(records)
        store.save_rejects(rejects)
        yield from gathered.add(Kind.TABLE, versions.select(schema.names), rebuild.buckets_of(versions[key]))
        count(records.num_rows)


def _output(piece: Read, rebuild: RebuildContext, gathered: Gathered, count: Callable[[int], None]) -> Iterator[Blob]:
    if isinstance(piece, ColumnsFile):
        for found in read_columns(piece, OUTPUT_COORDINATES):
            yield from _add_coordinates(found, rebuild, gathered)
        return
    for records in _records(piece, rebuild, _READ_OF_OUTPUT):
        sources = first_header(array(records["headers"]), rebuild.definition.stream.source_header)
        columns = [records["partition"], records["offset"], longs(array(records["key"])), *coordinates(sources)]
        yield from _add_coordinates(pa.Table.from_arrays(columns, schema=OUTPUT_COORDINATES), rebuild, gathered)
        count(records.num_rows)


def _records(
    piece: FileSplit | list[TopicSplit],
    rebuild: RebuildContext,
    columns: Collection[str] = RAW.names,
    all_headers: bool = True,
) -> Iterator[pa.Table]:
    if isinstance(piece, FileSplit):
        return read_split(piece, rebuild.kafka, columns, all_headers)
    return read_topic(piece, rebuild.kafka, columns, all_headers)


def _add_coordinates(found: pa.Table, rebuild: RebuildContext, gathered: Gathered) -> Iterator[Blob]:
    """Add the coordinates. Records without source coordinates are dropped: *serve* has rejected them."""
    for name in ("key", "stream_offset"):
        if found[name].null_count:
            found = found.filter(pc.is_valid(found[name]))
    yield from gathered.add(Kind.COORDINATES, found.select(SOURCES.names), rebuild.buckets_of(found["key"]))


def choose(bucket: int, blobs: Iterable[Blob], rebuild: RebuildContext) -> Iterator[Blob]:
    """Choose the records of one bucket and save the excluded ones; yields the choice and the table's keys it needs."""
    held = _held(blobs)
    decided = decide(
        without_forgotten(unpacked(held[Kind.VERSIONS], VERSIONS), rebuild.forgotten),
        unpacked(held[Kind.BROKEN], BROKEN),
        unpacked(held[Kind.COORDINATES], SOURCES),
    )
    part = Part(-1 - bucket, excluded=decided.excluded)
    if decided.excluded:
        GenerationStore(rebuild.database).save_part(rebuild.generation_id, rebuild.day, part)
    rejected = sum(each.kind == "rejected" for each in decided.excluded)
    counts = pa.table([[decided.distinct], [rejected], [decided.misplaced]], schema=_COUNTS)
    gathered = rebuild.gathered()
    for kind, table in ((Kind.CHOSEN, decided.chosen), (Kind.COUNTS, counts)):
        yield from gathered.add(kind, table, np.full(table.num_rows, bucket))
    if rebuild.reads_table:
        ids = pc.unique(decided.chosen["table_key"])
        needed = pa.Table.from_arrays([ids, pa.repeat(bucket, len(ids))], schema=_NEEDED)
        yield from gathered.add(Kind.NEEDED, needed, rebuild.buckets_of(ids))
    yield from gathered.rest()


def find(blobs: Iterable[Blob], rebuild: RebuildContext) -> Iterator[Blob]:
    """Yield the versions of one bucket of the table for each bucket of the stream that needs them."""
    held, gathered = _held(blobs), rebuild.gathered()
    versions = unpacked(held.pop(Kind.TABLE, ()), rebuild.schemas[Kind.TABLE])
    needed = unpacked(held[Kind.NEEDED], _NEEDED)
    for rows, buckets in needed_rows(versions[versions.column_names[0]], needed["table_key"], needed["bucket"]):
        yield from gathered.add(Kind.MATCHES, versions.take(rows), buckets)
    yield from gathered.rest()


def load(bucket: int, blobs: Iterable[Blob], preloaded: Sequence[bytes], rebuild: RebuildContext) -> Iterator[Counts]:
    """Join and save the rows of one bucket of the stream, once even if the task is retried; yields the bucket's counts.

    `preloaded` holds the versions of the table that the driver read, of all buckets.
    """
    definition, schemas = rebuild.definition, rebuild.schemas
    held = _held(blobs)
    candidates = unpacked(held.pop(Kind.CANDIDATES, ()), schemas[Kind.CANDIDATES])
    chosen = unpacked(held[Kind.CHOSEN], CHOSEN)
    versions = unpacked(preloaded, schemas[Kind.TABLE])
    versions = versions.filter(pc.is_in(versions[versions.column_names[0]], pc.unique(chosen["table_key"])))
    versions = pa.concat_tables([versions, unpacked(held.pop(Kind.MATCHES, ()), schemas[Kind.MATCHES])])
    found = day_rows(candidates, chosen, versions, definition, rebuild.day, rebuild.generation_id)
    part = Part(bucket, found.rows.num_rows, partial(copy_rows, rows=found.rows), found.pending, found.duplicates)
    failpoint("rebuild.while_loading")
    GenerationStore(rebuild.database).save_part(rebuild.generation_id, rebuild.day, part)
    decided = unpacked(held[Kind.COUNTS], _COUNTS)
    distinct, rejected, misplaced = (pc.sum(decided[name]).as_py() or 0 for name in _COUNTS.names)
    copies = sum(each.copies - 1 for each in found.duplicates)
    yield Counts(distinct, len(found.pending), rejected, copies, misplaced)


def _held(blobs: Iterable[Blob]) -> defaultdict[int, list[bytes]]:
    held: defaultdict[int, list[bytes]] = defaultdict(list)
    for _, (kind, blob) in blobs:
        held[kind].append(blob)
    return held
