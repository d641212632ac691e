"""Between joined boards, the records of board-detail, and the rows that are served."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.contracts import headers as h
from include.contracts.definition import Definition
from include.sql.named import COORDINATES
from spark_jobs.transforms.headers import header, header_long


def day_of(instant: Column, timezone: str) -> Column:
    """The date in the pipeline's time zone (the session's zone must be UTC)."""
    return F.to_date(F.from_utc_timestamp(instant, timezone))


def to_rows(details: DataFrame, definition: Definition, timezone: str) -> DataFrame:
    """Joined boards as rows of the result: its columns, the source coordinates, the day."""
    day_column = definition.stream.field(definition.day_field).column
    return details.select(
        *[
            F.col(definition.stream.field(c.source).column if c.side == "stream" else definition.column_name(c))
            .alias(definition.column_name(c))
            for c in definition.columns
        ],
        "event_id",
        F.col("partition").alias("board_partition"),
        F.col("offset").alias("board_offset"),
        "member_partition",
        "member_offset",
        day_of(F.col(day_column), timezone).alias("day"),
        "accepted_at",
        "version_at",
        "deleted",
        "replayed",
    )  # fmt: skip


def to_records(rows: DataFrame, definition: Definition) -> DataFrame:
    """Rows as records of the output topic: key, value (null for a tombstone), headers."""
    output = definition.output
    filled = set(definition.relational_columns)
    fields = [
        (_rfc3339(F.col(f.column)) if f.type == "timestamp" else F.col(f.column)).alias(f.name)
        if f.column in filled
        else F.lit(None).cast("long").alias(f.name)
        for f in output.fields
    ]
    # a tombstone has no value to carry its version in
    accepted = F.when(F.col("deleted"), F.col("version_at")).otherwise(F.col("accepted_at"))
    value = F.to_json(F.struct(*fields), {"ignoreNullFields": "false"})
    return rows.select(
        F.col(definition.key_column).cast("string").cast("binary").alias("key"),
        F.when(~F.col("deleted"), value).cast("binary").alias("value"),
        F.array_compact(
            F.array(
                header(h.EVENT_ID, F.col("event_id")),
                header(h.ACCEPTED_AT, _rfc3339(accepted)),
                header(h.BOARD_TOPIC, F.lit(definition.stream.name)),
                header(h.BOARD_PARTITION, F.col("board_partition")),
                header(h.BOARD_OFFSET, F.col("board_offset")),
                header(h.MEMBER_TOPIC, F.when(F.col("member_offset").isNotNull(), F.lit(definition.table.name))),
                header(h.MEMBER_PARTITION, F.col("member_partition")),
                header(h.MEMBER_OFFSET, F.col("member_offset")),
            )
        ).alias("headers"),
    )


def source_coordinates(records: DataFrame) -> DataFrame:
    """Records of the output topic with the coordinates of the board and member records they were made from."""
    return records.select(
        "*",
        header_long(h.BOARD_PARTITION).cast("int").alias("board_partition"),
        header_long(h.BOARD_OFFSET).alias("board_offset"),
        header_long(h.MEMBER_PARTITION).cast("int").alias("member_partition"),
        header_long(h.MEMBER_OFFSET).alias("member_offset"),
    )


def to_served(decoded: DataFrame, definition: Definition, timezone: str) -> DataFrame:
    """Decoded output records as rows for the live table: in the order of its columns, then day and deleted.

    The version of a tombstone takes the place of the version column, so that newer and older compare alike.
    """
    day_column = definition.output.field(definition.day_field).column
    result = [
        F.when(F.col("deleted"), F.col("version_at")).otherwise(F.col(name)).alias(name)
        if name == definition.version_column
        else F.col(name)
        for name in definition.relational_columns
    ]
    places = {"kafka_partition": F.col("partition"), "kafka_offset": F.col("offset")}
    return decoded.select(
        *result,
        *[places.get(name, F.col(name)).alias(name) for name in COORDINATES],
        day_of(F.col(day_column), timezone).alias("day"),
        "deleted",
    )


def _rfc3339(instant: Column) -> Column:
    return F.date_format(instant, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")
