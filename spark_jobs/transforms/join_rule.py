"""The one join rule that both layers call."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from include.contracts.definition import Definition

_MEMBER_SIDE = ("partition", "offset", "version_at", "deleted")


def board_details(boards: DataFrame, members: DataFrame, definition: Definition) -> DataFrame:
    """One row a board (decoded, valid, no tombstones), with its author's columns.

    A board takes its member's newest version not newer than the board's own; if there is none, the oldest one known.
    Where that version is a tombstone, or the member has none, the author's columns are null and `author_known` is
    false: the board is pending. `members` holds any number of versions a key.
    """
    table_key = definition.table.field(definition.table.key_field).column
    authors = members.select(
        F.col(table_key).alias("_author"),
        *[F.col(_source(definition, column)).alias(column) for column in definition.table_columns],
        *[F.col(name).alias(f"_author_{name}") for name in _MEMBER_SIDE],
    )
    join_column = definition.stream.field(definition.join_field).column
    matched = boards.join(authors, boards[join_column] == authors["_author"], how="left")
    not_newer = F.coalesce(F.col("_author_version_at") <= F.col("version_at"), F.lit(False))
    choice = Window.partitionBy("partition", "offset").orderBy(
        F.desc(not_newer),
        F.when(not_newer, F.col("_author_version_at")).desc_nulls_last(),
        F.when(not_newer, F.col("_author_offset")).desc_nulls_last(),
        F.coalesce("_author_deleted", F.lit(True)),  # among the newer ones a tombstone says nothing about the author
        "_author_version_at",
        "_author_offset",
    )
    chosen = matched.withColumn("_choice", F.row_number().over(choice)).where("_choice = 1")
    known = F.col("_author").isNotNull() & ~F.coalesce("_author_deleted", F.lit(True))
    return chosen.select(
        *boards.columns,
        known.alias("author_known"),
        *[F.when(known, F.col(column)).alias(column) for column in definition.table_columns],
        F.when(known, F.col("_author_partition")).alias("member_partition"),
        F.when(known, F.col("_author_offset")).alias("member_offset"),
    )


def _source(definition: Definition, column: str) -> str:
    for each in definition.columns:
        if definition.column_name(each) == column:
            return definition.table.field(each.source).column
    raise KeyError(f"{definition.name} has no column {column}")
