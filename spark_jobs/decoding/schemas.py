"""Spark types, derived from the contracts."""

from pyspark.sql import types as t

from include.contracts.topics import Topic

_TYPES: dict[str, t.DataType] = {"long": t.LongType(), "string": t.StringType(), "boolean": t.BooleanType()}

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
    """Return the type of the topic's JSON value for `from_json`, with JSON names.

    Times, decimals and dates are read as texts first, because Spark's parsers accept more than the contract does.
    """
    text = _TYPES["string"]
    return t.StructType([t.StructField(field.name, _TYPES.get(field.type, text)) for field in topic.fields])
