"""Spark types, derived from the contracts."""

from pyspark.sql import types as t

from include.contracts.topics import Topic

_TYPES: dict[str, t.DataType] = {
    "long": t.LongType(),
    "string": t.StringType(),
    "timestamp": t.StringType(),  # read as text first, because Spark's parser accepts more than the contract does
}

HEADERS = t.ArrayType(t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())]))

# A record of Spark's Kafka source with includeHeaders. Pending boards are read back with the same schema.
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
    """Return the type of the topic's JSON value for `from_json`, with JSON names."""
    return t.StructType([t.StructField(field.name, _TYPES[field.type]) for field in topic.fields])


def stored_type(topic: Topic, column: str) -> t.DataType:
    """Return the type of a topic's decoded column. Raises KeyError if the topic has no such column."""
    for field in topic.fields:
        if field.column == column:
            return t.TimestampType() if field.type == "timestamp" else _TYPES[field.type]
    raise KeyError(f"topic {topic.name} has no column {column}")
