"""Records with a header name that is not UTF-8, which every reader takes as records without headers."""

from contextlib import closing

import pytest

from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.contracts.versions import headers_of, record_time
from include.kafka.reader import TopicTail
from include.kafka.record_table import record_table
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.connectors.splits import TopicSplit
from spark_jobs.decoding.arrow import table_schema
from spark_jobs.decoding.reference import TableRow, read_record
from spark_jobs.speed.join_tasks import JoinTask, Output, grouped, run_tasks
from tests.fakes.events import board
from tests.support.header_names import send_with_header_name
from tests.support.sending import sending
from tests.support.spark import encoded
from tests.support.topic_log import TopicLog

TOPIC = PIPELINE.stream.name
NAME = b"\xff\xfe\x80"


@pytest.fixture
def connection(kafka):
    TopicLog(kafka.bootstrap_servers).make(TOPIC, 1)
    with sending(kafka.bootstrap_servers) as sender:
        sender.send(TOPIC, encoded(board(1, 5)), "1", headers={"event-id": "e1"})
    send_with_header_name(kafka.bootstrap_servers, TOPIC, b"2", encoded(board(2, 5)), NAME)
    send_with_header_name(kafka.bootstrap_servers, TOPIC, b"3", None, NAME)
    return KafkaConnection(kafka.bootstrap_servers)


def test_such_a_record_has_no_headers(connection):
    with closing(TopicTail(connection, TOPIC)) as tail:
        tail.begin({0: 0})
        records = tail.read_to({0: 3})
    for _ in range(1_000):
        headers_of(records[0])  # until Python has specialized the call
    assert [headers_of(each) for each in records] == [[("event-id", b"e1")], (), ()]
    assert record_table(records)["headers"].to_pylist() == [[{"key": "event-id", "value": b"e1"}], [], []]
    assert record_table(records, all_headers=False)["headers"].to_pylist() == [[], [], []]
    tombstone = read_record(records[2], PIPELINE.stream)
    assert isinstance(tombstone, TableRow)
    assert tombstone.version_at == record_time(records[2])


def test_the_stream_takes_such_a_record(spark, connection):
    task = JoinTask(PIPELINE, connection, "Asia/Seoul", Output.RETURNED, 10_000)
    splits = [TopicSplit(TOPIC, 0, 0, 3)]
    (part,) = run_tasks(spark.sparkContext, grouped(splits, 1), table_schema(PIPELINE).empty_table(), task)
    assert (part.sent, part.pending, part.rejected) == (1, 2, 0)
    assert [(each.stream_key, each.event_id) for each in part.left.pending] == [(1, "e1"), (2, None)]
