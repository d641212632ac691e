"""The join rule of the stream, which holds each member's newest version.

The rule: a board takes its member's newest version not newer than the board's own; if there is none, the oldest one
known. With the history of the members it stands in `spark_jobs.batch.authors`; a test holds both against one oracle.
"""

from collections.abc import Sequence
from functools import cache

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.contracts.definition import Definition

MEMBER_SIDE = ("partition", "offset", "version_at", "deleted")


def board_details_of_newest(boards: DataFrame, members: Sequence[DataFrame], definition: Definition) -> DataFrame:
    """One row a board, with its author's columns: its member's newest version, whatever its time.

    Where that is a tombstone, or the member has none, they are null and `author_known` is false: the board is pending.

    Each relation of `members` holds a key once at most; of a key in several of them the newest version counts. The
    order of the boards is kept when they are sorted by the join field.
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
    """The boards with their member's columns, each under the name `<name>_<column>`; null without a member."""
    return boards.join(members.select(*_author_columns(definition, name)), _is_author(definition, name), how="left")


@cache  # as are the others here: a Column is only a description, and each takes calls to the JVM to be made
def _author_columns(definition: Definition, name: str) -> tuple[Column, ...]:
    table_key = definition.table.field(definition.table.key_field).column
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
    """The newest of a member's versions in so many relations; null where there is none."""
    columns = (*definition.table_columns, *MEMBER_SIDE)

    def comparable(name: str) -> Column:
        version = [F.col(f"{name}_version_at").alias("_version"), F.col(f"{name}_offset").alias("_place")]
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
        F.when(known, F.col(f"{name}_partition")).alias("member_partition"),
        F.when(known, F.col(f"{name}_offset")).alias("member_offset"),
    )


def _source(definition: Definition, column: str) -> str:
    for each in definition.columns:
        if definition.column_name(each) == column:
            return definition.table.field(each.source).column
    raise KeyError(f"{definition.name} has no column {column}")
