"""The keys of a batch: those of each valid record, and none that the table cannot hold."""

from contextlib import closing

import pyarrow as pa
import pytest

from include.contracts.errors import BrokerUnavailable
from include.contracts.offsets import OffsetRange
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from spark_jobs.decoding.arrow import table_schema
from spark_jobs.decoding.reference import iter_records, read_record
from spark_jobs.speed.join_keys import JoinKeys
from tests.fakes.events import board
from tests.support.spark import SENT, RawRecord, encoded, messages_of, raw


def keys_of(*values):
    records = [RawRecord("board", 0, offset, "1", value) for offset, value in enumerate(values)]
    return JoinKeys(None, PIPELINE).named_by([messages_of(records)]).keys.tolist()


def test_keys_are_ascending_and_each_is_there_once():
    assert keys_of(*(encoded(board(1, memberId=key)) for key in (9, 2, 9, -3, 2**63 - 1))) == [-3, 2, 9, 2**63 - 1]


@pytest.mark.parametrize("key", [2**63, -(2**63) - 1, 10**400, "7", True, 1.5, None, [7]])
def test_a_key_that_the_table_cannot_hold_is_none(key):
    assert keys_of(encoded(board(1, memberId=key)), encoded(board(1, memberId=5))) == [5]


@pytest.mark.parametrize(
    "value", [None, b"", b"[]", b"{", b"\xff", b'{"memberId": 3', b"[" * 5_000, b'{"memberId": 07}']
)
def test_a_record_that_is_broken_or_a_deletion_has_none(value):
    assert keys_of(value, encoded(board(1, memberId=5))) == [5]


def test_a_valid_record_that_takes_the_slow_path_has_its_key():
    value = encoded(board(1, memberId=6)).replace(b'"memberId": 6', b'"memberId": "x", "memberId": 6')
    (record,) = iter_records(raw([RawRecord("board", 0, 0, "1", value)]))
    assert read_record(record, PIPELINE.stream).values["member_id_"] == 6
    assert keys_of(value) == [6]


def test_the_bytes_of_joined_records_count_the_texts_of_the_table_for_each_record():
    values = [encoded(board(1, memberId=key)) for key in (3, 9, 3, 4, 9, 3)]
    records = [RawRecord("board", 0, offset, "1", value) for offset, value in enumerate(values)]
    named = JoinKeys(None, PIPELINE).named_by([messages_of(records[:2]), messages_of(records[2:])])
    assert (named.keys.tolist(), named.counts.tolist()) == ([3, 4, 9], [3, 1, 2])
    assert named.bytes == sum(map(len, values))
    key, nickname = PIPELINE.table.key_column, PIPELINE.table.field("nickname").column
    row = {"partition": 0, "offset": 0, "version_at": SENT, "deleted": False}
    rows = [row | {key: 3, nickname: "x" * 100}, row | {key: 9, nickname: "하늘"}]
    schema = table_schema(PIPELINE)
    assert named.bytes_with(pa.Table.from_pylist(rows, schema), key) == named.bytes + 3 * 100 + 2 * 6
    assert named.bytes_with(schema.empty_table(), key) == named.bytes


class Tail:
    """A topic of which each board names the member with the number of its offset; the first reads may fail."""

    def __init__(self, failures=0):
        self.failures = failures
        self.position = {}
        self.reads = []

    def begin(self, offsets):
        self.position = dict(offsets)

    def iter_to(self, ends):
        self.reads.append(ends)
        if len(self.reads) <= self.failures:
            raise BrokerUnavailable("not now")
        numbers = range(self.position[0], ends[0])
        yield messages_of([RawRecord("board", 0, at, "1", encoded(board(1, memberId=at))) for at in numbers])
        self.position = dict(ends)

    def close(self):
        pass


FIRST, NEXT = OffsetRange({0: 2}, {0: 5}), OffsetRange({0: 2}, {0: 6})


@pytest.mark.parametrize(("wanted", "reads"), [(FIRST, [{0: 5}]), (NEXT, [{0: 5}, {0: 6}])])
def test_a_range_that_was_begun_is_read_once_and_another_one_by_itself(wanted, reads):
    tail = Tail()
    with closing(JoinKeys(tail, PIPELINE)) as keys:
        keys.begin(FIRST)
        assert keys.of(wanted).keys.tolist() == [*range(2, wanted.end[0])]
    assert tail.reads == reads


def test_a_failure_of_a_range_that_was_begun_is_raised_once():
    with closing(JoinKeys(Tail(failures=1), PIPELINE)) as keys:
        keys.begin(FIRST)
        with pytest.raises(BrokerUnavailable, match="not now"):
            keys.of(FIRST)
        assert keys.of(FIRST).keys.tolist() == [2, 3, 4]
