"""Kafka records into typed rows; what breaks the contract keeps its reason instead.

The column-wise twin of `include.contracts.validation`: a test holds both against the same values. Two leniencies are
known: where text is wanted, `from_json` takes a number, a boolean or an object as its JSON text; and fields beyond the
contract, which the gateway looks through for control characters and depth, are not read here at all.
"""

from functools import cache, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.contracts import headers as h
from include.contracts.fields import CONTROL_PATTERN, TIMESTAMP_PATTERN, Field
from include.contracts.topics import Topic
from spark_jobs.schemas import json_type
from spark_jobs.transforms.headers import header_text

REJECT_COLUMNS = ("topic", "partition", "offset", "reason", "key", "value", "kafka_timestamp")
FIRST_INSTANT = "0001-01-01T00:00:00Z"
LAST_INSTANT = "9999-12-31T23:59:59.999999Z"
# An escaped surrogate without its other half; from_json would turn it into "?" without a word.
LONE_SURROGATE = (
    r"(?i)\\u d[89ab][0-9a-f]{2}(?!\\u d[c-f][0-9a-f]{2})|(?<!\\u d[89ab][0-9a-f]{2})\\u d[c-f][0-9a-f]{2}"
).replace(" ", "")


def decode(records: DataFrame, topic: Topic, carried: tuple[str, ...] = ()) -> DataFrame:
    """One row a record of the Kafka source (with headers): the topic's columns, where it came from, and `reason`.

    `reason` is null for a valid record; otherwise it names the field (JSON pointer), the breach and the remedy.
    A tombstone has `deleted` true, its key as id, and the time it was accepted as its version. `carried` names
    further columns of `records` to keep.
    """
    text = F.col("value").cast("string")
    parsed = records.select(
        "topic",
        "partition",
        "offset",
        F.col("timestamp").alias("kafka_timestamp"),
        "key",
        "value",
        F.col("key").cast("string").alias("_key"),
        text.alias("_text"),
        F.from_json(text, json_type(topic)).alias("_json"),
        F.col("value").isNull().alias("deleted"),
        header_text(h.EVENT_ID).alias("event_id"),
        F.try_to_timestamp(header_text(h.ACCEPTED_AT)).alias("accepted_at"),
        header_text(h.REPLAYED_AT).isNotNull().alias("replayed"),
        *carried,
    )
    typed = parsed.select("*", *_typed_columns(topic))
    version = F.when(F.col("deleted"), F.coalesce("accepted_at", "kafka_timestamp")).otherwise(F.col("modified_at"))
    return typed.select(
        "topic", "partition", "offset", "kafka_timestamp", "key", "value", "event_id", "accepted_at", "replayed",
        "deleted",
        version.alias("version_at"),
        *[field.column for field in topic.fields],
        *carried,
        _reason(topic).alias("reason"),
    )  # fmt: skip


def valid(decoded: DataFrame) -> DataFrame:
    """The rows that keep the contract, tombstones among them."""
    return decoded.where(F.col("reason").isNull()).drop("reason")


def rejects(decoded: DataFrame) -> DataFrame:
    """The records that break it, whole, with the reason."""
    return decoded.where(F.col("reason").isNotNull()).select(*REJECT_COLUMNS)


def _typed(field: Field, topic: Topic, key_id: Column) -> Column:
    value = F.col("_json")[field.name]
    if field.name == topic.key_field:
        return F.when(F.col("deleted"), key_id).otherwise(value)
    return F.try_to_timestamp(value) if field.type == "timestamp" else value


@cache
def _typed_columns(topic: Topic) -> tuple[Column, ...]:
    key_id = F.expr("try_cast(_key as bigint)")
    return tuple(_typed(field, topic, key_id).alias(field.column) for field in topic.fields)


@cache  # a Column is only a description; making this one takes hundreds of calls to the JVM, in every batch
def _reason(topic: Topic) -> Column:
    text, key = F.col("_text"), F.col("_key")
    key_column = F.col(topic.field(topic.key_field).column)
    tombstone_checks = [
        (key_column.isNull(), f"/key: a tombstone's key is not a {topic.name} id; use the id as decimal text"),
    ]
    unescaped = F.regexp_replace(text, r"\\\\", "")
    nothing_read = F.coalesce(*[F.col("_json")[field.name].cast("string") for field in topic.fields]).isNull()
    is_object = F.coalesce(F.ltrim(text).startswith("{"), F.lit(False))
    checks = [
        (~F.expr("is_valid_utf8(_text)"), "/: not UTF-8 text; encode the value as UTF-8"),
        (
            # from_json gives an object of nulls for what is no JSON; parsing again settles it, only then
            ~is_object | (nothing_read & F.expr("try_parse_json(_text)").isNull()),
            f"/: not a JSON object; send an object with the fields of {topic.name}",
        ),
        (
            F.contains(F.lower(text), F.lit("\\ud")) & unescaped.rlike(LONE_SURROGATE),
            "/: contains a lone surrogate; send well-formed Unicode text",
        ),
    ]
    for field in topic.fields:
        checks += _field_checks(field)
    checks.append(
        (
            F.coalesce(key != key_column.cast("string"), F.lit(True)),
            f"/key: the record key differs from /{topic.key_field}; use the id as decimal text",
        )
    )
    return F.when(F.col("deleted"), _first(tombstone_checks)).otherwise(_first(checks))


def _field_checks(field: Field) -> list[tuple[Column, str]]:
    raw, typed = F.col("_json")[field.name], F.col(field.column)
    pointer = f"/{field.name}"
    checks: list[tuple[Column, str]] = []
    if not field.nullable:
        wanted = {
            "long": "give an integer of at most 64 bits",
            "string": "give a string",
            "timestamp": 'give a time such as "2026-11-20T09:30:00.000Z"',
        }[field.type]
        kind = {"long": "an integer", "string": "a string", "timestamp": "a time"}[field.type]
        checks.append((raw.isNull(), f"{pointer}: missing, null or not {kind}; {wanted}"))
    if field.type == "timestamp":
        in_range = (typed >= F.lit(FIRST_INSTANT).cast("timestamp")) & (typed <= F.lit(LAST_INSTANT).cast("timestamp"))
        checks.append(
            (
                raw.isNotNull()
                & ~F.coalesce(raw.rlike(TIMESTAMP_PATTERN) & ~raw.endswith("\n") & in_range, F.lit(False)),
                f'{pointer}: not an RFC 3339 time with an offset; give a time such as "2026-11-20T09:30:00.000Z"',
            )
        )
    if field.type == "string":
        checks.append(
            (
                F.contains(raw, F.lit("\0")),
                f"{pointer}: contains the NUL character; remove U+0000: PostgreSQL cannot store it",
            )
        )
        checks.append(
            (
                raw.rlike(CONTROL_PATTERN),
                f"{pointer}: contains a control character; remove it; TAB, LF and CR may stay",
            )
        )
        checks.append(
            (
                F.char_length(raw) > F.lit(field.max_length),
                f"{pointer}: longer than {field.max_length} characters; shorten it",
            )
        )
    return checks


def _first(checks: list[tuple[Column, str]]) -> Column:
    (condition, reason), *rest = checks
    return reduce(lambda chain, check: chain.when(check[0], F.lit(check[1])), rest, F.when(condition, F.lit(reason)))
