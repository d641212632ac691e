"""Chooses the newest version of a key. A version is ordered by modifiedAt, then by Kafka offset."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


def newest_versions(rows: DataFrame, key: str) -> DataFrame:
    """Return one row per key: its newest version, which may be a tombstone.

    Of versions with the same time, the one with the greatest offset wins, then the one in the lowest partition.
    """
    order = Window.partitionBy(key).orderBy(F.desc("version_at"), F.desc("offset"), "partition")
    return rows.withColumn("_nth", F.row_number().over(order)).where("_nth = 1").drop("_nth")
