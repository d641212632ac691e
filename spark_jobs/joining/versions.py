"""Chooses the newest version of a key. `include.contracts.versions` states the order of versions."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from include.contracts.versions import NEWEST_FIRST


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
