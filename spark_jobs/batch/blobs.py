"""Arrow tables on their way between tasks: cut by bucket, as bytes, so that the JVM moves few large values."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum, auto

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

ROWS_PER_BLOB = 32  # on average; with fewer a blob costs more than its rows
MAX_GATHERED_BYTES = 64 << 20

Buckets = npt.NDArray[np.int64]

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # of Fibonacci hashing: ids that follow one another land apart
_SHIFT = np.uint64(33)


class Kind(IntEnum):
    """What a blob holds."""

    VERSIONS = auto()  # every version of a board, without its texts
    BROKEN = auto()  # boards of the day that break the contract
    PLACES = auto()  # where the output topic has a board's records
    MEMBERS = auto()  # versions of members, by the member's bucket
    NEEDED = auto()  # which members a bucket's boards have, by the member's bucket
    CANDIDATES = auto()  # boards of the day with all their columns
    CHOSEN = auto()  # the boards that count
    AUTHORS = auto()  # versions of members, in each bucket that has boards of theirs
    COUNTS = auto()


_STEPS: Mapping[Kind, int] = {
    Kind.VERSIONS: 0, Kind.BROKEN: 0, Kind.PLACES: 0,
    Kind.MEMBERS: 1, Kind.NEEDED: 1,
    Kind.CANDIDATES: 2, Kind.CHOSEN: 2, Kind.AUTHORS: 2, Kind.COUNTS: 2,
}  # fmt: skip

Blob = tuple[int, tuple[int, bytes]]  # partition, kind, an Arrow record batch


def own(partition: int) -> int:
    """One partitioner for all shuffles: what is in one bucket meets in one task."""
    return partition


def steps(buckets: int) -> tuple[range, range, range]:
    """Each bucket has a partition for each step: boards are decided on, members found, rows loaded.

    So no step is sent what only another one needs, the texts above all.
    """
    return range(buckets), range(buckets, 2 * buckets), range(2 * buckets, 3 * buckets)


def partition_of(bucket: int, kind: Kind, buckets: int) -> int:
    """The bucket's partition that has such blobs."""
    return steps(buckets)[_STEPS[kind]][bucket]


def buckets_of(ids: pa.Array, buckets: int) -> Buckets:
    """Each id's bucket: the same whatever there is of tasks and machines."""
    spread = ids.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64) * _SPREAD
    found: Buckets = ((spread >> _SHIFT) % np.uint64(buckets)).astype(np.int64)
    return found


class Gathered:
    """Rows are gathered before they are cut, so that blobs are few however many buckets there are.

    `schemas` says for each kind which columns its blobs have: a blob is written and read without its schema.
    """

    def __init__(self, buckets: int, schemas: Mapping[Kind, pa.Schema]) -> None:
        self._buckets = buckets
        self._schemas = schemas
        self._held: defaultdict[Kind, list[tuple[pa.Table, Buckets]]] = defaultdict(list)

    def add(self, kind: Kind, table: pa.Table, buckets: Buckets) -> Iterator[Blob]:
        """Take rows, each with its bucket; yields blobs when enough is gathered."""
        if not table.num_rows:
            return
        held = self._held[kind]
        held.append((table.cast(self._schemas[kind]), buckets))
        rows, size = sum(each.num_rows for each, _ in held), sum(each.nbytes for each, _ in held)
        if rows >= ROWS_PER_BLOB * self._buckets or size >= MAX_GATHERED_BYTES:
            yield from self._cut(kind)

    def rest(self) -> Iterator[Blob]:
        """What is gathered and not cut yet."""
        for kind in [*self._held]:
            yield from self._cut(kind)

    def _cut(self, kind: Kind) -> Iterator[Blob]:
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
    """The rows as Arrow's bytes, without their schema."""
    found: bytes = rows.serialize().to_pybytes()
    return found


def unpacked(blobs: Iterable[bytes], schema: pa.Schema) -> pa.Table:
    """The rows of these blobs as one table."""
    batches = [pa.ipc.read_record_batch(pa.py_buffer(blob), schema) for blob in blobs]
    return pa.Table.from_batches(batches, schema).combine_chunks()


def places_of(partitions: pa.ChunkedArray | pa.Array, offsets: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Partition and offset as one number, to look records up by. An offset has 44 bits: 17 trillion records."""
    joined = pc.add_checked(pc.shift_left(partitions.cast(pa.int64()), 44), offsets)
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
