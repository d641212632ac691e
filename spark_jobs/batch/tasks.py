"""What the tasks of a rebuild do, in Python workers: read, decide, load. Everything between them goes as blobs."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from include.adapters.arrow_copy import copy_rows
from include.adapters.arrow_rows import array, first_header, numbers
from include.adapters.generation_store import Counts, GenerationStore, Part
from include.contracts import headers as h
from include.contracts.day import Day
from include.contracts.definition import Definition
from include.failpoints import reached
from include.settings import DatabaseSettings
from spark_jobs.batch.blobs import Blob, Kind, cut, packed, partition_of, unpacked
from spark_jobs.batch.boards import BROKEN, CHOSEN, SOURCES, VERSIONS, BoardReader, decide
from spark_jobs.batch.raw_columns import RawColumns, longs
from spark_jobs.batch.rows import candidate_schema, day_rows, member_schema
from spark_jobs.batch.splits import (
    PLACES,
    RAW,
    ColumnsFile,
    FileSplit,
    Split,
    TopicSplit,
    read_columns,
    read_split,
    read_topic,
)

_COUNTS = pa.schema([(name, pa.int64()) for name in ("distinct", "rejected", "misplaced")])
Read = FileSplit | ColumnsFile | list[TopicSplit]
_READ_OF_DETAILS = ("partition", "offset", "key", "headers")


@dataclass(frozen=True)
class Work:
    """What every task knows. It is sent to each of them, so it holds the batch role's password and no other."""

    definition: Definition
    day: Day
    generation_id: int
    buckets: int
    database: DatabaseSettings
    bootstrap_servers: str


def read(pieces: Iterable[Split | ColumnsFile], work: Work, count: Callable[[int], None]) -> Iterator[Blob]:
    """Read pieces of raw; what of it concerns the day goes to the bucket of its board, or of its member."""
    topics = work.definition
    readers = {topics.stream.name: _boards, topics.table.name: _members, topics.output.name: _details}
    together: defaultdict[str, list[TopicSplit]] = defaultdict(list)
    for piece in pieces:
        if isinstance(piece, TopicSplit):
            together[piece.topic].append(piece)
        else:
            yield from readers[piece.topic](piece, work, count)
    for topic, splits in together.items():
        yield from readers[topic](splits, work, count)


def _boards(piece: Read, work: Work, count: Callable[[int], None]) -> Iterator[Blob]:
    assert not isinstance(piece, ColumnsFile)
    reader = BoardReader(work.definition, work.day)
    store = GenerationStore(work.database)
    join = work.definition.stream.field(work.definition.join_field).column
    for records in _records(piece, work):
        parts = reader.read(records)
        store.save_rejects(parts.rejects)
        yield from cut(parts.candidates, array(parts.candidates[join]), work.buckets, Kind.CANDIDATES)
        yield from cut(parts.versions, array(parts.versions["board_id"]), work.buckets, Kind.VERSIONS)
        # one without an id meets no other
        ids = array(pc.coalesce(parts.broken["board_id"], parts.broken["offset"]))
        yield from cut(parts.broken, ids, work.buckets, Kind.BROKEN)
        count(records.num_rows)


def _members(piece: Read, work: Work, count: Callable[[int], None]) -> Iterator[Blob]:
    schema = member_schema(work.definition)
    if isinstance(piece, ColumnsFile):
        for versions in read_columns(piece, schema):
            yield from cut_members(versions, work)
        return
    columns = RawColumns(work.definition.table, work.definition.version_field, schema.names)
    store = GenerationStore(work.database)
    for records in _records(piece, work, all_headers=False):
        versions, rejects = columns.read(records)
        store.save_rejects(rejects)
        yield from cut_members(versions.select(schema.names), work)
        count(records.num_rows)


def cut_members(versions: pa.Table, work: Work) -> Iterator[Blob]:
    """Versions of members, with the columns of `member_schema`, to the buckets of their members."""
    yield from cut(versions, array(versions[versions.column_names[0]]), work.buckets, Kind.MEMBERS)


def _details(piece: Read, work: Work, count: Callable[[int], None]) -> Iterator[Blob]:
    if isinstance(piece, ColumnsFile):
        for places in read_columns(piece, PLACES):
            yield from _cut_places(places, work)
        return
    for records in _records(piece, work, _READ_OF_DETAILS):
        headers = array(records["headers"])
        columns = [
            records["partition"],
            records["offset"],
            longs(array(records["key"])),
            numbers(first_header(headers, h.BOARD_PARTITION), pa.int32()),
            numbers(first_header(headers, h.BOARD_OFFSET), pa.int64()),
        ]
        yield from _cut_places(pa.Table.from_arrays(columns, schema=PLACES), work)
        count(records.num_rows)


def _records(
    piece: FileSplit | list[TopicSplit], work: Work, columns: Collection[str] = RAW.names, all_headers: bool = True
) -> Iterator[pa.Table]:
    if isinstance(piece, FileSplit):
        return read_split(piece, work.bootstrap_servers, columns, all_headers)
    return read_topic(piece, work.bootstrap_servers, columns, all_headers)


def _cut_places(places: pa.Table, work: Work) -> Iterator[Blob]:
    """What does not say what it was made from was not made by the join: *serve* has it among the rejects."""
    for name in ("key", "board_partition", "board_offset"):
        if places[name].null_count:
            places = places.filter(pc.is_valid(places[name]))
    yield from cut(places.select(SOURCES.names), array(places["key"]), work.buckets, Kind.PLACES)


def choose(bucket: int, blobs: Iterable[Blob], work: Work) -> Iterator[Blob]:
    """Of one bucket of boards: which count. They go to the bucket of their member; the others are saved."""
    held = _held(blobs)
    decided = decide(
        unpacked(held[Kind.VERSIONS], VERSIONS),
        unpacked(held[Kind.BROKEN], BROKEN),
        unpacked(held[Kind.PLACES], SOURCES),
    )
    part = Part(-1 - bucket, excluded=decided.excluded)
    if decided.excluded:
        GenerationStore(work.database).save_part(work.generation_id, work.day, part)
    yield from cut(decided.chosen, array(decided.chosen["member_id"]), work.buckets, Kind.CHOSEN)
    rejected = sum(each.kind == "rejected" for each in decided.excluded)
    counts = pa.table([[decided.distinct], [rejected], [decided.misplaced]], schema=_COUNTS)
    yield partition_of(bucket, Kind.COUNTS, work.buckets), (Kind.COUNTS, packed(counts))


def load(bucket: int, blobs: Iterable[Blob], work: Work) -> Iterator[Counts]:
    """Of one bucket of members: the rows of their boards, loaded once, and the counts of the bucket."""
    definition = work.definition
    held = _held(blobs)
    candidates = unpacked(held.pop(Kind.CANDIDATES, ()), candidate_schema(definition))
    chosen, members = unpacked(held[Kind.CHOSEN], CHOSEN), unpacked(held[Kind.MEMBERS], member_schema(definition))
    found = day_rows(candidates, chosen, members, definition, work.day, work.generation_id)
    part = Part(bucket, found.rows.num_rows, partial(copy_rows, rows=found.rows), found.pending, found.duplicates)
    reached("rebuild.while_loading")
    GenerationStore(work.database).save_part(work.generation_id, work.day, part)
    decided = unpacked(held[Kind.COUNTS], _COUNTS)
    distinct, rejected, misplaced = (pc.sum(decided[name]).as_py() or 0 for name in _COUNTS.names)
    copies = sum(each.copies - 1 for each in found.duplicates)
    yield Counts(distinct, len(found.pending), rejected, copies, misplaced)


def _held(blobs: Iterable[Blob]) -> defaultdict[int, list[bytes]]:
    held: defaultdict[int, list[bytes]] = defaultdict(list)
    for _, (kind, blob) in blobs:
        held[kind].append(blob)
    return held
