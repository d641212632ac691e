"""Any record that a producer can put into a topic: nearly right, at the edge of what a type holds, or no record at all.

One place for all tests that ask whether something is total: readers, tables, archive, rebuild, pages.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from include.contracts import headers as h
from include.contracts.fields import Field
from include.contracts.topics import Topic

Headers = Sequence[tuple[str, bytes | None]]
GOOD_TIMES = ("2026-11-20T09:30:00.000Z", "2026-11-20T01:00:00+09:00", "2026-11-19T15:00:00Z")


class AnyRecord(NamedTuple):
    """A record as bytes. `timestamp_ms` is Kafka's, which any producer sets."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = 1_795_167_000_000

    @property
    def accepted(self) -> str | None:
        """The first `accepted-at` as text; None when there is none."""
        found = [value for name, value in self.headers if name == h.ACCEPTED_AT]
        return None if not found or found[0] is None else found[0].decode(errors="replace")


# Around every border that something has: of the contract, of Python, PostgreSQL, Arrow, pandas, Kafka and Spark.
EDGE_TIMES = (
    "0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00-14:59",
    "0001-01-02T00:00:00Z", "1582-10-10T00:00:00Z", "1677-09-21T00:12:43Z", "1899-12-31T23:59:59Z",
    "1969-12-31T23:59:59.999999Z", "1969-12-31T23:59:59-14:59", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00+14:59",
    "2024-02-29T23:59:59.999999+14:59", "2026-02-29T00:00:00Z", "2026-02-30T00:00:00Z", "2026-11-20T24:00:00Z",
    "2026-06-30T23:59:60Z", "2026-03-29T02:30:00+01:00", "2026-11-20T09:30:00", "2026-11-20 09:30:00Z", "2026-11-20",
    "2026-11-20T09:30:00Z\n", "2026-11-20T09:30:00.1234567Z", "2038-01-19T03:14:08Z", "2261-12-31T23:59:59.999999Z",
    "2261-12-31T23:59:59.999999-14:59", "2262-01-01T00:00:00Z", "2262-01-01T00:00:00+14:59", "2262-04-11T23:47:16Z",
    "9998-12-31T23:59:59Z", "9999-12-17T00:00:00Z", "9999-12-31T20:00:00Z", "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59.999999-14:59", "+10000-01-01T00:00:00Z", "-0001-01-01T00:00:00Z", "gestern", "",
)  # fmt: skip
TIMES = st.one_of(
    st.sampled_from(GOOD_TIMES),
    st.sampled_from(EDGE_TIMES),
    st.datetimes().map(lambda at: at.isoformat() + "Z"),
)
EDGE_NUMBERS = (0, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**19, 10**20, 10**30)
NUMBERS = st.one_of(st.integers(1, 30), st.sampled_from(EDGE_NUMBERS))
EDGE_TEXTS = (
    "", " ", "\0", "a\0b", "\ud800", "\udc00\ud800", "\ufffd", "\u2028", "\x7f", "\x85", "\t\r\n", "a\n", "'\"\\",
    "\\N", "😀" * 64, "가" * 64, "가" * 65, "{}", "NULL", "%s %(day)s", "\u202e", "e\u0301",
)  # fmt: skip
TEXTS = st.one_of(st.text(max_size=12), st.sampled_from(EDGE_TEXTS))
ODD = st.sampled_from([None, True, 1.5, 7.0, [], {}, [[[]]], {"a": {"b": None}}, "7", -0.0])
ODD_VALUES = (
    b"", b" ", b"null", b"[]", b"{}", b"[{}]", b"{nonsense", b"\xff\xfe", b"\0", b"7", b'"text"', b"\xef\xbb\xbf{}",
    b"{" * 2_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000, b'{"id":' + b"9" * 5_000 + b"}", b'{"id":1}{"id":2}',
    b'{"id":1,"id":2}', b"NaN", b'{"id":NaN}', b'{"id":1e400}', b'{"title":"' + b"x" * 900_000 + b'"}',
)  # fmt: skip
ODD_KEYS = (
    None, b"", b"0", b"-0", b"-1", b"+7", b" 7", b"7 ", b"007", b"7.0", b"7e0", b"0x7", b"1_0", b"\0", b"\xff", b"x",
    b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808", b"-9223372036854775809",
    b"12345678901234567890", b"99999999999999999999", b"00000000000000000007", b"0" * 20 + b"9" * 20, b"0" * 5_000,
    b"9" * 5_000, "７".encode(), "²".encode(), b"x" * 60_000,
)  # fmt: skip
ODD_HEADER_VALUES = (
    None, b"", b" ", b"\0", b"\xff\xfe", b"a\0b", b"x\n", b"-1", b"0", b"1", b"2147483648", b"4294967296",
    b"9223372036854775807", b"9223372036854775808", b"1" * 30, b"9" * 5_000, b"1.5", b"e" * 255, b"e" * 256,
    "가".encode() * 255, b"x" * 200_000, "\u202e".encode(), b"\x07",
)  # fmt: skip
HEADER_NAMES = (
    h.EVENT_ID, h.ACCEPTED_AT, h.REPLAYED_AT, h.BOARD_TOPIC, h.BOARD_PARTITION, h.BOARD_OFFSET, h.MEMBER_TOPIC,
    h.MEMBER_PARTITION, h.MEMBER_OFFSET, "", "x",
)  # fmt: skip
# Kafka's own "no timestamp" is -1. A broker takes any number that is not ahead of its clock.
EDGE_TIMESTAMPS_MS = (
    -1, 0, 1, -2, -86_400_000, -62_135_596_800_000, -62_135_596_800_001, -(10**13), 253_402_300_799_999,
    253_402_300_800_000, 9_214_646_400_000, 10**15, 9_223_372_036_854_775, 9_223_372_036_854_776, 2**63 - 1, -(2**63),
)  # fmt: skip
TIMESTAMPS_MS = st.one_of(
    st.just(AnyRecord._field_defaults["timestamp_ms"]),
    st.sampled_from(EDGE_TIMESTAMPS_MS),
    st.integers(-(2**63), 2**63 - 1),
)


def _field(field: Field) -> st.SearchStrategy[Any]:
    right = {"long": NUMBERS, "timestamp": TIMES, "string": TEXTS}[field.type]
    return st.one_of(right, right, right, ODD)


def _good(field: Field, number: int) -> Any:
    if field.nullable:
        return None
    return {"long": number, "timestamp": GOOD_TIMES[0], "string": f"text {number}"}[field.type]


@st.composite
def values(draw: st.DrawFn, topic: Topic) -> tuple[object, bytes | None]:
    """The id that the value names, if any, and its bytes; None for a tombstone."""
    kind = draw(st.integers(0, 9))
    number = draw(st.integers(1, 30))
    if kind == 0:
        return number, None
    if kind == 1:
        return number, draw(st.one_of(st.sampled_from(ODD_VALUES), st.binary(max_size=40)))
    value = {field.name: _good(field, number) for field in topic.fields}
    if kind > 3:  # one or two fields are odd: more would hide each other
        for field in draw(st.lists(st.sampled_from(topic.fields), min_size=1, max_size=2)):
            value[field.name] = draw(_field(field))
            if draw(st.integers(0, 19)) == 0:
                del value[field.name]
    escaped = draw(st.booleans())
    return value.get(topic.key_field), json.dumps(value, ensure_ascii=escaped).encode("utf-8", "surrogatepass")


def header_values() -> st.SearchStrategy[bytes | None]:
    """Right for one header or another, or for none."""
    return st.one_of(
        TIMES.map(str.encode),
        st.sampled_from(ODD_HEADER_VALUES),
        st.integers(0, 99).map(lambda n: str(n).encode()),
        st.text(min_size=1, max_size=8).map(lambda text: text.encode("utf-8", "surrogatepass")),
    )


def header_lists() -> st.SearchStrategy[list[tuple[str, bytes | None]]]:
    """Headers, some of them more than once."""
    return st.lists(st.tuples(st.sampled_from(HEADER_NAMES), header_values()), max_size=6)


@st.composite
def records(draw: st.DrawFn, topic: Topic, timestamps_ms: st.SearchStrategy[int] = TIMESTAMPS_MS) -> AnyRecord:
    """A record of the topic: most have the key that their value names."""
    named, value = draw(values(topic))
    key = str(named).encode("utf-8", "surrogatepass") if draw(st.integers(0, 4)) else draw(st.sampled_from(ODD_KEYS))
    found = draw(header_lists()) if draw(st.booleans()) else []
    if topic.name == "board-detail" and draw(st.booleans()):  # as the join's, so that the rest of it is looked at
        number = draw(st.integers(0, 30))
        found = [(h.BOARD_PARTITION, b"0"), (h.BOARD_OFFSET, str(number).encode()), *found]
    return AnyRecord(topic.name, key, value, found, draw(timestamps_ms))
