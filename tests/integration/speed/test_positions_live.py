"""The offsets at which queries begin, on a real broker and a real PostgreSQL, and ledgers that are refused."""

import itertools
import re

import pytest
from pyspark.sql import functions as F

from include.contracts.errors import ContractMismatch, DatabaseUnavailable, LedgerBeyondEnd, RangeExpired, TopicReplaced
from include.database.offset_ledger import OffsetLedger
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.connectors.kafka import stream_reader
from spark_jobs.speed.positions import refuse_replaced, starting_position
from tests.servers import wait_until
from tests.support.messages import LEDGER_AND_TOPIC
from tests.support.pipeline import migrated, rows
from tests.support.topic_log import TopicLog, advance, taken_lease

LEDGER = "SELECT consumer, partition, next_offset FROM offset_ledger ORDER BY 1, 2"


@pytest.fixture(scope="module")
def log(kafka):
    return TopicLog(kafka.bootstrap_servers)


@pytest.fixture
def settings(kafka, postgres, tmp_path):
    return migrated(kafka, postgres, "positions", tmp_path)


@pytest.fixture
def ledger(settings):
    return OffsetLedger(settings.database)


_numbers = itertools.count()


@pytest.fixture
def topic(log):
    """A topic with 5 records in partition 0 and 3 in partition 1."""
    name = f"positions-{next(_numbers)}"
    log.make(name)
    log.send(name, 0, 5)
    log.send(name, 1, 3)
    return name


@pytest.fixture
def begin(settings):
    def begin(log, ledger, topic):
        return starting_position(ledger, log.offsets, "serve", topic, taken_lease(settings)).start

    return begin


class TestStart:
    def test_a_new_query_begins_at_the_first_records_and_the_ledger_knows(self, begin, log, ledger, settings, topic):
        log.delete_before(topic, 0, 2)
        assert begin(log, ledger, topic) == {0: 2, 1: 0}
        assert rows(settings, LEDGER) == [("serve", 0, 2), ("serve", 1, 0)]

    def test_it_goes_on_where_the_ledger_is(self, begin, log, ledger, settings, topic):
        begin(log, ledger, topic)
        advance(settings, log, topic, {0: 4, 1: 3})
        log.delete_before(topic, 0, 4)
        assert begin(log, ledger, topic) == {0: 4, 1: 3}

    def test_an_added_partition_begins_at_0(self, begin, log, ledger, settings, topic):
        begin(log, ledger, topic)
        advance(settings, log, topic, {0: 5})
        log.add_partition(topic, 3)
        log.send(topic, 2, 2)
        assert begin(log, ledger, topic) == {0: 5, 1: 0, 2: 0}
        assert rows(settings, LEDGER) == [("serve", 0, 5), ("serve", 1, 0), ("serve", 2, 0)]

    def test_an_added_partition_that_dropped_records_is_refused(self, begin, log, ledger, topic):
        begin(log, ledger, topic)
        log.add_partition(topic, 3)
        log.send(topic, 2, 2)
        log.delete_before(topic, 2, 1)
        with pytest.raises(RangeExpired, match="partition 2: the ledger has no entry, the topic holds 1 to 2, 1 rec"):
            begin(log, ledger, topic)

    def test_records_deleted_beyond_the_ledger_are_refused_with_their_count(self, begin, log, ledger, settings, topic):
        begin(log, ledger, topic)
        advance(settings, log, topic, {0: 1, 1: 3})
        log.delete_before(topic, 0, 4)
        log.delete_before(topic, 1, 3)
        with pytest.raises(RangeExpired, match=f"{LEDGER_AND_TOPIC.format(0, 1, 4, 5)}, 3 records") as e:
            begin(log, ledger, topic)
        assert "partition 1" not in str(e.value)
        assert rows(settings, LEDGER) == [("serve", 0, 1), ("serve", 1, 3)]

    def test_a_topic_deleted_and_made_again_is_refused_also_when_its_offsets_would_fit(
        self, begin, log, ledger, settings, topic
    ):
        begin(log, ledger, topic)
        advance(settings, log, topic, {0: 5, 1: 3})
        before = log.offsets.topic_id(topic)
        log.make(topic)
        log.send(topic, 0, 9)
        log.send(topic, 1, 9)
        with pytest.raises(TopicReplaced, match=LEDGER_AND_TOPIC.format(0, 5, 0, 9)):
            begin(log, ledger, topic)
        with pytest.raises(TopicReplaced, match=re.escape(f"was={before}")):  # the look of a query that runs
            refuse_replaced(log.offsets, "serve", topic, before)
        assert rows(settings, LEDGER) == [("serve", 0, 5), ("serve", 1, 3)]

    def test_a_ledger_beyond_the_end_is_refused(self, begin, log, ledger, settings, topic):
        begin(log, ledger, topic)
        advance(settings, log, topic, {0: 6, 1: 3})
        with pytest.raises(LedgerBeyondEnd, match=LEDGER_AND_TOPIC.format(0, 6, 0, 5)):
            begin(log, ledger, topic)

    def test_a_topic_that_does_not_exist_is_named(self, begin, log, ledger):
        with pytest.raises(ContractMismatch, match=r"create the topics first \(topic=nowhere\)"):
            begin(log, ledger, "nowhere")

    def test_a_database_that_takes_no_writes_is_waited_for(self, begin, log, ledger, settings, topic):
        begin(log, ledger, topic)
        rows(settings, "ALTER DATABASE positions SET default_transaction_read_only = on")
        try:
            with pytest.raises(DatabaseUnavailable, match="sqlstate=25006"):
                begin(log, OffsetLedger(settings.database), topic)  # only new sessions are read-only
        finally:
            rows(settings, "SET TRANSACTION READ WRITE; ALTER DATABASE positions RESET ALL")
        assert begin(log, ledger, topic) == {0: 0, 1: 0}

    def test_a_connection_that_was_cut_is_made_again(self, begin, log, ledger, settings, postgres, topic):
        begin(log, ledger, topic)
        rows(settings, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ledger'",
             role="stream")  # fmt: skip
        with pytest.raises(DatabaseUnavailable):
            begin(log, ledger, topic)
        assert begin(log, ledger, topic) == {0: 0, 1: 0}


@pytest.mark.timeout(180)
def test_a_partition_added_while_a_query_runs_is_read_from_its_beginning(
    begin, log, ledger, settings, spark, topic, tmp_path
):
    """Spark's source finds the partition, and the ledger accepts its first advance from 0."""
    lease, topic_id = taken_lease(settings), log.offsets.topic_id(topic)
    places = dict(starting_position(ledger, log.offsets, "serve", topic, lease).start)
    seen = []

    def process(records, batch_id):
        seen.extend(row[0].decode() for row in records.select("value").collect())
        ends = {row[0]: row[1] + 1 for row in records.groupBy("partition").agg(F.max("offset")).collect()}
        places.update(ledger.advance("serve", topic, topic_id, places, ends, lease))

    query = (
        stream_reader(spark, KafkaConnection(log.bootstrap_servers), topic, places, 100)
        .load()
        .writeStream.foreachBatch(process)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0.2 seconds")
        .start()
    )

    def is_at(partition, offset):
        assert query.isActive, query.exception()
        return ("serve", partition, offset) in rows(settings, LEDGER)

    try:
        wait_until(lambda: is_at(0, 5) and is_at(1, 3), 60, "the first records are taken")
        log.add_partition(topic, 3)
        log.send(topic, 2, 4)
        wait_until(lambda: is_at(2, 4), 60, "those of the added partition are taken")
    finally:
        query.stop()
    assert sorted(seen) == sorted(
        f"{partition}-{n}" for partition, count in ((0, 5), (1, 3), (2, 4)) for n in range(count)
    )
    assert begin(log, ledger, topic) == {0: 5, 1: 3, 2: 4}
