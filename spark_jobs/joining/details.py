"""Joined boards as records of board-detail."""

from functools import cache

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.contracts import headers as h
from include.contracts.definition import Column as OutputColumn
from include.contracts.definition import Definition
from include.contracts.fields import Field
from spark_jobs.decoding.decode import header


def day_of(instant: Column, timezone: str) -> Column:
    """Return the date in the pipeline's time zone. The session's time zone must be UTC."""
    return F.to_date(F.from_utc_timestamp(instant, timezone))


def to_records(details: DataFrame, definition: Definition) -> DataFrame:
    """Return joined boards as records of the output topic: key, value (null for a tombstone), headers.

    Timestamps of the stream keep the text they were sent with, which the contract has checked.
    """
    return details.select(*_record_columns(definition))


@cache  # hundreds of calls to the JVM: without the cache they would add 0.1 s to every batch
def _record_columns(definition: Definition) -> tuple[Column, ...]:
    sources = {c.output: c for c in definition.columns}
    fields = [
        _output_field(definition, sources[f.name]).alias(f.name)
        if f.name in sources
        else F.lit(None).cast("long").alias(f.name)
        for f in definition.output.fields
    ]
    # a tombstone has no value, so its version is in a header; as its text, which may be of a year before in UTC
    without_text = F.when(F.col("deleted"), _rfc3339(F.col("version_at")))
    accepted = F.coalesce(F.col("accepted_text"), without_text)
    value = F.to_json(F.struct(*fields), {"ignoreNullFields": "false"})
    key, of = definition.stream.key_column, definition.source_header
    headers = F.array(
        header(h.EVENT_ID, F.col("event_id")),
        header(h.ACCEPTED_AT, accepted),
        header(of("stream_topic"), F.lit(definition.stream.name)),
        header(of("stream_partition"), F.col("partition")),
        header(of("stream_offset"), F.col("offset")),
        header(of("table_topic"), F.when(F.col("table_offset").isNotNull(), F.lit(definition.table.name))),
        header(of("table_partition"), F.col("table_partition")),
        header(of("table_offset"), F.col("table_offset")),
    )
    # most records have all headers but that of a trace; array_compact uses a lambda, which Spark does not compile
    compact = F.when(_has_all_headers(accepted), headers).otherwise(F.array_compact(headers))
    traced = F.concat(compact, F.array(header(h.TRACEPARENT, F.col("traceparent"))))
    return (
        F.col(key).cast("string").cast("binary").alias("key"),
        F.when(~F.col("deleted"), value).cast("binary").alias("value"),
        F.when(F.col("traceparent").isNull(), compact).otherwise(traced).alias("headers"),
    )


def _has_all_headers(accepted: Column) -> Column:
    return F.col("event_id").isNotNull() & accepted.isNotNull() & F.col("table_offset").isNotNull()


def _output_field(definition: Definition, column: OutputColumn) -> Column:
    if column.side == "table":
        return _json_value(F.col(definition.column_name(column)), definition.table.field(column.source))
    field = definition.stream.field(column.source)
    return F.col(f"{field.column}_text") if field.type == "timestamp" else _json_value(F.col(field.column), field)


def _json_value(value: Column, field: Field) -> Column:
    """Return a value in the form in which `to_json` writes it as the contract says."""
    if field.type == "timestamp":
        return _rfc3339(value)
    return value.cast("string") if field.text_format else value  # plain digits: the session is in ANSI mode


def _rfc3339(instant: Column) -> Column:
    return F.date_format(instant, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")
