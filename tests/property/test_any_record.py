"""Nothing that a producer can put into a topic stops anything: every record is taken, and what is wrong has a reason.

Any records of the three topics go through the whole pipeline on real servers: join, pending, sink, archive, rebuild,
comparison, publication, certificate, page. Beside them a member and a board that are right must come out every time.
"""

import collections
import dataclasses
import itertools

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from hypothesis import Phase, example, given
from hypothesis import strategies as st

from include.contracts import headers as h
from include.contracts.clock import SystemClock, rfc3339
from include.contracts.day import Day
from include.contracts.offsets import OffsetRange
from include.contracts.pipelines import BOARD, BOARD_DETAIL, MEMBER
from include.contracts.pipelines import SITE_PIPELINE as PIPELINE
from include.contracts.topics import LOG_APPEND_TIME
from include.contracts.validation import Reject
from include.integrity.commands import text_of
from include.integrity.days.catch_up import find_late_versions
from include.integrity.days.comparison import diff
from include.integrity.days.due_days import dirty_days
from include.integrity.pages.page_model import load_rows
from include.kafka.offsets import OffsetReader
from include.kafka.reader import TopicTail
from include.runtime.retry import retry_transient
from spark_jobs.archive.archiver import archive_topics
from spark_jobs.batch.rebuild import rebuild_day
from spark_jobs.decoding.reference import read_record
from spark_jobs.speed.join_keys import JoinKeys
from spark_jobs.speed.join_tasks import topic_splits
from tests.fakes.events import board, member
from tests.property.test_stream import AnyPosition, Driver
from tests.support.any_record import EDGE_TIMES, ODD_HEADER_VALUES, ODD_KEYS, AnyRecord, Message, records, twisted
from tests.support.broker import CREATE_TIME, set_timestamps
from tests.support.certifying import certify_alone
from tests.support.examples import examples
from tests.support.pipeline import rows, with_topics
from tests.support.publication import publish
from tests.support.spark import encoded

DAY = Day.of(SystemClock().now(), "Asia/Seoul").before(2)
NOON = rfc3339(DAY.start.replace(minute=30))
GOOD = 1_000_000  # ids of the pairs that must come out
TWISTED = 2_000_000  # ids of boards in every twist of JSON
_numbers = itertools.count()


def of_the_issue():
    """Each edge by itself, in a record that is right otherwise."""
    found = []
    for number, at in enumerate(EDGE_TIMES):
        times = [{"createdAt": at}, {"modifiedAt": at}]
        found += [AnyRecord("board", b"%d" % (n + 2 * number), encoded(board(n + 2 * number, 99_999, **each)))
                  for n, each in enumerate(times, start=100)]  # fmt: skip
        found.append(AnyRecord("board", b"101", None, [(h.ACCEPTED_AT, at.encode())]))
        found.append(AnyRecord("member", b"%d" % (100 + number), encoded(member(100 + number, modifiedAt=at))))
    for number, key in enumerate(ODD_KEYS):
        found += [AnyRecord(topic, key, None) for topic in ("board", "member", "board-detail")]
        found += [AnyRecord("member", key, encoded(member(7))), AnyRecord("board", key, encoded(board(7, number)))]
    for number, value in enumerate(ODD_HEADER_VALUES):
        for name in (h.EVENT_ID, h.ACCEPTED_AT):
            key = 500 + number
            made = encoded(board(key, 7 if number % 2 else 99_999, createdAt=NOON, modifiedAt=NOON))
            found.append(AnyRecord("board", b"%d" % key, made, [(name, value)]))
    made_from = [("board-at", b"board/0/1")]
    return [*found, *twisted(MEMBER), *(record._replace(headers=made_from) for record in twisted(BOARD_DETAIL))]


class Chain(Driver):
    """The parts of the pipeline, one after the other, over topics that any producer writes to."""

    def __init__(self, spark, pipeline):
        super().__init__(spark, pipeline)
        self._pipeline = pipeline
        self._taken = {}

    def take_boards(self):
        """All boards that are in the topic by now."""
        offsets = OffsetReader(self._pipeline.kafka.connection)
        ends = offsets.ends("board")
        start = self._taken or offsets.earliest("board")
        range_ = OffsetRange(start, ends)
        self._join.process(range_, next(self._batch_id), AnyPosition())
        self._taken = ends

    def _splits(self, range_):
        return topic_splits("board", range_)

    def _keys(self):
        keys = JoinKeys(TopicTail(self._pipeline.kafka.connection, "board"), PIPELINE)
        self._parts.callback(keys.close)
        return keys

    def night(self, run_id):
        """Run the day's steps as Airflow does; render the page and the output of the commands."""
        settings, context = self._pipeline, lambda: self._spark.sparkContext
        archive_topics(context, settings, PIPELINE, run_id)
        find_late_versions(settings)
        dirty_days(settings)
        built = retry_transient(lambda: rebuild_day(context, settings, PIPELINE, DAY, run_id, None))
        # the one before lets go of the day a moment after its end
        again = retry_transient(lambda: rebuild_day(context, settings, PIPELINE, DAY, f"{run_id}-archive", None, True))
        assert again.content_hash == built.content_hash
        found = diff(settings, DAY, f"{run_id}-archive")
        published = publish(settings, DAY, f"{run_id}-archive")
        certificate = certify_alone(settings, DAY)
        shown = load_rows(settings, "integrity", limit=100_000)
        for result in (found, published, certificate, shown):
            assert text_of(result)


@pytest.fixture(scope="module")
def pipeline(kafka, postgres, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any-record")
    made = with_topics(kafka, postgres, "any_record", folder)
    # records from before the contract had the times of brokers, or of a topic that somebody changed
    set_timestamps(kafka.bootstrap_servers, CREATE_TIME, "member", "board", "board-detail")
    batch = dataclasses.replace(made.batch, archive_dir=str(folder / "archive"))
    return dataclasses.replace(made, batch=batch)


@pytest.fixture(scope="module")
def chain(spark, pipeline):
    made = Chain(spark, pipeline)
    made.start()
    yield made
    made.close()


def send(pipeline, drawn):
    """Produce the records; returns those that the broker took. It refuses times ahead of its own."""
    taken, refused = [], collections.Counter()
    producer = Producer({
        "bootstrap.servers": pipeline.kafka.bootstrap_servers, "partitioner": "murmur2_random",
        "batch.num.messages": 1,  # the broker refuses a whole batch for one record
    })  # fmt: skip
    for record in drawn:

        def delivered(error, message, record=record):
            if error is None:
                taken.append((record, message.partition(), message.offset()))
            else:
                refused[str(error), message.partition()] += 1
                assert error.code() in (KafkaError.INVALID_TIMESTAMP, KafkaError.MSG_SIZE_TOO_LARGE), error

        try:
            producer.produce(record.topic, record.value, record.key, headers=list(record.headers),
                             timestamp=record.timestamp_ms, on_delivery=delivered)  # fmt: skip
        except KafkaException as exc:  # the client itself refuses a record that is too large
            if exc.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                raise
        producer.poll(0)
    assert producer.flush(60) == 0
    print("refused by the broker:", refused)  # shown if the test fails
    return taken


ANY = st.one_of(records(BOARD), records(BOARD), records(MEMBER), records(BOARD_DETAIL))


@examples(1, 10, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(drawn=st.lists(ANY, min_size=60, max_size=120))
@example(drawn=of_the_issue())
@pytest.mark.timeout(600)
def test_no_record_stops_anything(pipeline, chain, drawn):
    number = GOOD + next(_numbers)
    now = int(SystemClock().now().timestamp() * 1000)
    values = {
        "member": member(number, modifiedAt=NOON),
        "board": board(number, number, createdAt=NOON, modifiedAt=NOON),
    }
    right = [AnyRecord(topic, b"%d" % number, encoded(value), (), now) for topic, value in values.items()]
    send(pipeline, [*drawn, *right])
    chain.take_boards()
    chain.resolve()
    chain.serve()
    assert rows(pipeline, "SELECT finality FROM board_detail WHERE board_id = %s", (number,)) == [("live",)]
    chain.start()  # a new driver loads all members, and looks at all that waits
    chain.resolve()
    chain.serve()
    chain.night(f"r{number}")
    assert rows(pipeline, "SELECT finality FROM board_detail WHERE board_id = %s", (number,)) == [("final",)]


@pytest.mark.timeout(600)
def test_the_night_has_every_twist_of_a_value_as_the_stream_showed_it(pipeline, chain):
    set_timestamps(pipeline.kafka.bootstrap_servers, LOG_APPEND_TIME, "member", "board")
    now = int(SystemClock().now().timestamp() * 1000)
    boards = [r._replace(timestamp_ms=now) for r in twisted(BOARD, TWISTED, 1, NOON, author=TWISTED)]
    author = AnyRecord("member", b"%d" % TWISTED, encoded(member(TWISTED, modifiedAt=NOON)), (), now)
    assert len(send(pipeline, [author, *boards])) == 1 + len(boards)
    chain.take_boards()
    chain.resolve()
    chain.serve()
    live = rows(pipeline, SHOWN, (TWISTED,))
    read = [read_record(Message(record, number), BOARD) for number, record in enumerate(boards)]
    right = [row.key for row in read if not isinstance(row, Reject) and row.values["member_id_"] == TWISTED]
    assert [board_id for board_id, *_ in live] == right
    assert len(right) > 50
    chain.night("twisted")
    assert rows(pipeline, SHOWN, (TWISTED,)) == live


SHOWN = """
    SELECT board_id, nickname, title, body, created_at, modified_at FROM board_detail WHERE member_id = %s ORDER BY 1
"""
