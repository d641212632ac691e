"""Versions: which record of a key counts. Version = (modifiedAt, then Kafka offset)."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


def newest_versions(rows: DataFrame, key: str) -> DataFrame:
    """One row a key: its newest version, which may be a tombstone. Equal versions: the first in the log's order."""
    order = Window.partitionBy(key).orderBy(F.desc("version_at"), F.desc("offset"), "partition")
    return rows.withColumn("_nth", F.row_number().over(order)).where("_nth = 1").drop("_nth")


def first_of_each_event(rows: DataFrame, key: str) -> DataFrame:
    """One row an event and key: its first copy in the log. A record without an event id is an event of its own.

    The key belongs to the identity: a client that uses one Idempotency-Key for two boards has two boards.
    """
    identity = F.coalesce("event_id", F.concat_ws(":", "topic", "partition", "offset"))
    order = Window.partitionBy("_event", key).orderBy("partition", "offset")
    return (
        rows.withColumn("_event", identity)
        .withColumn("_nth", F.row_number().over(order))
        .where("_nth = 1")
        .drop("_nth", "_event")
    )
