"""The tasks of a rebuild, run in Python workers: read, choose, find, load. They exchange blobs."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from include.contracts.day import Day
from include.contracts.definition import Definition
from include.database.arrow_copy import copy_rows
from include.database.generation_store import Counts, GenerationStore, Part
from include.kafka.record_table import RAW
from include.runtime.failpoints import failpoint
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.settings import DatabaseSettings
from spark_jobs.batch.blobs import Blob, Buckets, Gathered, Kind, buckets_of, needed_rows, unpacked
from spark_jobs.batch.boards import BROKEN, CHOSEN, SOURCES, VERSIONS, BoardReader, decide, without_forgotten
from spark_jobs.batch.rows import day_rows
from spark_jobs.decoding.arrow import RawColumns, array, candidate_schema, first_header, longs, member_schema, numbers
from spark_jobs.decoding.dated_rows import OUTPUT_COORDINATES
from spark_jobs.sources.splits import (
    ColumnsFile,
    FileSplit,
    Split,
    TopicSplit,
    read_columns,
    read_split,
    read_topic,
)

_COUNTS = pa.schema([(name, pa.int64()) for name in ("distinct", "rejected", "misplaced")])
_NEEDED = pa.schema([("table_key", pa.int64()), ("bucket", pa.int64())])
Read = FileSplit | ColumnsFile | list[TopicSplit]
_READ_OF_DETAILS = ("partition", "offset", "key", "headers")


@dataclass(frozen=True)
class RebuildContext:
    """Parameters that all tasks share. It is sent to each of them, so it holds no password except the batch role's."""

    definition: Definition
    day: Day
    generation_id: int
    buckets: int
    reads_members: bool  # True if tasks read members that the driver did not preload; `find` then runs
    database: DatabaseSettings
    kafka: KafkaConnection
    forgotten: frozenset[int] = frozenset()  # keys of the table whose records of the stream count as deleted

    @property
    def schemas(self) -> Mapping[Kind, pa.Schema]:
        """The schema of each kind of blob."""
        members = member_schema(self.definition)
        return {
            Kind.VERSIONS: VERSIONS, Kind.BROKEN: BROKEN, Kind.COORDINATES: SOURCES, Kind.MEMBERS: members,
            Kind.NEEDED: _NEEDED, Kind.CANDIDATES: candidate_schema(self.definition), Kind.CHOSEN: CHOSEN,
            Kind.AUTHORS: members, Kind.COUNTS: _COUNTS,
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
    """Read pieces of the input; yields blobs for the buckets of the boards and members in them.

    `count` is called with the number of records read.
    """
    topics = rebuild.definition
    readers = {topics.stream.name: _boards, topics.table.name: _members, topics.output.name: _details}
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


def _boards(piece: Read, rebuild: RebuildContext, gathered: Gathered, count: Callable[[int], None]) -> Iterator[Blob]:
    assert not isinstance(piece, ColumnsFile)
    reader = BoardReader(rebuild.definition, rebuild.day)
    store = GenerationStore(rebuild.database)
    key = rebuild.definition.stream.key_column
    for records in _records(piece, rebuild):
        parts = reader.read(records)
        store.save_rejects(parts.rejects)
        yield from gathered.add(Kind.CANDIDATES, parts.candidates, rebuild.buckets_of(parts.candidates[key]))
        yield from gathered.add(Kind.VERSIONS, parts.versions, rebuild.buckets_of(parts.versions["key"]))
        # a record without an id is a board of its own, so any bucket will do
        ids = pc.coalesce(parts.broken["key"], parts.broken["offset"])
        yield from gathered.add(Kind.BROKEN, parts.broken, rebuild.buckets_of(ids))
        count(records.num_rows)


def _members(piece: Read, rebuild: RebuildContext, gathered: Gathered, count: Callable[[int], None]) -> Iterator[Blob]:
    schema = member_schema(rebuild.definition)
    key = rebuild.definition.table.key_column
    if isinstance(piece, ColumnsFile):
        for versions in read_columns(piece, schema):
            yield from gathered.add(Kind.MEMBERS, versions, rebuild.buckets_of(versions[key]))
        return
    columns = RawColumns(rebuild.definition.table, schema.names)
    store = GenerationStore(rebuild.database)
    for records in _records(piece, rebuild, all_headers=False):
        versions, rejects = columns.read(records)
        store.save_rejects(rejects)
        yield from gathered.add(Kind.MEMBERS, versions.select(schema.names), rebuild.buckets_of(versions[key]))
        count(records.num_rows)


def _details(piece: Read, rebuild: RebuildContext, gathered: Gathered, count: Callable[[int], None]) -> Iterator[Blob]:
    if isinstance(piece, ColumnsFile):
        for coordinates in read_columns(piece, OUTPUT_COORDINATES):
            yield from _add_coordinates(coordinates, rebuild, gathered)
        return
    for records in _records(piece, rebuild, _READ_OF_DETAILS):
        headers = array(records["headers"])
        columns = [
            records["partition"],
            records["offset"],
            longs(array(records["key"])),
            numbers(first_header(headers, rebuild.definition.source_header("stream_partition")), pa.int32()),
            numbers(first_header(headers, rebuild.definition.source_header("stream_offset")), pa.int64()),
        ]
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


def _add_coordinates(coordinates: pa.Table, rebuild: RebuildContext, gathered: Gathered) -> Iterator[Blob]:
    """Add the coordinates. Records without source coordinates are dropped: *serve* has rejected them."""
    for name in ("key", "stream_partition", "stream_offset"):
        if coordinates[name].null_count:
            coordinates = coordinates.filter(pc.is_valid(coordinates[name]))
    yield from gathered.add(Kind.COORDINATES, coordinates.select(SOURCES.names), rebuild.buckets_of(coordinates["key"]))


def choose(bucket: int, blobs: Iterable[Blob], rebuild: RebuildContext) -> Iterator[Blob]:
    """Choose the boards of one bucket and save the excluded ones; yields the choice and the members it needs."""
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
    if rebuild.reads_members:
        ids = pc.unique(decided.chosen["table_key"])
        needed = pa.Table.from_arrays([ids, pa.repeat(bucket, len(ids))], schema=_NEEDED)
        yield from gathered.add(Kind.NEEDED, needed, rebuild.buckets_of(ids))
    yield from gathered.rest()


def find(blobs: Iterable[Blob], rebuild: RebuildContext) -> Iterator[Blob]:
    """Yield the versions of one bucket of members for each bucket of boards that needs them."""
    held, gathered = _held(blobs), rebuild.gathered()
    members = unpacked(held.pop(Kind.MEMBERS, ()), rebuild.schemas[Kind.MEMBERS])
    needed = unpacked(held[Kind.NEEDED], _NEEDED)
    for rows, buckets in needed_rows(members[members.column_names[0]], needed["table_key"], needed["bucket"]):
        yield from gathered.add(Kind.AUTHORS, members.take(rows), buckets)
    yield from gathered.rest()


def load(bucket: int, blobs: Iterable[Blob], preloaded: Sequence[bytes], rebuild: RebuildContext) -> Iterator[Counts]:
    """Join and save the rows of one bucket of boards, once even if the task is retried; yields the bucket's counts.

    `preloaded` holds the versions of members that the driver read, of all buckets.
    """
    definition, schemas = rebuild.definition, rebuild.schemas
    held = _held(blobs)
    candidates = unpacked(held.pop(Kind.CANDIDATES, ()), schemas[Kind.CANDIDATES])
    chosen = unpacked(held[Kind.CHOSEN], CHOSEN)
    members = unpacked(preloaded, schemas[Kind.MEMBERS])
    members = members.filter(pc.is_in(members[members.column_names[0]], pc.unique(chosen["table_key"])))
    members = pa.concat_tables([members, unpacked(held.pop(Kind.AUTHORS, ()), schemas[Kind.AUTHORS])])
    found = day_rows(candidates, chosen, members, definition, rebuild.day, rebuild.generation_id)
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
