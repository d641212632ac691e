"""Arrow tables in a shuffle between tasks: split by bucket and serialized, so that the JVM moves few large values."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum, auto

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.decoding.arrow import array

ROWS_PER_BLOB = 32  # on average; with fewer, the blob's overhead exceeds its rows
MAX_GATHERED_BYTES = 64 << 20
ROWS_NEEDED_AT_ONCE = 16_384

Buckets = npt.NDArray[np.int64]
RowIndexes = npt.NDArray[np.int64]

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # Fibonacci hashing: consecutive ids get different buckets
_SHIFT = np.uint64(33)


class Kind(IntEnum):
    """Content of a blob."""

    VERSIONS = auto()  # every version of a board, without its texts
    BROKEN = auto()  # boards of the day that break the contract
    COORDINATES = auto()  # coordinates of a board's records in the output topic
    MEMBERS = auto()  # versions of members, by the member's bucket
    NEEDED = auto()  # ids of the members whose boards a bucket has, by the member's bucket
    CANDIDATES = auto()  # boards of the day with all their columns
    CHOSEN = auto()  # the boards that become rows or pending
    AUTHORS = auto()  # versions of members, for each bucket that has boards of theirs
    COUNTS = auto()


_STEPS: Mapping[Kind, int] = {
    Kind.VERSIONS: 0, Kind.BROKEN: 0, Kind.COORDINATES: 0,
    Kind.MEMBERS: 1, Kind.NEEDED: 1,
    Kind.CANDIDATES: 2, Kind.CHOSEN: 2, Kind.AUTHORS: 2, Kind.COUNTS: 2,
}  # fmt: skip

Blob = tuple[int, tuple[int, bytes]]  # partition, kind, an Arrow record batch


def identity_partitioner(partition: int) -> int:
    """Return the key itself, which is a partition number. All shuffles use it, so they are co-partitioned."""
    return partition


def steps(buckets: int) -> tuple[range, range, range]:
    """Return the partitions of the three steps: choosing boards, finding members, loading rows.

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
