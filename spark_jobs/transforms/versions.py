"""Versions: which record of a key counts. Version = (modifiedAt, then Kafka offset)."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


def newest_versions(rows: DataFrame, key: str) -> DataFrame:
    """One row a key: its newest version, which may be a tombstone. Equal versions: the first in the log's order."""
    order = Window.partitionBy(key).orderBy(F.desc("version_at"), F.desc("offset"), "partition")
    return rows.withColumn("_nth", F.row_number().over(order)).where("_nth = 1").drop("_nth")
