"""The fast path: parses many JSON values of a topic into columns, and leaves the unusual ones to the slow path."""

import datetime as dt
import re

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json
from pyarrow.lib import ArrowInvalid

from include.contracts.fields import CONTROL_PATTERN, Field
from include.contracts.topics import Topic
from include.contracts.validation import MAX_DEPTH
from include.contracts.versions import END_MS, FIRST_MS
from spark_jobs.decoding.arrow_rows import TIMES, array, arrow_type

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

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._schema = pa.schema({field.name: arrow_type(field) for field in topic.fields})
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
        return pa.Table.from_arrays(columns, schema=self._schema), array(right)


def _converted(texts: pa.ChunkedArray, field: Field) -> pa.ChunkedArray:
    return _instants(texts) if field.type == "timestamp" else texts.cast(arrow_type(field))


def _instants(texts: pa.ChunkedArray) -> pa.ChunkedArray:
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
