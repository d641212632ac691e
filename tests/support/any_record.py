"""Generates any record that a producer can write: valid, nearly valid, at the limits of a type, or nonsense.

One place for all tests that ask whether something is total: readers, tables, archive, rebuild, pages.
"""

# mypy: disable-error-code="misc"

import datetime as dt
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME
from hypothesis import strategies as st

from include.contracts import headers as h
from include.contracts.fields import Field, decimal_example
from include.contracts.topics import Topic
from tests.support.examples import is_long

Headers = Sequence[tuple[str, bytes | None]]
GOOD_TIMES = ("2026-11-20T09:30:00.000Z", "2026-11-20T01:00:00+09:00", "2026-11-19T15:00:00Z")


class AnyRecord(NamedTuple):
    """A record as bytes. `timestamp_ms` is Kafka's, which any producer sets, or the broker."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int = 1_795_167_000_000

    @property
    def accepted(self) -> str | None:
        """Return the first `accepted-at` as text; None if there is none."""
        found = [value for name, value in self.headers if name == h.ACCEPTED_AT]
        return None if not found or found[0] is None else found[0].decode(errors="replace")


@dataclass(frozen=True)
class Message:
    """A record with its offset, with the interface of confluent_kafka's Message."""

    record: AnyRecord
    number: int

    def partition(self) -> int:
        """Return the partition."""
        return 0

    def offset(self) -> int:
        """Return the offset."""
        return self.number

    def key(self) -> bytes | None:
        """Return the key."""
        return self.record.key

    def value(self) -> bytes | None:
        """Return the value; None for a tombstone."""
        return self.record.value

    def timestamp(self) -> tuple[int, int]:
        """Return the timestamp's type, and milliseconds since 1970."""
        return TIMESTAMP_LOG_APPEND_TIME, self.record.timestamp_ms

    def headers(self) -> list[tuple[str, Any]] | None:
        """Return the headers as pairs of name and value."""
        return list(self.record.headers) or None


# Around every border that something has: of the contract, of Python, PostgreSQL, Arrow, pandas, Kafka and Spark.
EDGE_TIMES = (
    "0000-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00-14:59",
    "0001-01-02T00:00:00Z", "1582-10-10T00:00:00Z", "1677-09-21T00:12:43Z", "1899-12-31T23:59:59Z",
    "1969-12-31T23:59:59.999999Z", "1969-12-31T23:59:59-14:59", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00+14:59",
    "2024-02-29T23:59:59.999999+14:59", "2026-02-29T00:00:00Z", "2026-02-30T00:00:00Z", "2026-11-20T24:00:00Z",
    "2026-06-30T23:59:60Z", "2026-03-29T02:30:00+01:00", "2026-11-20T09:30:00", "2026-11-20 09:30:00Z", "2026-11-20",
    "2026-11-20T09:30:00Z\n", "2026-11-20T09:30:00Z\r", "2026-11-20T09:30:00Z\u2028",
    "2026-11-20T09:30:00.1234567Z", "2038-01-19T03:14:08Z", "2261-12-31T23:59:59.999999Z",
    "2261-12-31T23:59:59.999999-14:59", "2262-01-01T00:00:00Z", "2262-01-01T00:00:00+14:59", "2262-04-11T23:47:16Z",
    "9998-12-31T23:59:59Z", "9999-12-17T00:00:00Z", "9999-12-31T20:00:00Z", "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59.999999-14:59", "+10000-01-01T00:00:00Z", "-0001-01-01T00:00:00Z", "gestern", "",
    # Spark's largest and smallest instant, in every form that it reads, and what else it reads
    "+294247-01-10T04:00:54.775807Z", "+294247-01-10T04:00:54.775808Z", "+294247-01-10T18:00:54.775807+14:00",
    "+294247-01-10 04:00:54.775807", "+294247-1-10T4:0:54.775807UTC", "+294247-01", "+294247", "294247-01-10",
    "-290308-12-21T19:59:05.224192Z", "-290308-12-21T19:59:05.224191Z", "-290308-12-21T05:59:05.224192-14:00",
    "-290308-12-22", "+999999-01-01T00:00:00Z", "9999-12-31T23:59:59.999999-18:00", "0000-01-01T00:00:00+18:00",
    "2026", "2026-11", "2026-11-2", "12:30", "T12:30", "2026-11-20T09:30:00.123456789Z", "2026-11-20T09:30:00 GMT+9",
    "2026-11-20T09:30:00[Asia/Seoul]", "2026-11-20T09:30:00 Asia/Seoul", " 2026-11-20T09:30:00Z ", "epoch", "now",
)  # fmt: skip
_ZONES = ("Z", "", "+14:00", "-14:59", "+18:00", "-18:00", "UTC", "GMT+9", " Asia/Seoul", "+9", "+09:30:15")
_CYCLE_S, _CYCLE_YEARS = 146_097 * 86_400, 400  # the calendar repeats itself


def written(microseconds: int, separator: str, zone: str) -> str:
    """An instant of any year, as Spark reads it."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    cycle, rest = divmod(seconds, _CYCLE_S)
    at = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=rest)
    year = at.year + cycle * _CYCLE_YEARS
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{at:%m-%d}{separator}{at:%H:%M:%S}.{fraction:06d}{zone}"


TIMES = st.one_of(
    st.sampled_from(GOOD_TIMES),
    st.sampled_from(EDGE_TIMES),
    st.datetimes().map(lambda at: at.isoformat() + "Z"),
    st.builds(written, st.integers(-(2**63), 2**63 - 1), st.sampled_from("T "), st.sampled_from(_ZONES)),
)
EDGE_NUMBERS = (0, -1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**19, 10**20, 10**30)
NUMBERS = st.one_of(st.integers(1, 30), st.sampled_from(EDGE_NUMBERS))
EDGE_TEXTS = (
    "", " ", "\0", "a\0b", "\ud800", "\udc00\ud800", "\ud83d\\\ude00", "\ufffd", "\u2028", "\x7f", "\x85", "\t\r\n",
    "a\n", "'\"\\", "\\N", "😀" * 64, "가" * 64, "가" * 65, "{}", "NULL", "%s %(day)s", "\u202e", "e\u0301",
)  # fmt: skip
TEXTS = st.one_of(st.text(max_size=12), st.sampled_from(EDGE_TEXTS))
EDGE_DECIMALS = (
    "0", "-0", "0.0", "0.00", "-0.0", "-0.00", "1", "-1", "1.5", "1.50", "1.500", "-1.50", "0.01", "-0.01", "0.001",
    "0.0001", "-0.0001", "0.9999", "0.12345", "01", "-01", "00", "01.5", "+1", "+0", "1.", "-1.", ".5", "-.5", "-", "",
    ".", " 1", "1 ", "1\n", "1\r", "1\u2028", "1\0", "\u06631", "１", "1,5", "1_0", "1e2", "1E2", "1e-2", "0e0", "0x1",
    "1f", "1d", "1L", "NaN", "Infinity", "-Infinity", "null", "true", "9999999999.99", "-9999999999.99",
    "10000000000.00", "99999999999", "9" * 38, "-" + "9" * 38, "9" * 39, f"{'9' * 20}.{'9' * 18}",
    f"-{'9' * 20}.{'9' * 18}", f"{'9' * 21}.{'9' * 18}", f"0.{'0' * 17}1", f"-0.{'0' * 17}1", f"-0.{'0' * 18}",
    f"0.{'0' * 18}", f"0.{'0' * 18}1", f"1.{'0' * 19}", "1" * 5_000, "0." + "1" * 5_000,
    "1e400000000", "1e-400000000", "-1E-2147483647", "1e-99999999999", "1e+2147483648",
)  # fmt: skip
DECIMALS = st.one_of(
    st.sampled_from(EDGE_DECIMALS),
    st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**11), max_value=10**11).map(
        "{:f}".format
    ),
    st.from_regex(r"-?(0|[1-9][0-9]{0,39})(\.[0-9]{1,20})?", fullmatch=True),
)
EDGE_DATES = (
    "2026-11-20", "1970-01-01", "1969-12-31", "2261-12-31", "2262-01-01", "2024-02-29", "2026-02-29", "2026-02-30",
    "2026-04-31", "2026-13-01", "2026-00-10", "2026-11-00", "2026-11-2", "2026-1-20", "20261120", "2026-W47-5",
    "2026-324", "2026-11", "2026", "2026-11-20T00:00:00Z", "2026-11-20 00:00:00", "2026-11-20 ", " 2026-11-20",
    "2026-11-20\n", "2026-11-20\r", "2026-11-20\u2028", "+2026-11-20", "-2026-11-20", "2026/11/20", "20.11.2026",
    "2026-11-20+14:00", "2026-11-20Z", "0000-01-01", "0001-01-01", "9999-12-31", "+10000-01-01", "epoch", "today", "",
    "２０２６-11-20",
)  # fmt: skip
DATES = st.one_of(st.sampled_from(EDGE_DATES), st.dates().map(str))
ODD: st.SearchStrategy[object] = st.sampled_from([None, True, 1.5, 7.0, [], {}, [[[]]], {"a": {"b": None}}, "7", -0.0])
ODD_VALUES = (
    b"", b" ", b"null", b"[]", b"{}", b"[{}]", b"{nonsense", b"\xff\xfe", b"\0", b"7", b'"text"', b"\xef\xbb\xbf{}",
    b"{" * 2_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000, b'{"id":' + b"9" * 5_000 + b"}", b'{"id":1}{"id":2}',
    b'{"id":1,"id":2}', b"NaN", b'{"id":NaN}', b'{"id":1e400}', b'{"title":"' + b"x" * 900_000 + b'"}',
)  # fmt: skip
_NUMBERS = (
    b"NaN", b"-NaN", b"Infinity", b"-Infinity", b"Inf", b"-Inf", b"+INF", b"01", b"-01", b"1.", b".5", b"+1", b"0x1",
    b"1e", b"-", b"1_0", b"-0", b"1.50", b"1E+2", b"1e400", b"-1e400", b"0." + b"9" * 1_001, b"1e" + b"9" * 1_001,
    b"0" * 1_001, *(sign + b"9" * count for count in (23, 1_000, 1_001, 4_300, 4_301) for sign in (b"", b"-")),
)  # fmt: skip
_OTHERS = (
    b"nul", b"tru", b"True", b"None", b"undefined", b"", b'"a\nb"', b'"\0"', b'"\t"', b'"\\q"', b'"\\u12"',
    b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\\ud83d\\\\\\ude00"', b'"\xff"', b'"\xed\xa0\x80"', b"'a'", b"[1,]", b"[,1]",
    b'{"a":1,}', b"[ 1 ]", b'{"a": 1}', b"{}", b"[]", b"true", b"null", b"/* a */ 1", b"// a\n1", b"# a\n1",
    b'"Infinity"', b'"\\u0007"',
)  # fmt: skip
_TOKENS = (*_NUMBERS, *_OTHERS)
_DEPTHS = (30, 31, 32, 33, 500, 990, 1_000, 1_001, 5_000)
_COLLIDING = [""]  # names of one hash in Jackson, whatever its seed is
for _ in range(10):
    _COLLIDING = [name + end for name in _COLLIDING for end in ("AB", "B!")]
_NAMES = (
    *(b"n" * count for count in (1_000, 1_001, 50_000, 50_001, 51_000)), "😀".encode() * 25_001, b"", b"\x7f",
    b"_broken", b"\\u0061", b"\\ud800", b"a\nb", b"\xff",
)  # fmt: skip
AFTER = (
    b"}", b"]", b"]}", b'"}', b" x", b"\0", b"\f", b"\v", b"\xc2\xa0", b",", b"/* a */", b"// a", b"# a", b",{}", b"{}",
    b"],[", b'],"x":[', b"\x1e", b"\xef\xbb\xbf", b"\n\t\r ", b"null", b"NaN",
)  # fmt: skip
BEFORE = (b"\xef\xbb\xbf", b"\n\t\r ", b"\x1e", b"\f", b"\xc2\xa0", b"[", b"{", b",", b"/* a */", b"{},", b")]}',")
ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "utf-7", "cp949", "utf-16-be")


def with_field(text: bytes, field: bytes) -> bytes:
    """Return the text of an object with one more field."""
    return text[:-1] + b", " + field + b"}"


_EDGES: dict[str, tuple[Any, ...]] = {
    "decimal": (*EDGE_DECIMALS, 1, 1.5),
    "date": EDGE_DATES,
    "boolean": (0, 1, "true"),
}


@cache
def twists(topic: Topic) -> list[Callable[[bytes], bytes]]:
    """Return changes of a valid value's text; some of the results are valid too."""
    made: list[Callable[[bytes], bytes]] = [
        lambda text: text + text,
        lambda text: text + b"\n" + text,
        lambda text: text + b"," + text,
        lambda text: text + b"],[" + text,
        lambda text: b"[" + text + b"]",
        lambda text: text[:-1],
        lambda text: text[:-2],
        lambda text: text[:-1] + b",}",
        lambda text: text.replace(b'"', b"'"),
        lambda text: re.sub(rb'"(\w+)":', rb"\1:", text),
        lambda text: re.sub(rb'"(\w+)":', rb"'\1':", text),
        lambda text: text.replace(b":", b"="),
        lambda text: text.replace(b", ", b"; "),
        lambda text: text.replace(b": ", b"\n:\t\r"),
        lambda text: with_field(text, b",".join(b'"%s":1' % name.encode() for name in _COLLIDING)),
    ]
    made += [lambda text, more=more: text + more for more in AFTER]
    made += [lambda text, more=more: more + text for more in BEFORE]
    made += [lambda text, name=name: text.decode().encode(name, "replace") for name in ENCODINGS]
    made += [lambda text, each=each: with_field(text, b'"more": ' + each) for each in _TOKENS]
    made += [lambda text, each=each: with_field(text, b'"more": [{"a": ' + each + b"}]") for each in _TOKENS]
    made += [lambda text, each=each: with_field(text, b'"' + each + b'": 1') for each in _NAMES]
    made += [lambda text, each=each: with_field(text, b'"more": {"' + each + b'": [1]}') for each in _NAMES]
    made += [lambda text, n=n: with_field(text, b'"more": ' + b"[" * n + b"]" * n) for n in _DEPTHS]
    made += [lambda text, n=n: with_field(text, b'"more": ' + b'{"a":' * n + b"1" + b"}" * n) for n in _DEPTHS]
    made.append(lambda text: with_field(text, b'"more": "' + b"[{" * 500 + b'"'))
    for field in _twisted_fields(topic):
        name = field.name.encode()
        escaped = b"\\u%04x" % name[0] + name[1:]
        made += [lambda text, name=name, each=each: with_token(text, name, each) for each in _TOKENS]
        made += [lambda text, name=name, each=each: with_token(text, name, json.dumps(each).encode())
                 for each in _EDGES.get(field.type, ())]  # fmt: skip
        made += [lambda text, name=name, each=each: with_field(text, b'"%s": %s' % (name, each))
                 for each in (b'"again"', b"null", b"7", b"nul", b"{}", b"NaN")]  # fmt: skip
        made += [lambda text, name=name, other=other: text.replace(b'"%s"' % name, b'"%s"' % other)
                 for other in (name.upper(), name.title(), name + b" ", escaped)]  # fmt: skip
        made.append(lambda text, name=name, escaped=escaped: with_token(
            text.replace(b'"%s"' % name, b'"%s"' % escaped), escaped, b"1.50"))  # fmt: skip
        made.append(lambda text, name=name: with_field(text, b'"%s": 7' % name.swapcase()))
    return made


def _twisted_fields(topic: Topic) -> list[Field]:
    """The key, the times, and one field of each other kind, which the same code reads. All fields with `--long`."""
    roles = {field.name for field in topic.fields if field.name == topic.key_field or field.type == "timestamp"}
    kinds = {(f.type, f.nullable, f.precision, f.scale, f.name if f.name in roles else ""): f for f in topic.fields}
    return list(topic.fields if is_long() else kinds.values())


def with_token(text: bytes, name: bytes, token: bytes) -> bytes:
    """Return the text of a plain object with another token for a field's value."""
    start = text.index(b'"%s": ' % name) + len(name) + 4
    end = re.compile(rb'"(?:[^"\\]|\\.)*"|[^,}]*').match(text, start).end()  # type: ignore[union-attr]
    return text[:start] + token + text[end:]


ODD_KEYS = (
    None, b"", b"0", b"-0", b"-1", b"+7", b" 7", b"7 ", b"007", b"7.0", b"7e0", b"0x7", b"1_0", b"\0", b"\xff", b"x",
    b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808", b"-9223372036854775809",
    b"12345678901234567890", b"99999999999999999999", b"00000000000000000007", b"0" * 20 + b"9" * 20, b"0" * 5_000,
    b"9" * 5_000, "７".encode(), "²".encode(), b"x" * 60_000,
)  # fmt: skip
_TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ODD_HEADER_VALUES = (
    None, b"", b" ", b"\0", b"\xff\xfe", b"a\0b", b"x\n", b"-1", b"0", b"1", b"2147483648", b"4294967296",
    b"9223372036854775807", b"9223372036854775808", b"1" * 30, b"9" * 5_000, b"1.5", b"e" * 255, b"e" * 256,
    "가".encode() * 255, b"x" * 200_000, "\u202e".encode(), b"\x07",
    b"board/0/1", b"member/-1/-100000000000000000", b"board/0", b"/0/1", b"board/0/1/2", b"board/0/1\n", b"\xff/0/1",
    b"board/2147483648/1", b"board/0/9223372036854775808", b"board/0x1/1", b"board//", "board/０/1".encode(),
    _TRACE, _TRACE + b"\n", _TRACE.upper(), b"01" + _TRACE[2:], _TRACE[:-1], _TRACE + b"-x", _TRACE[:-2] + b"\xff\xff",
)  # fmt: skip
HEADER_NAMES = (
    h.EVENT_ID, h.ACCEPTED_AT, h.REPLAYED_AT, h.TRACEPARENT, "board-at", "member-at", "", "x",
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
    right = {"long": NUMBERS, "timestamp": TIMES, "string": TEXTS, "decimal": DECIMALS, "boolean": st.booleans(),
             "date": DATES}[field.type]  # fmt: skip
    return st.one_of(right, right, right, ODD)


def _good(field: Field, number: int) -> Any:
    if field.nullable:
        return None
    if field.type == "decimal":
        return decimal_example(field.precision, field.scale)
    good = {
        "long": number,
        "timestamp": GOOD_TIMES[0],
        "string": f"text {number}"[: field.max_length],
        "boolean": True,
        "date": "2026-11-20",
    }
    return good[field.type]


def twisted(
    topic: Topic, first_id: int = 7, step: int = 0, at: str = GOOD_TIMES[0], author: int = 7
) -> list[AnyRecord]:
    """One record for each of the `twists`, with an id of its own when there is a step; the first one is right."""
    made = []
    for number, twist in enumerate([lambda text: text, *twists(topic)]):
        row_id = first_id + number * step
        value = {field.name: at if field.type == "timestamp" else _good(field, author) for field in topic.fields}
        text = json.dumps(value | {topic.key_field: row_id}).encode()
        made.append(AnyRecord(topic.name, b"%d" % row_id, twist(text)))
    return made


@st.composite
def values(draw: st.DrawFn, topic: Topic) -> tuple[object, bytes | None]:
    """Draw the id that the value has, if any, and its bytes; None for a tombstone."""
    kind = draw(st.integers(0, 11))
    number = draw(st.integers(1, 30))
    if kind == 0:
        return number, None
    if kind == 1:
        return number, draw(st.one_of(st.sampled_from(ODD_VALUES), st.binary(max_size=40)))
    value = {field.name: _good(field, number) for field in topic.fields}
    if kind < 5:
        return number, draw(st.sampled_from(twists(topic)))(json.dumps(value).encode())
    if kind > 5:  # one or two fields are odd: more would hide each other
        for field in draw(st.lists(st.sampled_from(topic.fields), min_size=1, max_size=2)):
            value[field.name] = draw(_field(field))
            if draw(st.integers(0, 19)) == 0:
                del value[field.name]
    escaped = draw(st.booleans())
    return value.get(topic.key_field), json.dumps(value, ensure_ascii=escaped).encode("utf-8", "surrogatepass")


def header_values() -> st.SearchStrategy[bytes | None]:
    """Values that are valid for some header, or for none."""
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
        found = [("board-at", b"board/0/%d" % number), *found]
    return AnyRecord(topic.name, key, value, found, draw(timestamps_ms))
