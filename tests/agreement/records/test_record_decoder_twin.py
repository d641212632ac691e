"""The reader by column and the reader of single records must decode each member equally."""

import datetime as dt
from dataclasses import dataclass
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from include.contracts import headers as h
from include.contracts.pipelines import MEMBER
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.contracts.validation import MAX_DEPTH, Reject
from spark_jobs.decoding.arrow import RawColumns, table_schema
from spark_jobs.decoding.reference import read_record
from spark_jobs.speed.detail_records import packed, unpacked
from spark_jobs.state.segments import newest_of
from tests.fakes.events import AT, member
from tests.support.spark import SENT, RawRecord, encoded

SCHEMA = table_schema(PIPELINE)
IDS = st.one_of(st.integers(1, 5), st.sampled_from([2**63, -1, 1.5, "7", True, None]))
TEXTS = st.one_of(
    st.text(max_size=12), st.sampled_from([None, "가" * 64, "가" * 65, "\x00", "\x07", "\x7f", "\x85", 5, 1.5, True])
)
TIMES = st.sampled_from([AT, "2026-11-20T09:30:00+14:59", "2026-02-30T00:00:00Z", "yesterday", None])
VALUES = st.fixed_dictionaries(
    {
        "id": IDS,
        "nickname": TEXTS,
        "city": TEXTS,
        "phone": TEXTS,
        "email": TEXTS,
        "createdAt": TIMES,
        "modifiedAt": TIMES,
    }
)
BROKEN = [b"{nonsense", b"[]", b"", b"null", b"\xff\xfe", b'{"id": 1}', b'{"nickname": "\\ud800"}']
FINE = encoded(member(7))
ODD = [
    FINE + FINE,
    FINE + b" x",
    FINE + b"\n",
    b"\n" + FINE,
    b"\xef\xbb\xbf" + FINE,
    FINE[:-1] + b', "more": {"deep": [1]}}',
    FINE[:-1] + b', "more": "\xff"}',
    FINE[:-1] + b', "more": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    FINE[:-1] + b', "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    FINE[:-1] + b', "more": "' + b"x" * 100_000 + b'"}',
    FINE[:-1] + b', "id": 8}',
    FINE[:-1] + b', "id": 7}',
    FINE.replace(b'"id": 7', b'"id": 7.0'),
    FINE.replace(b'"id": 7', b'"id": 07'),
    FINE.replace(b'"id": 7', b'"id": 1e1'),
    FINE.replace(b"nickname", b"nick\\u006eame"),
    encoded(member(7, modifiedAt="0001-01-01T00:00:00+14:00")),
    encoded(member(7, modifiedAt="9999-12-31T23:59:59.999999-14:00")),
    encoded(member(7, modifiedAt="2024-02-29T23:59:59.123456+09:00")),
    encoded(member(7, modifiedAt="2026-11-20T09:30:00Z\n")),
    encoded(member(7, nickname="\ud83d\ude00")),
]
RECORDS = st.one_of(
    VALUES.map(lambda value: (str(value["id"]), encoded(value))),  # most are not refused for their key alone
    st.tuples(st.sampled_from(["1", "2", "x", "1_0", "", None]), st.one_of(st.none(), st.sampled_from(BROKEN))),
    st.tuples(st.just("7"), st.builds(lambda name: encoded(member(7, nickname=name)), st.text(max_size=8))),
)


@dataclass(frozen=True)
class Message:
    """A record as the client library returns it."""

    record: RawRecord

    def __len__(self):
        return len(self.key() or b"") + len(self.value() or b"")

    def partition(self):
        return self.record.partition

    def offset(self):
        return self.record.offset

    def key(self):
        return None if self.record.key is None else self.record.key.encode()

    def value(self):
        return self.record.value

    def timestamp(self):
        return 1, int(self.record.timestamp.timestamp() * 1000)

    def headers(self):
        return None if self.record.accepted_at is None else [(h.ACCEPTED_AT, self.record.accepted_at.encode())]


def test_a_tombstone_without_its_time_of_acceptance_has_kafkas():
    read = read_record(Message(RawRecord("member", 0, 3, "7", None)), MEMBER)
    assert (read.key, read.deleted, read.version) == (7, True, (SENT.astimezone(dt.UTC), 3, 0))


def called_from(depth, call):
    """The call's result, with so many calls around it."""
    return call() if depth == 0 else called_from(depth - 1, call)


@pytest.mark.parametrize("callers", [0, 600])
@pytest.mark.parametrize("arrays", [MAX_DEPTH - 1, MAX_DEPTH, 300, 700])
def test_nesting_is_bounded_alike_whoever_reads(arrays, callers):
    value = FINE[:-1] + b', "more": ' + b"[" * arrays + b"]" * arrays + b"}"
    read = called_from(callers, lambda: read_record(Message(RawRecord("member", 0, 3, "7", value)), MEMBER))
    if arrays < MAX_DEPTH:
        assert read.key == 7
    else:
        assert read.reason == "/: nested deeper than 32 levels; send a flatter value"


@settings(max_examples=100, deadline=None)
@given(
    drawn=st.lists(
        st.one_of(RECORDS, st.sampled_from(ODD).map(lambda value: ("7", value)), st.just(("7", FINE))), max_size=30
    ),
    lot=st.integers(1, 30),
)
def test_the_column_wise_reader_agrees(drawn, lot):
    records = [
        RawRecord("member", 0, offset, key, value, accepted_at=AT if offset % 2 else None)
        for offset, (key, value) in enumerate(drawn)
    ]
    messages = [Message(record) for record in records]
    columns = RawColumns(MEMBER, SCHEMA.names)
    read_lots = [columns.read_messages(messages[at : at + lot]) for at in range(0, len(messages), lot)]
    tables, rejects = [rows for rows, _ in read_lots], [rejects for _, rejects in read_lots]

    read = [read_record(message, MEMBER) for message in messages]
    assert sorted(chain(*rejects), key=lambda reject: reject.offset) == [r for r in read if isinstance(r, Reject)]
    assert newest_of(tables, SCHEMA).to_pylist() == newest(read)


def newest(read):
    """The newest version of each key, as rows of the table."""
    versions = sorted((row for row in read if not isinstance(row, Reject)), key=lambda row: row.version)
    by_key = {row.key: row for row in versions}
    return [
        {"id_": key, **{name: row.values.get(name) for name in ("nickname_", "city_", "phone_")}, "partition": 0,
         "offset": row.offset, "version_at": row.version_at, "deleted": row.deleted}
        for key, row in sorted(by_key.items())
    ]  # fmt: skip


@pytest.mark.parametrize("value", ODD)
def test_the_column_wise_reader_agrees_on_an_odd_value_among_plain_ones(value):
    messages = [Message(RawRecord("member", 0, offset, "7", each)) for offset, each in enumerate([FINE, value, FINE])]
    rows, rejects = RawColumns(MEMBER, SCHEMA.names).read_messages(messages)

    read = [read_record(message, MEMBER) for message in messages]
    assert rejects == [each for each in read if isinstance(each, Reject)]
    assert newest_of([rows], SCHEMA).to_pylist() == newest(read)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_every_member_reaches_the_tasks_of_the_join(count):
    records = [RawRecord("member", 0, number, str(number), encoded(member(number))) for number in range(count)]
    columns = RawColumns(MEMBER, SCHEMA.names)
    tables = [columns.read_messages([Message(record)])[0] for record in records]
    members = newest_of([SCHEMA.empty_table(), *tables], SCHEMA)
    received = unpacked(packed(members))
    assert received.equals(members)
    assert received["id_"].to_pylist() == [*range(count)]


def test_plain_records_are_read_by_the_column():
    columns = RawColumns(MEMBER, SCHEMA.names)
    values = [encoded(member(number)) for number in range(20)]
    records = [RawRecord("member", 0, number, str(number), value) for number, value in enumerate(values)]
    rows, _ = columns.read_messages([Message(record) for record in records])
    assert (rows.num_rows, columns.looked_at) == (20, 0)
