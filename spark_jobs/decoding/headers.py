"""Record headers as columns, and columns as record headers."""

from pyspark.sql import Column
from pyspark.sql import functions as F


def header_text(name: str) -> Column:
    """Return the first header of that name as text; null if there is none."""
    # array_position counts from 1; a lambda such as filter() would not be compiled by Spark
    position = F.array_position(F.col("headers")["key"], name).cast("int")
    return F.get(F.col("headers")["value"], position - 1).cast("string")


def header(name: str, value: Column) -> Column:
    """Return a header for Spark's Kafka sink; null if the value is null."""
    named = F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
    return F.when(value.isNotNull(), named)
