"""Decodes Kafka records into typed rows with Spark's column expressions, and encodes joined rows as records.

Decoding is a fast path. `ok` is true only if `spark_jobs.decoding.reference.read_record` accepts the record and returns
the same values. If it is false, the record takes the slow path and may still be valid: `read_record` decides.
"""

import datetime as dt
import secrets
from functools import cache

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as t

from include.contracts import headers as h
from include.contracts.definition import Column as OutputColumn
from include.contracts.definition import Definition
from include.contracts.fields import CONTROL_PATTERN, END_INSTANT, FIRST_INSTANT, TIMESTAMP, Field
from include.contracts.headers import RECORD_PATTERN
from include.contracts.topics import Topic
from include.contracts.validation import MAX_DEPTH

_TYPES: dict[str, t.DataType] = {"long": t.LongType(), "string": t.StringType(), "boolean": t.BooleanType()}

HEADERS = t.ArrayType(t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())]))

# A record of Spark's Kafka source with includeHeaders. Pending records are read back with the same schema.
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


def header_text(name: str) -> Column:
    """Return the first header of that name as text; null if there is none."""
    # array_position counts from 1; a lambda such as filter() would not be compiled by Spark
    position = F.array_position(F.col("headers")["key"], name).cast("int")
    return F.get(F.col("headers")["value"], position - 1).cast("string")


_CARRIED = ("topic", "partition", "offset", "kafka_timestamp", "key", "value", "deleted", "replayed")
_OF_HEADERS = ("event_id", "accepted_text", "accepted_at")
SLOW_PATH_COLUMNS = ("topic", "partition", "offset", "key", "value", "kafka_timestamp", "event_id", "accepted_text")

# Jackson stops at the end of the first value and ignores what follows, and from_json makes an unreadable field null. So
# a value is parsed as the first of two elements of a list, and the second must be the one that was appended here. The
# list's name and the second element are random, so that a producer cannot write a text that closes the list itself.
_LIST = f"list_{secrets.token_hex(8)}"
_LAST = secrets.randbits(62)
_BROKEN = "_broken"  # set by from_json if the text or a field does not parse; a field of that name is not read
_STRICT = {
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    "maxNestingDepth": str(MAX_DEPTH + 2),  # the list and the object around it
    "columnNameOfCorruptRecord": _BROKEN,
}

ESCAPED_BACKSLASH = r"\\\\"
ESCAPED_CONTROL = r"\\([bf]|u00(0[0-8bcefBCEF]|1|7[fF]|[89]))"
ESCAPED_LETTER = r"\\u00([46][1-9a-fA-F]|[57][0-9aA])"  # could hide a field's name from `_may_be_no_text`
# An escaped surrogate without its other half; from_json would silently turn it into "?".
LONE_SURROGATE = (
    r"(?i)\\u d[89ab][0-9a-f]{2}(?!\\u d[c-f][0-9a-f]{2})|(?<!\\u d[89ab][0-9a-f]{2})\\u d[c-f][0-9a-f]{2}"
).replace(" ", "")
# The same rule as `include.contracts.fields.record_id`.
_IS_ID = "string(try_cast(string(key) AS bigint)) = string(key)"


def decode(records: DataFrame, topic: Topic, traced: bool = False) -> DataFrame:
    """Return one row per record of the Kafka source (with headers): coordinates, the topic's columns, and `ok`.

    If `ok` is false the topic's columns are null, so that later expressions never get a value that breaks the contract.
    A tombstone has `deleted` true and its key as id. `<column>_text` is a timestamp as it was sent. `accepted_text` is
    the text of the header, `accepted_at` its timestamp. `version_at` is the time of the version; for a tombstone, the
    time when it was accepted. `kafka_timestamp` is the time of the record (`include.contracts.versions`), but null
    if it has none. With `traced` there is also `traceparent`, null unless the header has the form in which the gateway
    writes it.

    There are four projections. Each copies all values of a row, which takes longer than most checks.
    """
    carried = (*_CARRIED, "traceparent") if traced else _CARRIED
    parsed = records.select(
        "topic",
        "partition",
        "offset",
        _in_years(F.col("timestamp")).alias("_timestamp"),
        "key",
        "value",
        F.col("value").isNull().alias("deleted"),
        header_text(h.REPLAYED_AT).isNotNull().alias("replayed"),
        header_text(h.EVENT_ID).alias("_event_id"),
        header_text(h.ACCEPTED_AT).alias("_accepted"),
        *([_traceparent()] if traced else []),
        _parsed(topic).alias("_parsed"),
    )
    of_record = [name for name in carried if name != "kafka_timestamp"]
    read = parsed.select(*of_record, *_header_columns(), *_value_columns(topic))
    judged = read.select(*carried, *_OF_HEADERS, "_json", *_converted_columns(topic), _ok(topic).alias("ok"))
    return judged.select(*carried, *_OF_HEADERS, *_typed_columns(topic), "ok")


def valid(decoded: DataFrame) -> DataFrame:
    """Return the rows with `ok`, including tombstones."""
    return decoded.where("ok").drop("ok")


def slow_path(decoded: DataFrame) -> DataFrame:
    """Return the raw columns of the rows without `ok`, for `reference.read_slow_path`."""
    return decoded.where("NOT ok").select(*SLOW_PATH_COLUMNS)


@cache
def _parsed(topic: Topic) -> Column:
    values = t.StructField(_LIST, t.ArrayType(json_type(topic)))
    last = f',{{"{topic.key_field}":{_LAST}}}]}}'
    text = F.concat(F.lit(f'{{"{_LIST}":['), F.col("value").cast("string"), F.lit(last))
    return F.from_json(text, t.StructType([values, t.StructField(_BROKEN, t.StringType())]), _STRICT)


@cache
def _value_columns(topic: Topic) -> tuple[Column, ...]:
    """Return the value's object, its texts that have a format, converted, and a flag.

    The flag is true if the value is one object and nothing else.
    """
    values = F.col("_parsed")[_LIST]
    is_last = F.get(values, F.lit(1))[topic.key_field] == F.lit(_LAST)
    is_object = F.col("_parsed")[_BROKEN].isNull() & (F.size(values) == 2) & is_last
    first = F.get(values, F.lit(0))
    typed = [_conversion(first[field.name], field).alias(_converted(field)) for field in _with_format(topic)]
    return first.alias("_json"), *typed, F.coalesce(is_object, F.lit(False)).alias("_is_object")


@cache
def _traceparent() -> Column:
    text = header_text(h.TRACEPARENT)
    return F.when(text.rlike(_to_the_end(RECORD_PATTERN)), text).alias("traceparent")


@cache
def _header_columns() -> tuple[Column, ...]:
    """Return the valid values of two headers, and the time of the record, by the rules of `include.contracts`."""
    most = h.MAX_EVENT_ID_LENGTH
    event_id = (  # without BETWEEN, for which Spark adds a projection
        f"is_valid_utf8(_event_id) AND _event_id != ''"
        f" AND (octet_length(_event_id) <= {most} OR char_length(_event_id) <= {most})"
        f" AND NOT _event_id RLIKE {_literal(h.UNPRINTABLE_PATTERN)}"
    )
    is_time = F.expr(_has_form("_accepted", TIMESTAMP.pattern))
    accepted_at = F.when(is_time, timestamp_of(F.col("_accepted")))
    accepted_ms = _in_years(F.date_trunc("millisecond", accepted_at))
    return (
        F.expr(f"CASE WHEN {event_id} THEN _event_id END").alias("event_id"),
        F.when(accepted_at.isNotNull(), F.col("_accepted")).alias("accepted_text"),
        accepted_at.alias("accepted_at"),
        F.coalesce("_timestamp", accepted_ms).alias("kafka_timestamp"),
    )


def _in_years(instant: Column) -> Column:
    """Return the instant; null if it is outside the years of the contract."""
    return F.when((instant >= FIRST_INSTANT) & (instant < END_INSTANT), instant)


def _has_form(text: str, pattern: str) -> str:
    r"""Return a condition: true if the text matches the pattern, whose $ becomes \z.

    In Java, $ also matches before a line break at the end, which includes \r and U+2028.
    """
    return f"{text} RLIKE {_literal(_to_the_end(pattern))}"


def _to_the_end(pattern: str) -> str:
    return pattern.removesuffix("$") + r"\z"


def _with_format(topic: Topic) -> list[Field]:
    return [field for field in topic.fields if field.text_format]


def _conversion(text: Column, field: Field) -> Column:
    """Return the text as a value of the field's type; null if it is none.

    A timestamp may have any form that Spark parses, a date or decimal only that of the contract: Spark would round
    "1e-400000000" for hours.
    """
    if field.type == "timestamp":
        return timestamp_of(text)
    assert field.text_format is not None
    kind = t.DateType() if field.type == "date" else t.DecimalType(field.precision, field.scale)
    return F.when(text.rlike(_to_the_end(field.text_format.pattern)), text.try_cast(kind))


def timestamp_of(text: Column) -> Column:
    """Return the instant of a time of the contract; null if it has none. Digits beyond microseconds are cut."""
    return F.coalesce(F.try_to_timestamp(text), F.try_to_timestamp(F.upper(text)))  # Spark reads upper case only


def _converted(field: Field) -> str:
    """Return the name of the column with the result of `_conversion`."""
    return f"_{field.column}"


def _converted_columns(topic: Topic) -> list[str]:
    return [_converted(field) for field in _with_format(topic)]


@cache
def _typed_columns(topic: Topic) -> tuple[Column, ...]:
    """Return the topic's columns and `version_at`: the time of the version; of a tombstone, when it was accepted."""
    columns = []
    for field in topic.fields:
        value = F.col("_json")[field.name]
        if field.name == topic.key_field:
            key_id = F.expr("try_cast(string(key) AS bigint)")
            value = F.when(F.col("deleted"), key_id).otherwise(value)
        kept = F.col(_converted(field)) if field.text_format else value
        columns.append(F.when(F.col("ok"), kept).alias(field.column))
        if field.type == "timestamp":
            columns.append(F.when(F.col("ok"), value).alias(f"{field.column}_text"))
    made_at = F.when(F.col("ok"), F.col(f"_{topic.version_column}"))
    version = F.when(F.col("deleted"), F.coalesce("accepted_at", "kafka_timestamp")).otherwise(made_at)
    return *columns, version.alias("version_at")


@cache
def _ok(topic: Topic) -> Column:
    """Return a condition: true if the fast path can accept the record.

    Expensive checks stand behind cheap conditions that are rarely true. Bytes are searched before texts, because
    searching a text takes five times as long and bytes must first be converted.
    """
    # a blank in their place: what stands on both sides does not become one escape
    unescaped = f"regexp_replace(string(value), {_literal(ESCAPED_BACKSLASH)}, ' ')"
    odd_escapes = [f"{unescaped} RLIKE {_literal(each)}" for each in (ESCAPED_CONTROL, LONE_SURROGATE, ESCAPED_LETTER)]
    broken = [
        "NOT _is_object",
        "NOT is_valid_utf8(string(value))",
        # \, then \u \b \f
        "contains(value, X'5C') AND (contains(value, X'5C75') OR contains(value, X'5C62') OR contains(value, X'5C66'))"
        f" AND ({' OR '.join(odd_escapes)})",
        "contains(value, X'7F')",
        f"contains(value, X'C2') AND string(value) RLIKE {_literal(CONTROL_PATTERN)}",
        f"string(key) IS DISTINCT FROM string(_json.{topic.key_field})",
        _may_be_no_text(topic),
    ]
    for field in topic.fields:
        value = f"_json.{field.name}"
        if not field.nullable:
            broken.append(f"{value} IS NULL")
        if field.type == "string":
            longer = f"coalesce(octet_length({value}), 0) > {field.max_length}"
            broken.append(f"{longer} AND char_length({value}) > {field.max_length}")
        if field.text_format is not None:
            is_other = f"{_converted(field)} IS NULL"
            if field.type == "timestamp":
                is_other = f"NOT ({_has_form(value, TIMESTAMP.pattern)}) OR {is_other}"
            broken.append(f"{value} IS NOT NULL AND ({is_other})" if field.nullable else is_other)
    broken.append(f"NOT ({_is_bounded(topic, _converted(topic.field(topic.version_field)))})")
    is_broken = " OR ".join(f"({each})" for each in broken)
    version = "coalesce(accepted_at, kafka_timestamp)"
    tombstone = f"coalesce({_IS_ID} AND {version} IS NOT NULL AND {_is_bounded(topic, version)}, false)"
    return F.expr(f"CASE WHEN deleted THEN {tombstone} ELSE NOT coalesce({is_broken}, true) END")


def _is_bounded(topic: Topic, version: str) -> str:
    """Return a condition: true if the version is not too late for the time of its record; null without a time."""
    if topic.clock_tolerance is None:
        return "true"
    tolerance_us = topic.clock_tolerance // dt.timedelta(microseconds=1)
    return f"unix_micros({version}) - unix_micros(kafka_timestamp) <= {tolerance_us}"


def _may_be_no_text(topic: Topic) -> str:
    """Return a condition: true if a string or a decimal may be another type in JSON, which from_json makes a string.

    Such a string begins like a number, a boolean, an object or an array, or with the quote of "Infinity". Only then the
    whole value is searched for a field whose value does not begin with a quote. Times and dates have a form of which no
    JSON number is.
    """
    names = [field.name for field in topic.fields if field.type in ("string", "decimal")]
    firsts = b'-0123456789tf{["'.hex()
    # the first byte: taking the first character would scan the whole text
    begins = " OR ".join(f"coalesce(contains(X'{firsts}', left(binary(_json.{name}), 1)), false)" for name in names)
    sent = rf'"({"|".join(names)})"\s*:\s*[^"\sn]'
    return f"({begins}) AND string(value) RLIKE {_literal(sent)}"


def _literal(pattern: str) -> str:
    """Return a regular expression as a literal of Spark's SQL, with backslashes escaped."""
    return "'" + pattern.replace("\\", "\\\\") + "'"


def day_of(instant: Column, timezone: str) -> Column:
    """Return the date in the pipeline's time zone. The session's time zone must be UTC."""
    return F.to_date(F.from_utc_timestamp(instant, timezone))


def to_records(details: DataFrame, definition: Definition) -> DataFrame:
    """Return joined rows as records for Spark's Kafka sink: key, value (null for a tombstone), headers.

    Timestamps of the stream keep the text they were sent with, which the contract has checked.
    """
    return details.select(*_record_columns(definition))


def to_record_columns(details: DataFrame, definition: Definition) -> DataFrame:
    """Return joined rows as records: `key`, `value`, and a column with the name and the value of each header."""
    return details.select(*_sent_columns(definition).values())


@cache  # hundreds of calls to the JVM: without the cache they would add 0.1 s to every batch
def _sent_columns(definition: Definition) -> dict[str, Column]:
    """Return the columns of a record by name, all of bytes: key, value, and the headers. Null: no value, no header."""
    sources = {c.output: c for c in definition.columns}
    fields = [
        _output_field(definition, sources[f.name]).alias(f.name)
        if f.name in sources
        else F.lit(None).cast("long").alias(f.name)
        for f in definition.output.fields
    ]
    # a tombstone has no value, so its version is in a header; as its text, which may be of a year before in UTC
    without_text = F.when(F.col("deleted"), _rfc3339(F.col("version_at")))
    value = F.to_json(F.struct(*fields), {"ignoreNullFields": "false"})
    of = definition.source_header
    columns = {
        "key": F.col(definition.stream.key_column),
        "value": F.when(~F.col("deleted"), value),
        h.EVENT_ID: F.col("event_id"),
        h.ACCEPTED_AT: F.coalesce(F.col("accepted_text"), without_text),
        of("stream"): _coordinates(definition.stream, "partition", "offset"),
        of("table"): _coordinates(definition.table, "table_partition", "table_offset"),
        h.TRACEPARENT: F.col("traceparent"),
    }
    return {name: column.cast("string").cast("binary").alias(name) for name, column in columns.items()}


@cache
def _record_columns(definition: Definition) -> tuple[Column, ...]:
    columns = _sent_columns(definition)
    *headers, traceparent = [_header(name, columns[name]) for name in [*columns][2:]]
    every = F.array(*headers)
    # most records have all headers but that of a trace; array_compact uses a lambda, which Spark does not compile
    has_all = columns[h.EVENT_ID].isNotNull() & columns[h.ACCEPTED_AT].isNotNull() & F.col("table_offset").isNotNull()
    compact = F.when(has_all, every).otherwise(F.array_compact(every))
    traced = F.concat(compact, F.array(traceparent))
    return (
        columns["key"],
        columns["value"],
        F.when(F.col("traceparent").isNull(), compact).otherwise(traced).alias("headers"),
    )


def _header(name: str, value: Column) -> Column:
    """Return a header for Spark's Kafka sink; null if the value is null."""
    return F.when(value.isNotNull(), F.struct(F.lit(name).alias("key"), value.alias("value")))


def _coordinates(topic: Topic, partition: str, offset: str) -> Column:
    """Return topic/partition/offset; null without a record."""
    return F.concat(F.lit(f"{topic.name}/"), F.col(partition), F.lit("/"), F.col(offset))


def _output_field(definition: Definition, column: OutputColumn) -> Column:
    if column.side == "table":
        return _json_value(F.col(definition.column_name(column)), definition.table.field(column.source))
    field = definition.stream.field(column.source)
    return F.col(f"{field.column}_text") if field.type == "timestamp" else _json_value(F.col(field.column), field)


def _json_value(value: Column, field: Field) -> Column:
    """Return a value in the form in which `to_json` writes it as the contract says."""
    if field.type == "timestamp":
        return _rfc3339(value)
    return value.cast("string") if field.text_format else value  # plain digits: the session is in ANSI mode


def _rfc3339(instant: Column) -> Column:
    return F.date_format(instant, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")
