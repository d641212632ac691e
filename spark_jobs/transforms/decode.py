"""Kafka records into typed rows; what breaks the contract keeps its reason instead.

The column-wise twin of `include.contracts.validation`: a test holds both against the same values. Two leniencies are
known: where text is wanted, `from_json` takes a number, a boolean or an object as its JSON text; and fields beyond the
contract, which the gateway looks through for control characters and depth, are not read here at all.
"""

from functools import cache, reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.contracts import headers as h
from include.contracts.fields import (
    CONTROL_PATTERN,
    END_INSTANT,
    FIRST_INSTANT,
    TIMESTAMP_PATTERN,
    TIMESTAMP_PROBLEM,
    TIMESTAMP_REMEDY,
    Field,
)
from include.contracts.topics import Topic
from include.contracts.validation import NO_VERSION
from spark_jobs.schemas import json_type
from spark_jobs.transforms.headers import header_text

REJECT_COLUMNS = ("topic", "partition", "offset", "reason", "key", "value", "kafka_timestamp")
# An escaped surrogate without its other half; from_json would turn it into "?" without a word.
ESCAPED_BACKSLASH = r"\\\\"
ESCAPED_CONTROL = r"\\([bf]|u00(0[0-8bcefBCEF]|1|7[fF]|[89]))"
# An id as its producer writes it: the twin of `include.contracts.fields.record_id`.
_IS_ID = "string(try_cast(string(key) AS bigint)) = string(key)"
LONE_SURROGATE = (
    r"(?i)\\u d[89ab][0-9a-f]{2}(?!\\u d[c-f][0-9a-f]{2})|(?<!\\u d[89ab][0-9a-f]{2})\\u d[c-f][0-9a-f]{2}"
).replace(" ", "")


def typed(records: DataFrame, topic: Topic) -> DataFrame:
    """One row a record of the Kafka source (with headers): the topic's columns, where it came from, and `ok`.

    `ok` is true for a record that keeps the contract. Where it is false, `with_reason` has the last word: a few valid
    records look broken here. A tombstone has `deleted` true and its key as id. `<column>_text` is a time as it was
    sent. Times of headers are text: `accepted_text`. `kafka_timestamp` is null outside the years of the contract.
    """
    text = F.col("value").cast("string")
    parsed = records.select(
        "topic",
        "partition",
        "offset",
        F.when((F.col("timestamp") >= FIRST_INSTANT) & (F.col("timestamp") < END_INSTANT), F.col("timestamp")).alias(
            "kafka_timestamp"
        ),
        "key",
        "value",
        F.from_json(text, json_type(topic)).alias("_json"),
        F.col("value").isNull().alias("deleted"),
        header_text(h.EVENT_ID).alias("_event_id"),
        header_text(h.ACCEPTED_AT).alias("_accepted"),
        header_text(h.REPLAYED_AT).isNotNull().alias("replayed"),
    )
    return parsed.select(
        "topic", "partition", "offset", "kafka_timestamp", "key", "value", *_header_columns(), "replayed", "deleted",
        *_typed_columns(topic),
        _ok(topic).alias("ok"),
    )  # fmt: skip


def with_reason(rows: DataFrame, topic: Topic) -> DataFrame:
    """`typed` rows with `reason` for `ok`: null for a valid record, else the field (JSON pointer), breach and remedy.

    Every check is made again, one by one, only for rows that are not `ok`.
    """
    text = F.col("value").cast("string")
    json = F.when(~F.col("ok"), F.from_json(text, json_type(topic)))
    parsed = rows.select("*", text.alias("_text"), F.col("key").cast("string").alias("_key"), json.alias("_json"))
    reason = F.when(~F.col("ok"), _reason(topic))
    return parsed.withColumn("reason", reason).drop("_text", "_key", "_json", "ok")


def versioned(rows: DataFrame) -> DataFrame:
    """The rows with `accepted_at` and `version_at`: when a version was made; a tombstone's is when it was accepted."""
    accepted = F.try_to_timestamp("accepted_text")
    version = F.when(F.col("deleted"), F.coalesce(accepted, "kafka_timestamp")).otherwise(F.col("modified_at"))
    return rows.select("*", accepted.alias("accepted_at"), version.alias("version_at"))


def decode(records: DataFrame, topic: Topic) -> DataFrame:
    """`typed` records with `accepted_at`, `version_at` and `reason`, which is null for a valid record."""
    return with_reason(versioned(typed(records, topic)), topic)


def valid(decoded: DataFrame) -> DataFrame:
    """The rows that keep the contract, tombstones among them."""
    return decoded.where(F.col("reason").isNull()).drop("reason")


def rejects(decoded: DataFrame) -> DataFrame:
    """The records that break it, whole, with the reason."""
    return decoded.where(F.col("reason").isNotNull()).select(*REJECT_COLUMNS)


@cache
def _header_columns() -> tuple[Column, ...]:
    """The twins of `include.contracts.headers`: what counts of two headers."""
    event_id = (
        f"is_valid_utf8(_event_id) AND char_length(_event_id) BETWEEN 1 AND {h.MAX_EVENT_ID_LENGTH}"
        f" AND NOT _event_id RLIKE {_literal(h.UNPRINTABLE_PATTERN)}"
    )
    return (
        F.expr(f"CASE WHEN {event_id} THEN _event_id END").alias("event_id"),
        F.expr(f"CASE WHEN {_is_time('_accepted')} THEN _accepted END").alias("accepted_text"),
    )


def _is_time(text: str) -> str:
    """Is it a time as the contract writes them? A pattern's $ stands before a last line's end, too."""
    return rf"{text} RLIKE {_literal(TIMESTAMP_PATTERN)} AND NOT endswith({text}, '\n')" + (
        f" AND try_to_timestamp({text}) IS NOT NULL"
    )


@cache
def _typed_columns(topic: Topic) -> tuple[Column, ...]:
    columns = []
    for field in topic.fields:
        value = F.col("_json")[field.name]
        if field.name == topic.key_field:
            key_id = F.expr(f"CASE WHEN {_IS_ID} THEN try_cast(string(key) AS bigint) END")
            columns.append(F.when(F.col("deleted"), key_id).otherwise(value).alias(field.column))
        elif field.type == "timestamp":
            columns += [F.try_to_timestamp(value).alias(field.column), value.alias(f"{field.column}_text")]
        else:
            columns.append(value.alias(field.column))
    return tuple(columns)


@cache
def _ok(topic: Topic) -> Column:
    """Is the record evidently right? Cheap: what is dear stands behind a condition that is seldom true.

    Bytes are searched before texts: a text must be made of them first, and searching it takes five times as long.
    """
    unescaped = f"regexp_replace(string(value), {_literal(ESCAPED_BACKSLASH)}, '')"
    broken = [
        "NOT is_valid_utf8(string(value))",
        "NOT startswith(ltrim(string(value)), '{')",
        "(contains(value, X'5C75') OR contains(value, X'5C62') OR contains(value, X'5C66')) AND"  # \u \b \f
        f" ({unescaped} RLIKE {_literal(ESCAPED_CONTROL)} OR {unescaped} RLIKE {_literal(LONE_SURROGATE)})",
        "contains(value, X'7F')",
        f"contains(value, X'C2') AND string(value) RLIKE {_literal(CONTROL_PATTERN)}",
        f"string(key) IS DISTINCT FROM string(_json.{topic.key_field})",
    ]
    for field in topic.fields:
        value = f"_json.{field.name}"
        if not field.nullable:
            broken.append(f"{value} IS NULL")
        if field.type == "string":
            longer = f"coalesce(octet_length({value}), 0) > {field.max_length}"
            broken.append(f"{longer} AND char_length({value}) > {field.max_length}")
        if field.type == "timestamp":
            broken.append(f"NOT ({_is_time(value)})")
    is_broken = " OR ".join(f"({each})" for each in broken)
    tombstone = f"coalesce({_IS_ID}, false) AND coalesce(accepted_text, string(kafka_timestamp)) IS NOT NULL"
    return F.expr(f"CASE WHEN deleted THEN {tombstone} ELSE NOT coalesce({is_broken}, true) END")


def _literal(pattern: str) -> str:
    """A regular expression as a literal of Spark's SQL, where a backslash is written twice."""
    return "'" + pattern.replace("\\", "\\\\") + "'"


@cache  # a Column is only a description; making this one takes hundreds of calls to the JVM, in every batch
def _reason(topic: Topic) -> Column:
    text, key = F.col("_text"), F.col("_key")
    key_column = F.col(topic.field(topic.key_field).column)
    tombstone_checks = [
        (key_column.isNull(), f"/key: a tombstone's key is not a {topic.name} id; use the id as decimal text"),
        (F.coalesce("accepted_text", F.col("kafka_timestamp").cast("string")).isNull(), f"/timestamp: {NO_VERSION}"),
    ]
    unescaped = F.regexp_replace(text, ESCAPED_BACKSLASH, "")
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
            "timestamp": TIMESTAMP_REMEDY,
        }[field.type]
        kind = {"long": "an integer", "string": "a string", "timestamp": "a time"}[field.type]
        checks.append((raw.isNull(), f"{pointer}: missing, null or not {kind}; {wanted}"))
    if field.type == "timestamp":
        is_time = raw.rlike(TIMESTAMP_PATTERN) & ~raw.endswith("\n") & typed.isNotNull()
        problem = f"{pointer}: {TIMESTAMP_PROBLEM}; {TIMESTAMP_REMEDY}"
        checks.append((raw.isNotNull() & ~F.coalesce(is_time, F.lit(False)), problem))
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
