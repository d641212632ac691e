"""Members are read by Spark when they are many and by Python when they are few: both must say the same of a record."""

import datetime as dt
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from include.adapters.speed_store import Reject
from include.contracts import headers as h
from include.contracts.topics import MEMBER
from spark_jobs.speed.table_records import read_record
from spark_jobs.transforms.decode import decode
from tests.fakes.events import AT, member
from tests.support.spark import EPOCH, RawRecord, encoded, raw

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
RECORDS = st.one_of(
    VALUES.map(lambda value: (str(value["id"]), encoded(value))),  # most are not refused for their key alone
    st.tuples(st.sampled_from(["1", "2", "x", "1_0", "", None]), st.one_of(st.none(), st.sampled_from(BROKEN))),
    st.tuples(st.just("7"), st.builds(lambda name: encoded(member(7, nickname=name)), st.text(max_size=8))),
)


@dataclass(frozen=True)
class Message:
    """What the client library gives of a record."""

    record: RawRecord

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


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.lists(RECORDS, min_size=60, max_size=90))
def test_both_readers_agree(spark, drawn):
    records = [
        RawRecord("member", 0, offset, key, value, accepted_at=AT if offset % 2 else None)
        for offset, (key, value) in enumerate(drawn)
    ]
    rows = {row.offset: row for row in decode(raw(spark, records), MEMBER).collect()}
    for record in records:
        row, read = rows[record.offset], read_record(Message(record), MEMBER)
        assert isinstance(read, Reject) == (row.reason is not None), f"{record}: {row.reason} and {read}"
        if isinstance(read, Reject):
            assert (read.partition, read.offset, read.value) == (0, record.offset, record.value)
            continue
        version_at = read.version_at.replace(tzinfo=None)
        assert (read.key, read.deleted, version_at) == (row.id, row.deleted, row.version_at)
        if not read.deleted:
            values = {name: read.values[name] for name in ("nickname", "city", "phone", "email")}
            assert values == {name: row[name] for name in values}


def test_a_tombstone_without_its_time_of_acceptance_has_kafkas():
    read = read_record(Message(RawRecord("member", 0, 3, "7", None)), MEMBER)
    assert (read.key, read.deleted, read.version) == (7, True, (EPOCH.astimezone(dt.UTC), 3))
