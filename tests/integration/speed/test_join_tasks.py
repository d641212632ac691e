"""Tasks of the join in Spark's workers: what they send, return and refuse."""

from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from include.contracts.errors import ConfigurationError
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.kafka.reader import TopicTail
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.connectors.splits import FileSplit
from spark_jobs.decoding.arrow import table_schema
from spark_jobs.speed.detail_records import iter_messages, unpacked
from spark_jobs.speed.join_tasks import JoinTask, Output, grouped, run_tasks
from tests.fakes.events import board
from tests.support.spark import SENT, RawRecord, encoded, raw
from tests.support.topic_log import TopicLog

OUTPUT = PIPELINE.output.name
AUTHOR = 7
SPLIT_BYTES = 10_000  # of records that are not sent


@pytest.fixture
def log(kafka):
    """The output topic, empty."""
    made = TopicLog(kafka.bootstrap_servers)
    made.make(OUTPUT, 2)
    return made


@pytest.fixture
def run(spark, kafka, tmp_path):
    """Run the tasks over boards, one file each; members 7 and 8 are there, the latter deleted."""

    def run_over(output, *files, settled=None):
        splits = []
        for number, boards in enumerate(files):
            path = tmp_path / f"{number}.parquet"
            pq.write_table(raw(boards), path)
            splits.append(FileSplit("board", str(path)))
        rows = [{"member_id": n, "nickname": "하늘", "partition": 0, "offset": n, "version_at": SENT, "deleted": n == 8}
                for n in (AUTHOR, 8)]  # fmt: skip
        schema = table_schema(PIPELINE)
        rows = [{PIPELINE.table.key_column: row.pop("member_id"), **row} for row in rows]
        table = pa.Table.from_pylist(rows, schema)
        task = JoinTask(PIPELINE, KafkaConnection(kafka.bootstrap_servers), "Asia/Seoul", output, SPLIT_BYTES)
        return run_tasks(spark.sparkContext, grouped(splits, 2), table, task, settled)

    return run_over


def of_board(offset, author=AUTHOR, partition=0, **fields):
    """A board whose id is its offset."""
    return RawRecord("board", partition, offset, str(offset), encoded(board(offset, author, **fields)))


def sent(log):
    """The keys in each partition of the output, in their order."""
    log.wait_for_leaders(OUTPUT, 2)  # a topic that nobody has used yet
    ends = log.offsets.ends(OUTPUT)
    with closing(TopicTail(log.offsets.kafka, OUTPUT)) as tail:
        tail.begin(dict.fromkeys(ends, 0))
        found = tail.read_to(ends)
    return {p: [int(each.key()) for each in found if each.partition() == p] for p in ends}


def test_records_of_a_partition_are_sent_in_their_order(run, log):
    parts = run(Output.SENT, [of_board(n % 5) for n in range(500)], [of_board(n, partition=1) for n in range(10, 20)])
    assert sum(part.sent for part in parts) == 510
    found = sent(log)
    assert sorted(n for keys in found.values() for n in keys) == sorted([n % 5 for n in range(500)] + [*range(10, 20)])
    for keys in found.values():
        one = [n for n in keys if n < 5]
        assert one == [n % 5 for n in range(500) if n % 5 in one]
    assert [part.records for part in parts] == [[] for _ in parts]


def test_returned_records_are_in_no_topic(run, log):
    parts = run(Output.RETURNED, [of_board(1), of_board(2), of_board(3, 8), of_board(4, 9)])
    messages = [each for part in parts for data in part.records for each in iter_messages(unpacked(data))]
    assert [key for key, _, _ in messages] == [b"1", b"2"]
    assert dict(messages[0][2])["board-at"] == b"board/0/1"
    assert dict(messages[0][2])["member-at"] == b"member/0/7"
    assert sent(log) == {0: [], 1: []}
    assert [each.stream_key for part in parts for each in part.left.pending] == [3, 4]


def test_what_is_not_sent_is_returned_up_to_a_size(run, log):
    large = "x" * (SPLIT_BYTES // 4)
    (part,) = run(Output.SENT, [of_board(n, 9, body=large) for n in range(5)])
    assert (part.pending, part.left) == (5, None)
    assert part.left_bytes > SPLIT_BYTES
    (part,) = run(Output.DROPPED, [of_board(n, 9, body=large) for n in range(3)])
    assert [each.stream_key for each in part.left.pending] == [0, 1, 2]


def test_what_is_settled_is_not_left(run, log):
    settled = pa.table({"partition": pa.array([0], pa.int32()), "offset": pa.array([1], pa.int64())})
    (part,) = run(Output.DROPPED, [of_board(1), of_board(2), of_board(3, 9)], settled=settled)
    assert [each.stream_key for each in part.left.pending] == [2, 3]
    assert sent(log) == {0: [], 1: []}


def test_a_record_that_breaks_the_contract_is_rejected_with_the_reason(run, log):
    (part,) = run(Output.SENT, [RawRecord("board", 0, 5, "5", b"[]"), of_board(6)])
    assert (part.sent, part.rejected) == (1, 1)
    (reject,) = part.left.rejects
    assert (reject.offset, reject.value) == (5, b"[]")
    assert "not a JSON object" in reject.reason


def test_a_topic_that_refuses_records_names_the_setting(run, log):
    log.make(OUTPUT, 2, {"max.message.bytes": "2000"})
    with pytest.raises(ConfigurationError, match=r"max\.message\.bytes"):
        run(Output.SENT, [of_board(1, body="".join(chr(0xAC00 + n % 11_000) for n in range(5_000)))])


def test_without_splits_a_task_runs(run, log):
    (part,) = run(Output.SENT)
    assert (part.sent, part.pending, part.rejected) == (0, 0, 0)
