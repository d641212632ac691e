"""The join's decoder and the gateway's validation are two readers of one contract: they must agree on every value."""

import datetime as dt
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from include.contracts import headers as h
from include.contracts.fields import END_INSTANT
from include.contracts.pipelines import BOARD
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.contracts.validation import parse_timestamp, violations
from include.kafka.record_table import record_table
from spark_jobs.decoding.arrow import RawColumns
from spark_jobs.speed.joiner import Joiner
from tests.fakes.events import AT, board
from tests.support.any_record import AnyRecord, Message
from tests.support.spark import SENT, RawRecord, encoded, raw

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


def decoded(records):
    return Joiner(PIPELINE, "Asia/Seoul").decode(raw(records))


def reasons_of(records):
    """The reason, or None, that the join gives each record."""
    found = {reject.offset: reject.reason for reject in decoded(records).rejects}
    return [found.get(record.offset) for record in records]


def reasons(values):
    """The reason, or None, for each value."""
    at = END_INSTANT - dt.timedelta(milliseconds=1)  # no version is later: violations do not look at a clock
    return reasons_of([
        RawRecord("board", 0, n, str(v.get("id")), encoded(v), timestamp=at) for n, v in enumerate(values)
    ])  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(values=st.lists(VALUES, min_size=60, max_size=90))
@example([board(1, modifiedAt="2088-12-16T00:15:21.000Z")])
def test_both_readers_agree(values):
    for value, reason in zip(values, reasons(values), strict=True):
        pointers = [violation.pointer for violation in violations(BOARD, value)]
        if pointers:
            assert reason is not None, f"only the gateway refuses {value}"
            assert reason.split(":")[0] in {*pointers, "/"}, f"another place is named for {value}"
        else:
            assert reason is None, f"only the join refuses {value}"


def test_both_readers_agree_on_every_control_character():
    values = [board(title=f"a{c}b") for c in CONTROLS] + [
        board(title=f"a{chr(c)}b") for c in (0xA0, 0xAD, 0x200B, 0x2028)
    ]
    for value, reason in zip(values, reasons(values), strict=True):
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
def poisoned():
    """The reason the join gives each kind of poison, all of it in one batch."""
    records = [RawRecord("board", 0, n, "1", value) for n, (value, _) in enumerate(POISON.values())]
    return dict(zip(POISON, reasons_of(records), strict=True))


@pytest.mark.parametrize("kind", POISON)
def test_poison_is_a_reject_with_its_reason(poisoned, kind):
    assert poisoned[kind] is not None
    assert POISON[kind][1] in poisoned[kind]


def test_an_escaped_pair_of_surrogates_is_a_character():
    value = json.dumps(board(1, body="😀 \\ud800")).encode()
    assert b"\\ud83d\\ude00" in value
    (row,) = decoded([RawRecord("board", 0, 0, "1", value)]).rows.to_pylist()
    assert row["body_"] == "😀 \\ud800"


WILD = ("+294247-01-10T04:00:54.775807Z", "-290308-12-21T19:59:05.224192Z", "12:30")


@pytest.mark.parametrize("text", WILD)
def test_no_instant_outside_the_contract_leaves_the_decoder(text):
    records = [RawRecord("board", 0, n, "1", encoded(board(1, **{name: text})))
               for n, name in enumerate(["createdAt", "modifiedAt"])]  # fmt: skip
    assert decoded(records).rows.num_rows == 0


@pytest.mark.parametrize("number", range(2))
def test_an_everyday_value_takes_the_fast_path(number):
    """The slow path is meant for one record in a thousand, not for each."""
    texts = ["t", "1.50", "true", "[notice]", '{"a": 1}', '"body": 5', "\\u0041", "\t\r\n", "Infinity", "010-1234"]
    value = board(1, title=texts[number], body="".join(texts), extra={"a": [1, 1.5, None, "x"]})
    form = [json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)][number]
    columns = RawColumns(BOARD, {"title_", "body_"}, with_texts=True)
    found, _ = columns.read(raw([RawRecord("board", 0, 0, "1", form.encode())]))
    assert columns.looked_at == 0
    (row,) = found.to_pylist()
    assert (row["title_"], row["body_"], row["created_at__text"]) == (value["title"], value["body"], AT)


def test_the_record_key_must_be_the_id():
    records = [RawRecord("board", 0, n, key, encoded(board(1))) for n, key in enumerate(["2", "x", None])]
    for reason in reasons_of(records):
        assert reason.startswith("/key")


def test_a_tombstone_takes_its_id_from_the_key_and_its_version_from_when_it_was_accepted():
    records = [
        RawRecord("board", 0, 0, "7", None, accepted_at="2026-11-21T00:00:00.000Z"),
        RawRecord("board", 0, 1, "7", None),
        RawRecord("board", 0, 2, "x", None),
    ]
    rows = decoded(records).rows.select(["id_", "deleted", "version_at", "accepted_text"]).to_pylist()
    accepted = dt.datetime(2026, 11, 21, tzinfo=dt.UTC)
    assert [tuple(row.values()) for row in rows] == [
        (7, True, accepted, "2026-11-21T00:00:00.000Z"),
        (7, True, SENT, None),
    ]
    assert reasons_of(records)[2].startswith("/key")


def test_headers_become_columns():
    records = [RawRecord("board", 0, 0, "1", encoded(board(1)), event_id="e-1", accepted_at=AT)]
    (row,) = decoded(records).rows.to_pylist()
    assert (row["event_id"], row["accepted_at"].isoformat()) == ("e-1", "2026-11-20T09:30:00+00:00")


NO_TEXT = b"2026-11-20T09:30:00Z\xff"
OTHER = b"2026-11-19T00:00:00Z"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([b"2026-02-30T00:00:00Z"], None),
        ([NO_TEXT], None),
        ([b"2026-11-20T09:30:00Z\n"], None),
        ([None], None),
        ([], None),
        ([OTHER, AT.encode()], OTHER),
        ([AT.encode(), OTHER], AT.encode()),
        ([NO_TEXT, AT.encode()], None),  # the first one counts, though it is no time
        ([None, AT.encode()], None),
        ([b"2026-11-20t18:30:00.123456789+09:00"], b"2026-11-20t18:30:00.123456789+09:00"),
    ],
)
@pytest.mark.parametrize("beside", [[], [NO_TEXT], [b"2026-02-30T00:00:00Z"], [OTHER]])
def test_the_first_time_of_acceptance_counts(values, expected, beside):
    """`beside` is the header of another record: one that does not parse has all of them read one by one."""
    records = [AnyRecord("board", b"7", None, [(h.ACCEPTED_AT, each) for each in of]) for of in (values, beside)]
    row = Joiner(PIPELINE, "UTC").decode(record_table([Message(r, n) for n, r in enumerate(records)])).rows.slice(0, 1)
    (found,) = row.to_pylist()
    assert found["accepted_text"] == (None if expected is None else expected.decode())
    assert found["accepted_at"] == (None if expected is None else parse_timestamp(expected.decode()))


TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("value", "is_kept"),
    [(TRACE, True), (TRACE[:-2] + b"00", True), (TRACE.upper(), False), (b"01" + TRACE[2:], False), (TRACE[:-1], False),
     (TRACE + b"\n", False), (b" " + TRACE, False), (TRACE + b"-00", False), (TRACE[:-1] + b"\xff", False),
     (b"", False), (None, False)],
)  # fmt: skip
def test_a_trace_is_kept_in_the_form_of_the_gateway(value, is_kept):
    records = [AnyRecord("board", b"7", None, [(h.TRACEPARENT, value), (h.TRACEPARENT, TRACE)])]
    found = Joiner(PIPELINE, "UTC").decode(record_table([Message(each, 0) for each in records]))
    assert found.rows["traceparent"].to_pylist() == [value.decode() if is_kept else None]
    assert found.traces == ([value.decode()] if value == TRACE else [])
