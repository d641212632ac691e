"""The join rule: which version of its row of the table a record of the stream takes.

A record takes its row's newest version whose time is not after the record's. If there is none, it takes the oldest
version that is not a tombstone. If the result is a tombstone or nothing, the record has no match and is pending. With
the site's pipeline, records are boards and rows are members.

- `matches_of_newest` is the form of the speed layer, which holds only each row's newest version: a record takes that
  version, whatever its time.
- `matches_of_history` is the form of the batch layer, which holds all versions.

With one version of each row, both give the same result (`tests/agreement/records/test_join_rule_twin.py`). With more,
the stream may take a version that is after the record; the rebuild corrects that.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from include.contracts.versions import OLDEST_FIRST
from spark_jobs.decoding.arrow import array, begins_run

RowIndexes = npt.NDArray[np.int64]


def matches_of_newest(ids: pa.Array, rows: pa.Table, key_column: str) -> pa.Array:
    """Return the index into the rows of each id's match; null if the record is pending. An id may be null.

    `rows` has the newest version of each row that the ids name, in the order of the keys, in one chunk.
    """
    keys = array(rows[key_column]).to_numpy()
    wanted = ids.fill_null(0).to_numpy()
    if not len(keys):
        return pa.nulls(len(ids), pa.int64())
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    deleted = array(rows["deleted"]).to_numpy(zero_copy_only=False)
    is_known = (keys[at] == wanted) & ~deleted[at] & ids.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(at, mask=~is_known)


def matches_of_history(
    records: pa.Table, versions: pa.Table, join_column: str, key_column: str
) -> tuple[pa.Table, pa.Array]:
    """Return the versions, reordered, and the index into them of each record's match; null if the record is pending.

    `versions` holds any number of versions per key, with `version_at`, `partition`, `offset` and `deleted`. A record is
    pending if its key has no version, or if the version that the rule selects is a tombstone.
    """
    several = pc.count_distinct(versions[key_column]).as_py() < versions.num_rows
    if several:
        versions = versions.sort_by([(key_column, "ascending"), *OLDEST_FIRST])
    versions = versions.combine_chunks()
    ids = array(versions[key_column])
    if several:
        first = np.flatnonzero(begins_run(ids).to_numpy(zero_copy_only=False))
        at = pc.index_in(records[join_column], value_set=ids.take(pa.array(first)))
        indexes = _as_of(records, versions, array(at), first)
    else:
        indexes = array(pc.index_in(records[join_column], value_set=ids)).cast(pa.int64())
    is_known = pc.invert(pc.coalesce(versions["deleted"].take(indexes), pa.scalar(True)))
    return versions, pc.if_else(array(is_known), indexes, None)


def _as_of(records: pa.Table, versions: pa.Table, at: pa.Array, first: RowIndexes) -> pa.Array:
    """Return the index of each record's match in `versions`, which are sorted by key, version and offset.

    `at` is the ordinal of the record's row (null if it has none), `first` the index of each row's oldest version.
    """
    if not len(at) or not len(first):
        return pa.nulls(len(at), pa.int64())
    made = _microseconds(versions["version_at"])
    instants = np.unique(made)
    steps = np.int64(len(instants) + 1)
    number = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(made))))
    known = number * steps + np.searchsorted(instants, made, side="left")  # ascending, because the rows are sorted
    is_there = pc.is_valid(at).to_numpy(zero_copy_only=False)
    row = at.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    not_newer = np.searchsorted(instants, _microseconds(records["version_at"]), side="right")
    newest = np.searchsorted(known, row * steps + not_newer, side="left") - 1
    oldest = _oldest_alive(versions, first)[row]  # a tombstone newer than the record has no columns to show
    return pa.array(np.where(newest >= first[row], newest, oldest), mask=~is_there)


def _oldest_alive(versions: pa.Table, first: RowIndexes) -> RowIndexes:
    """Return the index of each row's oldest version that is not a tombstone, or of its oldest if all are."""
    is_alive = ~array(versions["deleted"]).to_numpy(zero_copy_only=False)
    indexes = np.where(is_alive, np.arange(len(is_alive)), len(is_alive))
    alive = np.minimum.reduceat(indexes, first)
    return np.where(alive < len(is_alive), alive, first)


def _microseconds(instants: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = array(instants).cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found
