"""Decodes records with Arrow: by column on the fast path, one by one with `read_record` on the slow path.

The batch jobs, the archive and the driver of the stream decode with it (`RawColumns`). `JsonColumns` parses the values.
The functions before these work on rows in Arrow's columns, and give the types of those columns.
"""

import datetime as dt
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
from confluent_kafka import Message as KafkaMessage
from pyarrow.lib import ArrowInvalid

from include.contracts import headers as h
from include.contracts.definition import Definition
from include.contracts.fields import (
    CONTROL_PATTERN,
    END_INSTANT,
    FIRST_INSTANT,
    LONG_MAX,
    LONG_MIN,
    TIMESTAMP,
    Field,
)
from include.contracts.topics import Topic
from include.contracts.validation import MAX_DEPTH, Reject, parse_timestamp
from include.contracts.versions import END_MS, FIRST_MS, NEWEST_FIRST
from include.kafka.record_table import record_times
from spark_jobs.decoding.reference import Message, TableRow, iter_records, plain_fields, read_record

TIMES = pa.timestamp("us", "UTC")
_TYPES = {"long": pa.int64(), "string": pa.string(), "timestamp": TIMES, "boolean": pa.bool_(), "date": pa.date32()}
_UNPRINTABLE = re.sub(r"\\u([0-9a-f]{4})", r"\\x{\1}", h.UNPRINTABLE_PATTERN)  # as RE2 writes code points
_FIRST, _END = (pa.scalar(each, pa.timestamp("ms", "UTC")) for each in (FIRST_INSTANT, END_INSTANT))
_SOURCE = "^{}/(?P<partition>{})/(?P<offset>{})$".format(*h.SOURCE_PATTERNS)


def arrow_type(field: Field) -> pa.DataType:
    """Return the type of a field's values."""
    return pa.decimal128(field.precision, field.scale) if field.type == "decimal" else _TYPES[field.type]


def begins_run(values: pa.Array) -> pa.Array:
    """Return a mask of the values that differ from the one before; the first is true. No value may be null."""
    if not len(values):
        return pa.array([], pa.bool_())
    return pa.concat_arrays([pa.array([True]), pc.not_equal(values[1:], values[:-1])])


def by_repetition(rows: pa.Table, key: str) -> tuple[pa.Table, pa.Table]:
    """Split the rows: those whose key occurs once, as nearly all do, and those whose key occurs more than once."""
    counts = pc.value_counts(rows[key])
    several = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
    if not len(several):
        return rows, rows.slice(0, 0)
    repeats = pc.is_in(rows[key], several)
    return rows.filter(pc.invert(repeats)), rows.filter(repeats)


def newest_versions(rows: pa.Table, key: str, order: Sequence[tuple[str, str]] = NEWEST_FIRST) -> pa.Table:
    """Return one row per key, in any order: its newest version, which may be a tombstone. The table has one chunk.

    `order` has the names of the columns that order versions, if they differ from those of `NEWEST_FIRST`.
    """
    single, repeated = by_repetition(rows, key)
    repeated = repeated.sort_by([(key, "ascending"), *order])
    return pa.concat_tables([single, repeated.filter(begins_run(array(repeated[key])))]).combine_chunks()


def first_header(headers: pa.Array, name: str) -> pa.Array:
    """Return the first header of that name of each record, as bytes; null for a record without one."""
    flat = headers.flatten()
    is_it = pc.equal(flat.field("key"), name).fill_null(False)
    owners, found = pc.list_parent_indices(headers).filter(is_it), flat.field("value").filter(is_it)
    is_first = begins_run(owners)
    owners, found = owners.filter(is_first), found.filter(is_first)
    if len(owners) == len(headers):
        return found
    return found.take(pc.index_in(pa.array(range(len(headers)), owners.type), value_set=owners))


def event_ids(headers: pa.Array) -> pa.Array:
    """Return the event id of each record, as `include.contracts.headers` defines it; null for a record without one."""
    values = first_header(headers, h.EVENT_ID)
    try:
        found = values.cast(pa.string())
    except ArrowInvalid:  # a value is not UTF-8
        return pa.array([h.event_id(value) for value in values.to_pylist()], pa.string())
    length = pc.utf8_length(found)
    is_one = pc.and_(pc.greater(length, 0), pc.less_equal(length, h.MAX_EVENT_ID_LENGTH))
    is_one = pc.and_not(is_one, pc.match_substring_regex(found, _UNPRINTABLE))
    return pc.if_else(is_one, found, pa.scalar(None, pa.string()))


def accepted_times(headers: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the text and the instant of each record's header `accepted-at`; null if it is missing or invalid."""
    values = first_header(headers, h.ACCEPTED_AT)
    try:
        texts = values.cast(pa.string())
        texts = pc.if_else(pc.match_substring_regex(texts, TIMESTAMP.pattern), texts, pa.scalar(None, pa.string()))
        return texts, _instants(texts)
    except ArrowInvalid:  # a value is not UTF-8, or of the 30th of February
        found = [h.accepted_at(value) for value in values.to_pylist()]
        instants = [None if text is None else parse_timestamp(text) for text in found]
        return pa.array(found, pa.string()), pa.array(instants, TIMES)


def in_years(timestamps: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return times of records, in milliseconds, that are in the contract's range of years, and null for others."""
    is_in = pc.and_(pc.greater_equal(timestamps, _FIRST), pc.less(timestamps, _END))
    return pc.if_else(is_in, timestamps, None).cast(TIMES)


def days_of(instants: pa.Array | pa.ChunkedArray, timezone: str) -> pa.Array | pa.ChunkedArray:
    """Return the date of each instant in a time zone."""
    return pc.local_timestamp(instants.cast(pa.timestamp("us", timezone))).cast(pa.date32())


def coordinates(sources: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the partitions (int32) and offsets (int64) of texts topic/partition/offset; null for an invalid text."""
    partitions, offsets = pc.extract_regex(sources, _SOURCE).flatten()
    return partitions.cast(pa.string()).cast(pa.int32()), offsets.cast(pa.string()).cast(pa.int64())


def text_column(field: Field) -> str:
    """Return the name of the column with a field's text as it was sent."""
    return f"{field.column}_text"


def array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return the column as one chunk."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def table_schema(definition: Definition) -> pa.Schema:
    """Return the schema of the table's versions: key, columns of the result, coordinates, version."""
    table = definition.table
    key = table.field(table.key_field)
    kept = [table.field(each.source) for each in definition.columns if each.side == "table"]
    kept = [field for field in table.fields if field in kept and field != key]
    return pa.schema([
        *((field.column, arrow_type(field)) for field in (key, *kept)), ("partition", pa.int32()),
        ("offset", pa.int64()), ("version_at", TIMES), ("deleted", pa.bool_()),
    ])  # fmt: skip


def candidate_schema(definition: Definition) -> pa.Schema:
    """Return the schema of the day's stream records before versions are chosen: key, result's columns, coordinates."""
    stream = definition.stream
    kept = [stream.key_field, definition.join_field]
    kept += [each.source for each in definition.columns if each.side == "stream"]
    return pa.schema([
        *((stream.field(name).column, arrow_type(stream.field(name))) for name in dict.fromkeys(kept)),
        ("version_at", TIMES), ("partition", pa.int32()), ("offset", pa.int64()), ("event_id", pa.string()),
        ("replayed", pa.bool_()),
    ])  # fmt: skip


def places_of(partitions: pa.ChunkedArray | pa.Array, offsets: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Pack partition and offset into one 64-bit number, for lookups. The offset has 44 bits: 17 trillion records."""
    joined = pc.add_checked(pc.shift_left(partitions.cast(pa.int64()), 44), offsets)
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


CHUNK = 8_192  # values that are parsed together; a value that does not parse sends its chunk to the slow path

_CONTROL = re.sub(r"\\u([0-9a-f]{4})", r"\\x{\1}", CONTROL_PATTERN)  # as RE2 writes code points
_CONTROL_SIGNS = (b"\\u", b"\\b", b"\\f", b"\x7f", b"\xc2")
_LONG = 1 << 16
_MICROSECOND = dt.timedelta(microseconds=1)
_NANOSECONDS = pa.timestamp("ns", "UTC")  # Arrow's parser refuses more digits than the type has
_DAY_US = 24 * 60 * 60 * 1_000_000  # the first time of the contract is less than a day before 1970
_NO_NUMBER = re.compile(rb"[:,\[][ \t\r\n]*-?(?:NaN|Inf)")  # Arrow's parser accepts these, but they are not JSON


class JsonColumns:
    """Decodes the fields of a topic's contract. Accepted values keep the contract; others may keep it too."""

    def __init__(self, topic: Topic, texts: Collection[Field] = ()) -> None:
        """The table has the texts of some fields too, as they were sent, with the names of `text_column`."""
        self._topic = topic
        self._texts = texts
        fields = [pa.field(field.name, arrow_type(field)) for field in topic.fields]
        self._schema = pa.schema([*fields, *(pa.field(text_column(field), pa.string()) for field in texts)])
        # times, decimals and dates are read as texts first, because Arrow's parser does not check their format
        types = {field.name: pa.string() if field.text_format else arrow_type(field) for field in topic.fields}
        self._parsed_schema = pa.schema(types)
        self._known = pa_json.ParseOptions(explicit_schema=self._parsed_schema, unexpected_field_behavior="error")
        self._any = pa_json.ParseOptions(explicit_schema=self._parsed_schema, unexpected_field_behavior="ignore")

    def read(self, keys: pa.Array, values: pa.Array, times: pa.Array | None) -> tuple[pa.Table, pa.Array]:
        """Return the fields of accepted values, by JSON name, and a mask: true if accepted.

        `keys` and `values` (binary) are of the same records, and so are `times`, in milliseconds, which bound the
        versions; None if the topic's versions have no bound. A value is accepted only if its id equals the key. The
        table has one row per accepted value.
        """
        tables, masks = [self._schema.empty_table()], [pa.array([], pa.bool_())]
        for first in range(0, len(values), CHUNK):
            table, mask = self._read_chunk(keys[first : first + CHUNK], values[first : first + CHUNK])
            tables.append(table)
            masks.append(mask)
        fields, mask = pa.concat_tables(tables), pa.concat_arrays(masks)
        if times is None:
            return fields, mask
        is_bounded = self._is_bounded(fields, times.filter(mask))
        if pc.all(is_bounded).as_py():  # nearly always
            return fields, mask
        return fields.filter(is_bounded), pc.replace_with_mask(mask, mask, is_bounded)

    def _is_bounded(self, fields: pa.Table, times: pa.Array) -> pa.Array:
        """Return a mask: true for a version that is not too late for the time of its record."""
        assert self._topic.clock_tolerance is not None
        milliseconds = times.cast(pa.int64())
        is_in_years = pc.and_(pc.greater_equal(milliseconds, FIRST_MS), pc.less(milliseconds, END_MS))
        in_years = pc.if_else(is_in_years, milliseconds, pa.scalar(None, pa.int64()))
        latest = pc.add(pc.multiply(in_years, 1000), self._topic.clock_tolerance // _MICROSECOND)
        versions = fields[self._topic.version_field].cast(pa.int64())
        return array(pc.less_equal(versions, latest).fill_null(False))

    def _read_chunk(self, keys: pa.Array, values: pa.Array) -> tuple[pa.Table, pa.Array]:
        is_plain = pa.repeat(True, len(values))
        try:
            values.cast(pa.string())  # raises if a value is not UTF-8; the parser checks only the fields that it keeps
            text = _lines(values)
            parsed = self._of_known_fields(text, len(values)) if _are_objects(values) else None
            if parsed is None:
                if not _are_plain(text, values):
                    is_plain = pa.array(map(_is_plain, values.to_pylist()), pa.bool_())
                    text = _lines(values.filter(is_plain))
                parsed = self._parsed(text, is_plain.true_count, self._any)
            fields, fast_path_mask = self._checked(
                parsed, keys.filter(is_plain).cast(pa.string()), _may_hold_controls(text)
            )
        except ArrowInvalid:  # a value does not parse, and Arrow does not say which
            return self._schema.empty_table(), pa.repeat(False, len(values))
        if pc.all(fast_path_mask).as_py():  # nearly always
            return fields, is_plain
        return fields.filter(fast_path_mask), pc.replace_with_mask(is_plain, is_plain, fast_path_mask)

    def _of_known_fields(self, text: bytes, count: int) -> pa.Table | None:
        """Parse the lines; None if one of them has other fields than the contract's, or other types.

        The parser stops at the first unexpected field before it descends into it, so nesting need not be checked.
        """
        try:
            return self._parsed(text, count, self._known)
        except ArrowInvalid:
            return None

    def _parsed(self, text: bytes, count: int, options: pa_json.ParseOptions) -> pa.Table:
        if not count:
            return self._parsed_schema.empty_table()
        reading = pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
        parsed = pa_json.read_json(pa.BufferReader(text), reading, options)
        if parsed.num_rows != count:
            raise ArrowInvalid("a value holds more than one object")
        return parsed.combine_chunks()

    def _checked(self, parsed: pa.Table, keys: pa.Array, look_for_controls: bool) -> tuple[pa.Table, pa.Array]:
        """Return the fields with their types, and a mask: true for a value that keeps the contract."""
        right = pc.equal(parsed[self._topic.key_field].cast(pa.string()), keys).fill_null(False)
        columns = []
        for field in self._topic.fields:
            values = parsed[field.name]
            keeps_contract = _keeps_contract(values, field, look_for_controls)
            if field.text_format is not None:
                if not pc.all(keeps_contract).as_py():
                    values = pc.if_else(keeps_contract, values, pa.scalar(None, pa.string()))
                values = _converted(values, field)  # raises for the 30th of February
            columns.append(values)
            right = pc.and_(right, keeps_contract)
        columns += [parsed[field.name] for field in self._texts]
        return pa.Table.from_arrays(columns, schema=self._schema), array(right)


def _converted(texts: pa.ChunkedArray, field: Field) -> pa.ChunkedArray:
    return _instants(texts) if field.type == "timestamp" else texts.cast(arrow_type(field))


def _instants(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Convert times of the contract. Digits beyond microseconds are cut, which is rounding down, before 1970 too."""
    nanoseconds = pc.ascii_upper(texts).cast(_NANOSECONDS).cast(pa.int64())
    rounded_down = pc.subtract(pc.divide(pc.add(nanoseconds, _DAY_US * 1000), 1000), _DAY_US)  # it truncates towards 0
    return rounded_down.cast(TIMES)


def _lines(values: pa.Array) -> bytes:
    """Return the values, one per line; empty if one is null."""
    return b"" if values.null_count else b"\n".join(values.to_pylist())


def _are_objects(values: pa.Array) -> bool:
    """True if each value begins with `{`, ends with `}`, and is short.

    Then two values can't form one object together: after an inner `}` no `{` may follow directly.
    """
    return bool(
        len(values)
        and not values.null_count
        and pc.all(pc.and_(pc.starts_with(values, b"{"), pc.ends_with(values, b"}"))).as_py()
        and pc.max(pc.binary_length(values)).as_py() < _LONG
    )


def _are_plain(text: bytes, values: pa.Array) -> bool:
    """True if `_is_plain` is true for each of the values, checked for all at once."""
    few = len(values) + MAX_DEPTH
    return (
        _are_objects(values)
        and (text.count(b"{") + text.count(b"[") < few or max(map(_brackets, values.to_pylist())) <= MAX_DEPTH)
        and not _may_hold_no_number(text)
    )


def _is_plain(value: bytes | None) -> bool:
    """True if the value begins and ends like an object, and is neither long nor deep. The parser has no limits."""
    return (
        value is not None
        and value[:1] == b"{"
        and value[-1:] == b"}"
        and len(value) < _LONG
        and _brackets(value) <= MAX_DEPTH
        and not _may_hold_no_number(value)
    )


def _brackets(value: bytes) -> int:
    return value.count(b"[") + value.count(b"{")


def _may_hold_no_number(text: bytes) -> bool:
    return (b"NaN" in text or b"Inf" in text) and _NO_NUMBER.search(text) is not None


def _may_hold_controls(text: bytes) -> bool:
    """True if the text may hold a control character: an escape, DEL, or the first byte of U+0080 to U+009F.

    The parser refuses all others.
    """
    escaped = b"\\" in text  # searched first: single bytes are found many times as fast as pairs
    return any(sign in text for sign in _CONTROL_SIGNS if escaped or sign[:1] != b"\\")


def _keeps_contract(values: pa.ChunkedArray, field: Field, look_for_controls: bool) -> pa.ChunkedArray:
    if field.type == "string":
        right = pc.less_equal(pc.utf8_length(values), field.max_length)
        if look_for_controls:
            right = pc.and_not(right, pc.match_substring_regex(values, _CONTROL))
    elif field.text_format is not None:
        right = pc.match_substring_regex(values, field.text_format.pattern)
    else:
        right = pc.or_(pc.is_valid(values), field.nullable)
    return right.fill_null(field.nullable)


_DECIMAL = "^(0|-?[1-9][0-9]{0,18})$"  # the form that `record_id` accepts
_READ = ("key", "value", "headers")


class RawColumns:
    """Decodes records of a topic into rows with the given columns; the key and the version are always included.

    Rows have the key, the other columns, `version_at` and `deleted`, then the records' own columns except key, value
    and headers. A tombstone has only its key. The order of the rows is unspecified.
    """

    def __init__(self, topic: Topic, columns: Collection[str], with_texts: bool = False) -> None:
        """With `with_texts`, a column for the text of each timestamp follows the version."""
        self._topic = topic
        self._texts = [field for field in topic.fields if field.type == "timestamp"] if with_texts else []
        self._key = topic.field(topic.key_field)
        self._version = topic.field(topic.version_field)
        self._kept = [field for field in topic.fields if field.column in columns and field != self._key]
        self._json = JsonColumns(topic, self._texts)
        self.looked_at = 0  # records that took the slow path

    def read(self, records: pa.Table) -> tuple[pa.Table, list[Reject]]:
        """Return the rows of the records, and the rejects. Columns besides those of RAW are copied to the rows."""
        records = records.combine_chunks()
        carried = records.drop_columns([name for name in _READ if name in records.column_names])
        return self.decode(
            array(records["key"]), array(records["value"]), carried, lambda indexes: iter_records(records.take(indexes))
        )

    def read_messages(self, messages: Sequence[KafkaMessage]) -> tuple[pa.Table, list[Reject]]:
        """Return the rows of records that a consumer returned, and the rejects. Rows have their coordinates, too."""
        keys = pa.array([message.key() for message in messages], pa.binary())
        values = pa.array([message.value() for message in messages], pa.binary())
        carried = pa.table({
            "partition": pa.array([message.partition() for message in messages], pa.int32()),
            "offset": pa.array([message.offset() for message in messages], pa.int64()),
            "timestamp": record_times(messages),
        })  # fmt: skip
        return self.decode(keys, values, carried, lambda indexes: (messages[n] for n in indexes.to_pylist()))

    def decode(
        self, keys: pa.Array, values: pa.Array, carried: pa.Table, records_at: Callable[[pa.Array], Iterable[Message]]
    ) -> tuple[pa.Table, list[Reject]]:
        """Return the rows of records with these keys and values, and the rejects. `carried` is copied to the rows.

        `carried` has the column `timestamp`, the records' times in milliseconds, unless the topic's versions have no
        bound. `records_at` returns the records with these indexes, for the slow path.
        """
        times = array(carried["timestamp"]) if self._topic.clock_tolerance is not None else None
        fields, fast_path_mask = self._json.read(keys, values, times)
        if pc.all(fast_path_mask).as_py():  # nearly always
            return self._plain(fields, carried), []
        needs_slow_path = pc.indices_nonzero(pc.invert(fast_path_mask))
        self.looked_at += len(needs_slow_path)
        rows, rejects = self._one_by_one(records_at(needs_slow_path), carried.take(needs_slow_path))
        return pa.concat_tables([self._plain(fields, carried.filter(fast_path_mask)), rows]), rejects

    def _plain(self, fields: pa.Table, carried: pa.Table) -> pa.Table:
        columns = [fields[field.name] for field in (self._key, *self._kept, self._version)]
        texts = [fields[text_column(field)] for field in self._texts]
        columns += [pa.repeat(False, fields.num_rows), *texts, *carried.columns]
        return pa.Table.from_arrays(columns, schema=self._schema(carried))

    def _one_by_one(self, records: Iterable[Message], carried: pa.Table) -> tuple[pa.Table, list[Reject]]:
        rows: list[TableRow] = []
        rejects: list[Reject] = []
        texts: list[Mapping[str, Any]] = []
        row_indexes = []
        for number, record in enumerate(records):
            match read_record(record, self._topic):
                case Reject() as rejected:
                    rejects.append(rejected)
                case row:
                    rows.append(row)
                    row_indexes.append(number)
                    texts.append(plain_fields(record.value(), self._topic) if self._texts else {})
        values: list[list[Any]] = [[row.key for row in rows]]
        values += [[row.values.get(field.column) for row in rows] for field in self._kept]
        values += [[row.version_at for row in rows], [row.deleted for row in rows]]
        values += [[each.get(field.name) for each in texts] for field in self._texts]
        schema = self._schema(carried)
        arrays = [pa.array(each, schema.field(number).type) for number, each in enumerate(values)]
        arrays += carried.take(pa.array(row_indexes, pa.int64())).columns
        return pa.Table.from_arrays(arrays, schema=schema), rejects

    def _schema(self, carried: pa.Table) -> pa.Schema:
        fields = [pa.field(field.column, arrow_type(field)) for field in (self._key, *self._kept)]
        texts = [pa.field(text_column(field), pa.string()) for field in self._texts]
        return pa.schema([
            *fields, pa.field("version_at", TIMES), pa.field("deleted", pa.bool_()), *texts, *carried.schema,
        ])  # fmt: skip


def longs(values: pa.Array) -> pa.Array:
    """Parse decimal texts; null for a text that is not a 64-bit integer."""
    digits = pc.if_else(pc.match_substring_regex(values, _DECIMAL), values, None).cast(pa.string())
    try:
        return digits.cast(pa.int64())
    except ArrowInvalid:  # a number is out of range
        numbers = (None if text is None else int(text) for text in digits.to_pylist())
        return pa.array([n if n is not None and LONG_MIN <= n <= LONG_MAX else None for n in numbers], pa.int64())
