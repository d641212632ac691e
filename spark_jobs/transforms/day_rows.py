"""A day out of the raw records: dedupe, newest version, join rule; and what is not a row, with why."""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.contracts.day import Day
from include.contracts.definition import Definition
from spark_jobs.transforms.decode import valid
from spark_jobs.transforms.details import day_of, to_rows
from spark_jobs.transforms.join_rule import board_details
from spark_jobs.transforms.versions import first_of_each_event, newest_versions


@dataclass(frozen=True)
class DayRows:
    """The parts of a day.

    `rows`: its boards with their authors. `excluded`: kind, identity, board_id, board_partition, board_offset, reason
    of each board that is not a row; `moved` ones said another day in an older version. `identities`: one row a
    distinct board of the day in raw, counted before versions are chosen and authors joined: the balance can fail.
    """

    rows: DataFrame
    excluded: DataFrame
    identities: DataFrame


def day_rows(boards: DataFrame, members: DataFrame, definition: Definition, day: Day) -> DayRows:
    """The day's parts out of decoded board records and valid member versions, in any order and multiplicity."""
    key = definition.stream.field(definition.stream.key_field).column
    in_day = _record_day(definition, day.zone) == F.lit(day.date)
    events = first_of_each_event(valid(boards), key)
    newest = newest_versions(events, key)
    of_day = events.where(~F.col("deleted") & in_day).select(key).distinct()

    details = board_details(newest.where(~F.col("deleted") & in_day), members, definition)
    pending = details.where(~F.col("author_known"))
    deleted = newest.where("deleted").join(of_day, key, how="left_semi")
    moved = newest.where(~F.col("deleted") & ~in_day).join(of_day, key, how="left_semi")
    broken = boards.where(F.col("reason").isNotNull() & in_day).withColumn("_identity", _identity(key))
    kept_anyway = events.select(F.col(key).cast("string").alias("_identity"))
    rejected = broken.join(kept_anyway, "_identity", how="left_anti").dropDuplicates(["_identity"])

    excluded = (
        _excluded(pending, "pending", key, F.lit("its member is not known"))
        .unionByName(_excluded(deleted, "deleted", key, F.lit("it was deleted")))
        .unionByName(_excluded(moved, "moved", key, F.lit("a newer version says another day")))
        .unionByName(_excluded(rejected, "rejected", key, F.col("reason")))
    )
    identities = of_day.select(F.col(key).cast("string").alias("identity")).union(rejected.select("_identity"))
    return DayRows(to_rows(details.where("author_known"), definition, day.zone), excluded, identities.distinct())


def first_records(details: DataFrame) -> DataFrame:
    """Records of the output topic by the board record they were made from: the first one's place, and the copies."""
    return details.groupBy("board_partition", "board_offset").agg(
        F.min("partition").alias("kafka_partition"),
        F.min("offset").alias("kafka_offset"),
        F.count("*").alias("copies"),
    )


def _record_day(definition: Definition, zone: str) -> Column:
    """A record whose day field cannot be read is placed by the time that Kafka has for it."""
    instant = F.coalesce(definition.stream.field(definition.day_field).column, "kafka_timestamp")
    return day_of(instant, zone)


def _identity(key: str) -> Column:
    """The board's id; a record without a readable one is a board of its own."""
    return F.coalesce(F.col(key).cast("string"), F.concat_ws(":", F.lit("@"), "topic", "partition", "offset"))


def _excluded(boards: DataFrame, kind: str, key: str, reason: Column) -> DataFrame:
    return boards.select(
        F.lit(kind).alias("kind"),
        _identity(key).alias("identity"),
        F.col(key).alias("board_id"),
        F.col("partition").alias("board_partition"),
        F.col("offset").alias("board_offset"),
        reason.alias("reason"),
    )
