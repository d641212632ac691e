"""Record headers as columns, and columns as record headers."""

from pyspark.sql import Column
from pyspark.sql import functions as F


def header_text(name: str) -> Column:
    """The first header of that name as text; null when there is none."""
    matching = F.filter("headers", lambda header: header["key"] == name)
    return F.try_element_at(matching, F.lit(1))["value"].cast("string")


def header(name: str, value: Column) -> Column:
    """A header for Spark's Kafka sink; null where the value is null."""
    named = F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
    return F.when(value.isNotNull(), named)
