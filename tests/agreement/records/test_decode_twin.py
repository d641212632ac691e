"""Spark's decode and the gateway's validation are two readers of one contract: they must agree on every value.

Spark alone says what is right at first sight; with the reader of single records it says why a value is not.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import functions as F

from include.contracts.pipelines import BOARD
from include.contracts.validation import violations
from spark_jobs.decoding.reference import read_slow_path
from spark_jobs.decoding.spark import day_of, decode, slow_path
from tests.fakes.events import AT, board
from tests.support.examples import examples
from tests.support.spark import RawRecord, encoded, raw

LONGS = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**63, -(2**63) - 1, 10**30, 1.5, "7", True, None, [], {}])
)
CONTROLS = [chr(c) for c in (*range(0x20), *range(0x7F, 0xA0))]  # Cc, TAB, LF and CR among them
TEXTS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(CONTROLS).map("a{}b".format),
    st.sampled_from([None, "가" * 255, "가" * 256, "\x00", "\\ud800", "😀", "", '"', "\\"]),
)
TIMES = st.one_of(
    st.datetimes(timezones=st.just(None)).map(lambda t: t.isoformat(timespec="milliseconds") + "Z"),
    st.sampled_from([AT, "2026-11-20T09:30:00+14:59", "2026-11-20T09:30:00.1234567Z", "2026-02-30T00:00:00Z",
                     "2026-11-20 09:30:00Z", "2026-11-20T24:00:00Z", "2026-11-20T09:30:00Z\n", "", None, 5,
                     "0000-01-01T00:00:00Z", "9999-12-31T23:59:59.999999-09:00", "2024-02-29T00:00:00Z"]))  # fmt: skip
VALUES = st.fixed_dictionaries(
    {"id": LONGS, "memberId": LONGS, "title": TEXTS, "body": TEXTS, "createdAt": TIMES, "modifiedAt": TIMES}
)


def reasons_of(spark, records):
    """The reason, or None, that the stream gives each record: by the column, and for what is left one by one."""
    rejects, _ = read_slow_path(slow_path(decode(raw(spark, records), BOARD)).toArrow(), BOARD)
    found = {reject.offset: reject.reason for reject in rejects}
    return [found.get(record.offset) for record in records]


def reasons(spark, values):
    """The reason, or None, for each value."""
    return reasons_of(spark, [RawRecord("board", 0, n, str(v.get("id")), encoded(v)) for n, v in enumerate(values)])


@examples(2, 8)
@given(values=st.lists(VALUES, min_size=60, max_size=90))
def test_both_readers_agree(spark, values):
    for value, reason in zip(values, reasons(spark, values), strict=True):
        pointers = [violation.pointer for violation in violations(BOARD, value)]
        if pointers:
            assert reason is not None, f"only the gateway refuses {value}"
            assert reason.split(":")[0] in {*pointers, "/"}, f"another place is named for {value}"
        else:
            assert reason is None, f"only Spark refuses {value}"


def test_both_readers_agree_on_every_control_character(spark):
    values = [board(title=f"a{c}b") for c in CONTROLS] + [
        board(title=f"a{chr(c)}b") for c in (0xA0, 0xAD, 0x200B, 0x2028)
    ]
    for value, reason in zip(values, reasons(spark, values), strict=True):
        assert bool(violations(BOARD, value)) == (reason is not None), f"{value['title']!a}: {reason}"
    refused = [value["title"][1] for value in values if violations(BOARD, value)]
    assert refused == [c for c in CONTROLS if c not in "\t\n\r"]


POISON = {
    "broken": (b"{nonsense", "not a JSON object"),
    "array": (b"[]", "not a JSON object"),
    "empty": (b"", "not a JSON object"),
    "null": (b"null", "not a JSON object"),
    "bytes": (b"\xfe\xfd", "not UTF-8"),
    "UTF-16": (b"\xff\xfe", "not JSON: UTF-16"),
    "object in an array": (b'[{"id":1}]', "not a JSON object"),
    "high surrogate": (json.dumps(board(1)).replace("\\ubcf8", "\\ud800").encode(), "lone surrogate"),
    "swapped surrogates": (json.dumps(board(1)).replace("\\ubcf8", "\\udc00\\ud800").encode(), "lone surrogate"),
    "surrogates around a backslash": (
        json.dumps(board(1)).replace("\\ubcf8", "\\ud83d\\\\\\ude00").encode(),
        "lone surrogate",
    ),
    "NUL": (json.dumps(board(1)).replace("\\ubcf8", "\\u0000").encode(), "/body: contains the NUL"),
    "time and a line's end": (encoded(board(1, createdAt=AT + "\n")), "/createdAt: not an RFC 3339 time"),
    "time and a carriage return": (encoded(board(1, createdAt=AT + "\r")), "/createdAt: not an RFC 3339 time"),
    "bell": (json.dumps(board(1)).replace("\\ubcf8", "\\u0007").encode(), "/body: contains the control character"),
    "delete": (json.dumps(board(1, title="a\x7fb"), ensure_ascii=False).encode(), "/title: contains the control"),
    "endless number": (b'{"id":' + b"9" * 5_000 + b"}", "/"),
    "endless depth": (b'{"a":' * 5_000, "/"),
}


@pytest.fixture(scope="module")
def poisoned(spark):
    """The reason decode gives each kind of poison, all of it in one batch."""
    records = [RawRecord("board", 0, n, "1", value) for n, (value, _) in enumerate(POISON.values())]
    return dict(zip(POISON, reasons_of(spark, records), strict=True))


@pytest.mark.parametrize("kind", POISON)
def test_poison_is_a_reject_with_its_reason(poisoned, kind):
    assert poisoned[kind] is not None
    assert POISON[kind][1] in poisoned[kind]


def test_an_escaped_pair_of_surrogates_is_a_character(spark):
    value = json.dumps(board(1, body="😀 \\ud800")).encode()
    assert b"\\ud83d\\ude00" in value
    (row,) = decode(raw(spark, [RawRecord("board", 0, 0, "1", value)]), BOARD).collect()
    assert (row.ok, row.body_) == (True, "😀 \\ud800")


WILD = ("+294247-01-10T04:00:54.775807Z", "-290308-12-21T19:59:05.224192Z", "12:30")


@pytest.mark.parametrize("zone", ["Asia/Seoul", "America/New_York"])
@pytest.mark.parametrize("text", WILD)
def test_no_instant_outside_the_contract_leaves_decode(spark, text, zone):
    records = [RawRecord("board", 0, n, "1", encoded(board(1, **{name: text})))
               for n, name in enumerate(["createdAt", "modifiedAt"])]  # fmt: skip
    decoded = decode(raw(spark, records), BOARD)
    for row in decoded.select("ok", "version_at", "created_at_", day_of(F.col("created_at_"), zone)).collect():
        assert tuple(row) == (False, None, None, None)


@pytest.mark.parametrize("number", range(3))
def test_an_everyday_value_is_right_at_first_sight(spark, number):
    """The fast path accepts it: the slow path is meant for one record in a thousand, not for each."""
    texts = ["t", "1.50", "true", "[notice]", '{"a": 1}', '"body": 5', "\\u0041", "\t\r\n", "Infinity", "010-1234"]
    value = board(1, title=texts[number], body="".join(texts), extra={"a": [1, 1.5, None, "x"]})
    form = [json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1), " " + json.dumps(value) + "\n"][number]
    (row,) = decode(raw(spark, [RawRecord("board", 0, 0, "1", form.encode())]), BOARD).collect()
    assert (row.ok, row.title_, row.body_) == (True, value["title"], value["body"])


def test_the_record_key_must_be_the_id(spark):
    records = [RawRecord("board", 0, n, key, encoded(board(1))) for n, key in enumerate(["2", "x", None])]
    for reason in reasons_of(spark, records):
        assert reason.startswith("/key")


def test_a_tombstone_takes_its_id_from_the_key_and_its_version_from_when_it_was_accepted(spark):
    records = [
        RawRecord("board", 0, 0, "7", None, accepted_at="2026-11-21T00:00:00.000Z"),
        RawRecord("board", 0, 1, "x", None),
    ]
    good, bad = decode(raw(spark, records), BOARD).orderBy("offset").collect()
    assert (good.id_, good.deleted, good.ok, good.version_at.isoformat()) == (7, True, True, "2026-11-21T00:00:00")
    assert (bad.id_, bad.ok) == (None, False)
    assert reasons_of(spark, records)[1].startswith("/key")


def test_headers_become_columns(spark):
    records = [RawRecord("board", 0, 0, "1", encoded(board(1)), event_id="e-1", accepted_at=AT)]
    (row,) = decode(raw(spark, records), BOARD).collect()
    assert (row.event_id, row.accepted_at.isoformat(), row.replayed) == ("e-1", "2026-11-20T09:30:00", False)
