"""Tasks of the join without Spark and Kafka: what a failed one leaves in its worker, and how much they hold."""

import pickle
import re

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from include.contracts.errors import BrokerUnavailable
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.kafka.access import KafkaAccessDenied
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.connectors.failures import cause_of, is_passing
from spark_jobs.connectors.splits import TopicSplit
from spark_jobs.decoding.arrow import table_schema
from spark_jobs.speed import join_tasks, record_sender
from spark_jobs.speed.detail_records import unpacked
from spark_jobs.speed.join_tasks import JoinTask, Output, TaskFailed, grouped, parts_of, run_tasks
from spark_jobs.speed.record_sender import RecordSender
from tests.fakes.events import board
from tests.support.spark import SENT, RawRecord, encoded, raw


class Context:
    """Runs tasks in this process, as its only worker."""

    def __init__(self, cores):
        self.defaultParallelism = cores
        self.properties = {"spark.sql.execution.id": "7"}
        self.jobs = []  # the number of tasks of each

    def setLocalProperty(self, name, value):  # noqa: N802 - as Spark has it
        self.properties[name] = value

    def parallelize(self, items, _slices):
        assert not any(self.properties.values())  # else the JVM would keep the results until the batch ends
        self.jobs.append(len(items))
        self._items = items
        return self

    def map(self, function):
        self._items = map(function, self._items)
        return self

    def collect(self):
        return list(self._items)


class Producer:
    """Holds what it is given until it is flushed."""

    def __init__(self):
        self.held = []

    def produce(self, topic, value, key, headers):
        self.held.append(key)

    def poll(self, _seconds):
        return 0

    def purge(self):
        self.held.clear()


NO_ROWS = table_schema(PIPELINE).empty_table()


def run(read, monkeypatch, cores, output=Output.SENT, max_left_bytes=1000, table=NO_ROWS):
    """Run a task for each of 2,000 records in `cores` partitions, which `read` returns."""
    monkeypatch.setattr(join_tasks, "read_topic", read)
    task = JoinTask(PIPELINE, KafkaConnection("nowhere:1"), "Asia/Seoul", output, max_left_bytes)
    splits = [TopicSplit("board", number, 0, join_tasks.TASK_RECORDS) for number in range(cores)]
    return run_tasks(Context(cores), grouped(splits, cores), table, task)


def test_records_that_a_failed_task_has_not_sent_are_not_sent_after_it(monkeypatch):
    producer = Producer()
    monkeypatch.setattr(record_sender, "Producer", lambda _settings: producer)

    def read(splits, kafka):
        yield raw([RawRecord("board", 0, 0, "5", None)])
        assert producer.held == [b"5"]
        raise BrokerUnavailable

    with pytest.raises(BrokerUnavailable):
        run(read, monkeypatch, 1)
    assert producer.held == []


@pytest.mark.parametrize(
    ("cause", "expected"),
    [(KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaAccessDenied), (None, BrokerUnavailable)],
)
def test_a_client_that_ends_without_an_error_is_asked_for_the_cause(monkeypatch, cause, expected):
    class Ended(Producer):
        def flush(self, _seconds):
            raise SystemError("flush returned NULL without setting an exception")

        def poll(self, _seconds):
            if self.held and cause is not None:
                raise KafkaException(KafkaError(cause))
            return 0

    sender = RecordSender(KafkaConnection("nowhere:1"), "board-detail")
    sender._producer = Ended()
    sender._producer.held.append(b"1")
    with pytest.raises(expected):
        sender.flush()
    assert sender._producer is None


def test_a_task_that_fails_returns_its_error_with_its_place(monkeypatch):
    def read(splits, kafka):
        raise ZeroDivisionError("because of a record")
        yield

    with pytest.raises(TaskFailed, match="because of a record") as raised:
        run(read, monkeypatch, 2)
    assert str(raised.value).startswith("Traceback")
    assert pickle.loads(pickle.dumps(raised.value)).args == raised.value.args
    assert cause_of(raised.value) == "ZeroDivisionError: because of a record"
    assert not is_passing(raised.value)


@pytest.mark.parametrize("output", Output)
def test_a_record_that_is_too_large_once_it_is_joined_is_rejected_with_both_places(monkeypatch, output):
    producer = Producer()
    monkeypatch.setattr(record_sender, "Producer", lambda _settings: producer)
    monkeypatch.setattr(RecordSender, "flush", lambda _self: None)
    nickname = PIPELINE.table.field("nickname").column
    row = {"partition": 1, "version_at": SENT, "deleted": False}
    rows = [row | {PIPELINE.table.key_column: each, nickname: "x" * size, "offset": each}
            for each, size in ((7, 1), (8, 1_100_000))]  # fmt: skip
    table = pa.Table.from_pylist(rows, NO_ROWS.schema)
    values = [encoded(board(n, 8 if n == 2 else 7)) for n in range(4)]
    records = [RawRecord("board", 0, n, str(n), value) for n, value in enumerate(values)]
    page = lambda splits, kafka: iter([raw(records[:1]), raw(records[1:])])  # noqa: E731
    (part,) = run(page, monkeypatch, 1, output, 2_000_000, table)
    (reject,) = part.left.rejects
    assert (reject.topic, reject.partition, reject.offset) == ("board", 0, 2)
    assert (reject.key, reject.value, reject.kafka_timestamp) == (b"2", values[2], SENT)
    assert re.fullmatch(r"/: joined with member/1/8 it has \d{7} bytes, more than the 1048576 of a request; shorten a "
                        "text of either record, and send it again", reject.reason)  # fmt: skip
    assert (part.sent, part.pending, part.rejected) == (3, 0, 1)
    returned = [key for each in part.records for key in unpacked(each)["key"].to_pylist()]
    assert {Output.SENT: producer.held, Output.RETURNED: returned}.get(output, [b"0", b"1", b"3"]) == [b"0", b"1", b"3"]


def test_what_all_tasks_return_is_bounded_however_many_they_are(monkeypatch):
    waiting = [RawRecord("board", 0, offset, str(offset), encoded(board(offset))) for offset in range(4)]
    size = sum(len(each.value) for each in waiting)

    def left(cores):
        parts = run(lambda splits, kafka: iter([raw(waiting)]), monkeypatch, cores, Output.DROPPED, 2 * size)
        return [part.left is not None for part in parts]

    assert left(1) == [True]
    assert left(4) == [False] * 4


def test_a_long_row_of_the_table_that_many_records_take_is_not_held_for_each_at_once(monkeypatch):
    nickname = PIPELINE.table.field("nickname").column
    row = {PIPELINE.table.key_column: 7, nickname: "x" * 100_000, "partition": 0, "offset": 0, "version_at": SENT,
           "deleted": False}  # fmt: skip
    table = pa.Table.from_pylist([row], NO_ROWS.schema)
    boards = raw([RawRecord("board", 0, n, str(n), encoded(board(n))) for n in range(2_000)])
    (part,) = run(lambda splits, kafka: iter([boards]), monkeypatch, 1, Output.RETURNED, table=table)
    pages = [unpacked(each) for each in part.records]
    assert max(page.nbytes for page in pages) < 100 << 20
    assert [int(key) for page in pages for key in page["key"].to_pylist()] == [*range(2_000)]


def test_the_jvm_holds_the_results_of_few_tasks_at_once(monkeypatch):
    monkeypatch.setattr(
        join_tasks, "read_topic", lambda splits, kafka: [raw([RawRecord("board", 0, splits[0].start, "5", None)])]
    )
    context = Context(2)
    task = JoinTask(PIPELINE, KafkaConnection("nowhere:1"), "Asia/Seoul", Output.RETURNED, 1000)
    parts = parts_of([TopicSplit("board", 0, 0, 95), TopicSplit("board", 1, 0, 100)], 10)
    assert [(each.partition, each.start, each.end) for each in parts] == [
        *((0, start, min(start + 10, 95)) for start in range(0, 95, 10)),
        *((1, start, start + 10) for start in range(0, 100, 10)),
    ]
    found = run_tasks(context, [[each] for each in parts], NO_ROWS, task)
    assert context.jobs == [8, 8, 4]
    sources = [unpacked(records)["board-at"][0].as_py() for part in found for records in part.records]
    assert sources == [f"board/0/{each.start}".encode() for each in parts]
