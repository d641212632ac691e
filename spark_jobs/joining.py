"""The join rule: which version of its row of the table a record of the stream takes.

A record takes its row's newest version whose time is not after the record's. If there is none, it takes the oldest
version that is not a tombstone. If the result is a tombstone or nothing, the record has no match and is pending. With
the site's pipeline, records are boards and rows are members.

- `details_of_newest` is the form of the speed layer, which holds only each row's newest version: a record takes that
  version, whatever its time.
- `matches_of_history` is the form of the batch layer, which holds all versions.

Both give the same result for the same versions (`tests/agreement/records/test_join_rule_twin.py`).
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from include.contracts.definition import Definition
from include.contracts.versions import NEWEST_FIRST, OLDEST_FIRST
from spark_jobs.decoding.arrow import array, begins_run


def newest_versions(rows: DataFrame, key: str) -> DataFrame:
    """Return one row per key: its newest version, which may be a tombstone."""
    order = Window.partitionBy(key).orderBy(*[F.col(name) if way == "ascending" else F.desc(name)
                                              for name, way in NEWEST_FIRST])  # fmt: skip
    return rows.withColumn("_nth", F.row_number().over(order)).where("_nth = 1").drop("_nth")


def version_order(prefix: str) -> Column:
    """Return a struct to compare versions by, of columns with this prefix: the newest is the greatest."""
    parts = {name: F.col(f"{prefix}{name}") for name, _ in NEWEST_FIRST}
    return F.struct(*[(-parts[name] if way == "ascending" else parts[name]).alias(name)
                      for name, way in NEWEST_FIRST]).alias("_order")  # fmt: skip


RowIndexes = npt.NDArray[np.int64]

VERSION_COLUMNS = ("partition", "offset", "version_at", "deleted")


def details_of_newest(records: DataFrame, table: Sequence[DataFrame], definition: Definition) -> DataFrame:
    """Return one row per record with the table's columns, from the newest version of its row, whatever its time.

    If that version is a tombstone or there is none, the columns are null and `is_matched` is false: the record is
    pending.

    Each relation of `table` has a key at most once; the newest version of a key across relations is used. The order of
    the records is kept if they are sorted by the join field.
    """
    matched = records
    for number, relation in enumerate(table):
        matched = _matched(matched, relation, definition, _name(number))
    if len(table) == 1:
        return _details(matched, records.columns, definition, _name(0))
    record_columns = records.columns
    chosen = matched.select(*record_columns, _newest_of(definition, len(table))).select(
        *record_columns, *_chosen_columns(definition)
    )
    return _details(chosen, record_columns, definition)


def _name(number: int) -> str:
    return f"_match{number}"


def _matched(records: DataFrame, relation: DataFrame, definition: Definition, name: str) -> DataFrame:
    """Add the table's columns as `<name>_<column>`; null for a record without a row."""
    return records.join(relation.select(*_table_columns(definition, name)), _is_match(definition, name), how="left")


@cache  # a Column is an immutable expression, and building it takes calls to the JVM
def _table_columns(definition: Definition, name: str) -> tuple[Column, ...]:
    table_key = definition.table.key_column
    return (
        F.col(table_key).alias(name),
        *[F.col(_source(definition, column)).alias(f"{name}_{column}") for column in definition.table_columns],
        *[F.col(column).alias(f"{name}_{column}") for column in VERSION_COLUMNS],
    )


@cache
def _is_match(definition: Definition, name: str) -> Column:
    return F.col(definition.stream.field(definition.join_field).column) == F.col(name)


@cache
def _newest_of(definition: Definition, count: int) -> Column:
    """Return the newest of a row's versions across `count` relations; null if there is none."""
    columns = (*definition.table_columns, *VERSION_COLUMNS)

    def comparable(name: str) -> Column:
        fields = [F.col(f"{name}_{column}").alias(column) for column in columns]
        return F.when(F.col(name).isNotNull(), F.struct(version_order(f"{name}_"), *fields))

    return F.greatest(*[comparable(_name(number)) for number in range(count)]).alias("_newest")


@cache
def _chosen_columns(definition: Definition) -> tuple[Column, ...]:
    columns = (*definition.table_columns, *VERSION_COLUMNS)
    return (
        F.when(F.col("_newest").isNotNull(), F.lit(True)).alias("_match"),
        *[F.col("_newest")[column].alias(f"_match_{column}") for column in columns],
    )


def _details(
    chosen: DataFrame, record_columns: Sequence[str], definition: Definition, name: str = "_match"
) -> DataFrame:
    return chosen.select(*record_columns, *_detail_columns(definition, name))


@cache
def _detail_columns(definition: Definition, name: str) -> tuple[Column, ...]:
    known = F.col(name).isNotNull() & ~F.coalesce(f"{name}_deleted", F.lit(True))
    return (
        known.alias("is_matched"),
        *[F.when(known, F.col(f"{name}_{column}")).alias(column) for column in definition.table_columns],
        F.when(known, F.col(f"{name}_partition")).alias("table_partition"),
        F.when(known, F.col(f"{name}_offset")).alias("table_offset"),
    )


def _source(definition: Definition, column: str) -> str:
    for each in definition.columns:
        if definition.column_name(each) == column:
            return definition.table.field(each.source).column
    raise KeyError(f"{definition.name} has no column {column}")


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
