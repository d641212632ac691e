"""Arrow tables on their way between tasks: cut by bucket, as bytes, so that the JVM moves few large values."""

from collections.abc import Iterable, Iterator
from enum import IntEnum, auto

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # of Fibonacci hashing: ids that follow one another land apart
_SHIFT = np.uint64(33)


class Kind(IntEnum):
    """What a blob holds."""

    VERSIONS = auto()  # every version of a board, without its texts, by the board's bucket
    BROKEN = auto()  # boards of the day that break the contract, by the board's bucket
    PLACES = auto()  # where the output topic has a board's records, by the board's bucket
    CANDIDATES = auto()  # boards of the day with all their columns, by the member's bucket
    MEMBERS = auto()  # versions of members, by the member's bucket
    CHOSEN = auto()  # the boards that count, by the member's bucket
    COUNTS = auto()


_DECIDE = {Kind.VERSIONS, Kind.BROKEN, Kind.PLACES}

Blob = tuple[int, tuple[int, bytes]]  # partition, kind, an Arrow stream


def own(partition: int) -> int:
    """One partitioner for all shuffles: what is in one bucket meets in one task."""
    return partition


def halves(buckets: int) -> tuple[range, range]:
    """Each bucket has two partitions, one of what decides, one of what is loaded; those of all buckets, in order.

    So nobody has the texts sent to decide without them.
    """
    return range(buckets), range(buckets, 2 * buckets)


def partition_of(bucket: int, kind: Kind, buckets: int) -> int:
    """The bucket's partition that has such blobs."""
    deciding, loading = halves(buckets)
    return (deciding if kind in _DECIDE else loading)[bucket]


def buckets_of(ids: pa.Array, buckets: int) -> npt.NDArray[np.int64]:
    """Each id's bucket: the same whatever there is of tasks and machines."""
    spread = ids.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64) * _SPREAD
    found: npt.NDArray[np.int64] = ((spread >> _SHIFT) % np.uint64(buckets)).astype(np.int64)
    return found


def cut(table: pa.Table, ids: pa.Array, buckets: int, kind: Kind) -> Iterator[Blob]:
    """The table's rows as a blob for each bucket that has some of them; `ids` (without nulls) say which."""
    if not table.num_rows:
        return
    places = buckets_of(ids, buckets)
    order = np.argsort(places, kind="stable")
    ends = np.searchsorted(places[order], np.arange(buckets + 1))
    sorted_rows = table.combine_chunks().take(pa.array(order))
    for bucket in range(buckets):
        first, end = int(ends[bucket]), int(ends[bucket + 1])
        if end > first:
            yield partition_of(bucket, kind, buckets), (kind, packed(sorted_rows.slice(first, end - first)))


def packed(table: pa.Table) -> bytes:
    """The table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())


def unpacked(blobs: Iterable[bytes], schema: pa.Schema) -> pa.Table:
    """The tables of these streams as one."""
    tables = [pa.ipc.open_stream(blob).read_all() for blob in blobs]
    return pa.concat_tables([schema.empty_table(), *tables]).combine_chunks()


def places_of(partitions: pa.ChunkedArray | pa.Array, offsets: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Partition and offset as one number, to look records up by. An offset has 44 bits: 17 trillion records."""
    joined = pc.add_checked(pc.shift_left(partitions.cast(pa.int64()), 44), offsets)
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
