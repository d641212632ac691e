"""The join rule of the stream, which keeps only each member's newest version.

The rule: a board takes its member's newest version that is not newer than the board's version; if there is none, the
oldest known version. `spark_jobs.batch.authors` applies it to the members' history; a test compares both with the same
oracle.
"""

from collections.abc import Sequence
from functools import cache

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.contracts.definition import Definition

MEMBER_SIDE = ("partition", "offset", "version_at", "deleted")


def board_details_of_newest(boards: DataFrame, members: Sequence[DataFrame], definition: Definition) -> DataFrame:
    """Return one row per board with its author's columns, from the member's newest version, whatever its time.

    If that version is a tombstone or the member has none, the columns are null and `author_known` is false: the board
    is pending.

    Each relation of `members` has a key at most once; the newest version of a key across relations is used. The order
    of the boards is kept if they are sorted by the join field.
    """
    matched = boards
    for number, relation in enumerate(members):
        matched = _matched(matched, relation, definition, _name(number))
    if len(members) == 1:
        return _details(matched, boards.columns, definition, _name(0))
    board_columns = boards.columns
    chosen = matched.select(*board_columns, _newest_of(definition, len(members))).select(
        *board_columns, *_chosen_columns(definition)
    )
    return _details(chosen, board_columns, definition)


def _name(number: int) -> str:
    return f"_author{number}"


def _matched(boards: DataFrame, members: DataFrame, definition: Definition, name: str) -> DataFrame:
    """Add the columns of the boards' members as `<name>_<column>`; null for a board without a member."""
    return boards.join(members.select(*_author_columns(definition, name)), _is_author(definition, name), how="left")


@cache  # a Column is an immutable expression, and building it takes calls to the JVM
def _author_columns(definition: Definition, name: str) -> tuple[Column, ...]:
    table_key = definition.table.key_column
    return (
        F.col(table_key).alias(name),
        *[F.col(_source(definition, column)).alias(f"{name}_{column}") for column in definition.table_columns],
        *[F.col(column).alias(f"{name}_{column}") for column in MEMBER_SIDE],
    )


@cache
def _is_author(definition: Definition, name: str) -> Column:
    return F.col(definition.stream.field(definition.join_field).column) == F.col(name)


@cache
def _newest_of(definition: Definition, count: int) -> Column:
    """Return the newest of a member's versions across `count` relations; null if there is none."""
    columns = (*definition.table_columns, *MEMBER_SIDE)

    def comparable(name: str) -> Column:
        version = [F.col(f"{name}_version_at").alias("_version"), F.col(f"{name}_offset").alias("_offset")]
        fields = [F.col(f"{name}_{column}").alias(column) for column in columns]
        return F.when(F.col(name).isNotNull(), F.struct(*version, *fields))

    return F.greatest(*[comparable(_name(number)) for number in range(count)]).alias("_newest")


@cache
def _chosen_columns(definition: Definition) -> tuple[Column, ...]:
    return (
        F.when(F.col("_newest").isNotNull(), F.lit(True)).alias("_author"),
        *[F.col("_newest")[column].alias(f"_author_{column}") for column in (*definition.table_columns, *MEMBER_SIDE)],
    )


def _details(
    chosen: DataFrame, board_columns: Sequence[str], definition: Definition, name: str = "_author"
) -> DataFrame:
    return chosen.select(*board_columns, *_detail_columns(definition, name))


@cache
def _detail_columns(definition: Definition, name: str) -> tuple[Column, ...]:
    known = F.col(name).isNotNull() & ~F.coalesce(f"{name}_deleted", F.lit(True))
    return (
        known.alias("author_known"),
        *[F.when(known, F.col(f"{name}_{column}")).alias(column) for column in definition.table_columns],
        F.when(known, F.col(f"{name}_partition")).alias("table_partition"),
        F.when(known, F.col(f"{name}_offset")).alias("table_offset"),
    )


def _source(definition: Definition, column: str) -> str:
    for each in definition.columns:
        if definition.column_name(each) == column:
            return definition.table.field(each.source).column
    raise KeyError(f"{definition.name} has no column {column}")
