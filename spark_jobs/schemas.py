"""Spark types, derived from the contracts."""

from pyspark.sql import types as t

from include.contracts.topics import Topic

_TYPES: dict[str, t.DataType] = {
    "long": t.LongType(),
    "string": t.StringType(),
    "timestamp": t.StringType(),  # read as text first: Spark's own parser takes far more than the contract does
}

HEADERS = t.ArrayType(t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())]))

# A record as Spark's Kafka source gives it with includeHeaders; also how pending boards are read back.
RECORD = t.StructType(
    [
        t.StructField("key", t.BinaryType()),
        t.StructField("value", t.BinaryType()),
        t.StructField("topic", t.StringType()),
        t.StructField("partition", t.IntegerType()),
        t.StructField("offset", t.LongType()),
        t.StructField("timestamp", t.TimestampType()),
        t.StructField("headers", HEADERS),
    ]
)


def json_type(topic: Topic) -> t.StructType:
    """The topic's JSON value as `from_json` reads it, by JSON names."""
    return t.StructType([t.StructField(field.name, _TYPES[field.type]) for field in topic.fields])


def stored_type(topic: Topic, column: str) -> t.DataType:
    """The type of a topic's column once decoded. Raises KeyError."""
    for field in topic.fields:
        if field.column == column:
            return t.TimestampType() if field.type == "timestamp" else _TYPES[field.type]
    raise KeyError(f"topic {topic.name} has no column {column}")
