"""Record headers as columns, and columns as record headers."""

from pyspark.sql import Column
from pyspark.sql import functions as F


def header_text(name: str) -> Column:
    """The first header of that name as text; null when there is none."""
    place = F.array_position(F.col("headers")["key"], name).cast("int")  # from 1 on; no lambda, which Spark interprets
    return F.get(F.col("headers")["value"], place - 1).cast("string")


def header(name: str, value: Column) -> Column:
    """A header for Spark's Kafka sink; null where the value is null."""
    named = F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
    return F.when(value.isNotNull(), named)
