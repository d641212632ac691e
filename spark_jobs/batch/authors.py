"""The join rule over columns: a board takes its member's newest version that is not newer than the board's version.

If there is none, it takes the oldest known version. The same rule as `spark_jobs.transforms.join_rule`, applied to the
member's history.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from include.adapters.arrow_rows import array, begins_run

RowIndexes = npt.NDArray[np.int64]
_ROWS = 16_384  # versions per chunk


def authors(
    boards: pa.Table, members: pa.Table, join_column: str, key_column: str, version_column: str = "version_at"
) -> tuple[pa.Table, pa.Array]:
    """Return the members, reordered, and the index into them of each board's author; null if the board is pending.

    `members` holds any number of versions per key, with `version_at`, `partition`, `offset` and `deleted`. A board is
    pending if its member has no version, or if the version that the rule selects is a tombstone.
    """
    several = pc.count_distinct(members[key_column]).as_py() < members.num_rows
    if several:
        order = [
            (key_column, "ascending"),
            ("version_at", "ascending"),
            ("offset", "ascending"),
            ("partition", "descending"),
        ]  # fmt: skip  of equal versions, the one with the greatest offset, then the lowest partition, is the newest
        members = members.sort_by(order)
    members = members.combine_chunks()
    ids = array(members[key_column])
    if several:
        first = np.flatnonzero(begins_run(ids).to_numpy(zero_copy_only=False))
        at = pc.index_in(boards[join_column], value_set=ids.take(pa.array(first)))
        indexes = _as_of(boards, members, array(at), first, version_column)
    else:
        indexes = array(pc.index_in(boards[join_column], value_set=ids)).cast(pa.int64())
    is_known = pc.invert(pc.coalesce(members["deleted"].take(indexes), pa.scalar(True)))
    return members, pc.if_else(array(is_known), indexes, None)


def needed_rows(
    ids: pa.ChunkedArray, wanted: pa.ChunkedArray, buckets: pa.ChunkedArray
) -> Iterator[tuple[RowIndexes, RowIndexes]]:
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
        end = max(begin + 1, int(np.searchsorted(ends, before + _ROWS, side="right")))
        of = counts[begin:end]
        within = np.arange(of.sum()) - np.repeat(np.cumsum(of) - of, of)
        yield by_id[np.repeat(first[begin:end], of) + within], np.repeat(goes[begin:end], of)
        begin = end


def _as_of(boards: pa.Table, members: pa.Table, at: pa.Array, first: RowIndexes, version_column: str) -> pa.Array:
    """Return the index of each board's author version in `members`, which are sorted by key, version and offset.

    `at` is the ordinal of the board's member (null if it has none), `first` the index of each member's oldest version.
    """
    if not len(at) or not len(first):
        return pa.nulls(len(at), pa.int64())
    made = _microseconds(members["version_at"])
    instants = np.unique(made)
    steps = np.int64(len(instants) + 1)
    number = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(made))))
    known = number * steps + np.searchsorted(instants, made, side="left")  # ascending, because the rows are sorted
    is_there = pc.is_valid(at).to_numpy(zero_copy_only=False)
    member = at.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    not_newer = np.searchsorted(instants, _microseconds(boards[version_column]), side="right")
    newest = np.searchsorted(known, member * steps + not_newer, side="left") - 1
    oldest = _oldest_alive(members, first)[member]  # a tombstone newer than the board has no author columns to show
    return pa.array(np.where(newest >= first[member], newest, oldest), mask=~is_there)


def _oldest_alive(members: pa.Table, first: RowIndexes) -> RowIndexes:
    """Return the index of each member's oldest version that is not a tombstone, or of its oldest if all are."""
    is_alive = ~array(members["deleted"]).to_numpy(zero_copy_only=False)
    indexes = np.where(is_alive, np.arange(len(is_alive)), len(is_alive))
    alive = np.minimum.reduceat(indexes, first)
    return np.where(alive < len(is_alive), alive, first)


def _microseconds(instants: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = array(instants).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found
