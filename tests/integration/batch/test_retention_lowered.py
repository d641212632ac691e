"""A broker whose `retention.ms` was lowered: it removes records that the contract says are kept.

Whoever needs them names the topic, the partition and the offsets, and builds or takes nothing in their place.
"""

import datetime as dt
import gc

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from include.contracts.errors import MissingRange, RangeExpired
from include.database.offset_ledger import OffsetLedger
from spark_jobs.batch.rebuild import rebuild_day
from spark_jobs.speed.positions import position_of, raise_on_mismatch, starting_position
from tests.servers import kafka_server, wait_until
from tests.support.archive import DAY, NOON, OUTPUT, PIPELINE, STREAM, TABLE, Archive, a_board, a_member
from tests.support.messages import LEDGER_AND_TOPIC
from tests.support.pipeline import rows
from tests.support.topic_log import advance, taken_lease

BOARDS = 40
OFTEN = {"log.retention.check.interval.ms": "200", "log.initial.task.delay.ms": "200"}
LOWERED_MS = 3_600_000  # an hour; the records are days old


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with kafka_server(tmp_path_factory.mktemp("retention"), OFTEN) as server:
        yield server
    gc.collect()


@pytest.fixture
def archive(broker, postgres, spark, tmp_path):
    archive = Archive(broker, postgres, spark, "retention_lowered", tmp_path, rows_per_task=40)
    before = NOON - dt.timedelta(days=2)  # so that the log begins before the day, as one that lost nothing of it
    archive.send([a_member(7), *(a_board(number, hours=-48, memberId=7) for number in range(1000, 1040))], before)
    archive.send([a_board(number, memberId=7) for number in range(1, BOARDS + 1)])
    return archive


def lower(archive, topic):
    """As an operator would; returns when the records are gone."""
    entry = ConfigEntry("retention.ms", str(LOWERED_MS), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": archive.log.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(30)
    offsets = archive.offsets
    wait_until(lambda: offsets.earliest(topic) == offsets.ends(topic), 60, f"the records of {topic} are gone")


def rebuild(archive, context=None):
    return rebuild_day(context or archive.context, archive.settings, PIPELINE, DAY, "r", None)


def built(archive):
    return rows(archive.settings, "SELECT status, row_count FROM generation WHERE status <> 'building'")


@pytest.mark.parametrize("topic", [STREAM, TABLE])
def test_a_rebuild_names_the_topic_that_lost_its_records(archive, topic):
    lower(archive, topic)
    with pytest.raises(MissingRange, match=f"topic={topic}"):
        rebuild(archive)
    assert built(archive) == []
    assert rows(archive.settings, "SELECT day, runs FROM day_attempt") == [(DAY.date, 1)]  # a failure leaves a trace


@pytest.mark.timeout(300)
@pytest.mark.parametrize("topic", [STREAM, OUTPUT])  # members are read at once
def test_a_rebuild_names_records_that_went_after_its_cut(archive, topic):
    archive.send([(OUTPUT, number, b"{}") for number in range(BOARDS)])

    def context():  # what is read is fixed by now
        lower(archive, topic)
        return archive.context()

    with pytest.raises(MissingRange, match=f"topic={topic}, .*nothing of the topic is archived"):
        rebuild(archive, context)
    assert built(archive) == []


@pytest.mark.timeout(300)
def test_records_that_went_after_the_cut_come_from_the_archive(archive):
    archive.run()

    def context():
        for topic in (STREAM, TABLE):
            lower(archive, topic)
        return archive.context()

    assert rebuild(archive, context).row_count == BOARDS
    assert rebuild(archive).row_count == BOARDS


@pytest.mark.parametrize("consumer", ["join", "serve"])
def test_the_stream_names_what_it_had_not_taken(archive, consumer):
    topic = {"join": STREAM, "serve": OUTPUT}[consumer]
    archive.send([(OUTPUT, number, b"{}") for number in range(BOARDS)])
    ledger, settings = OffsetLedger(archive.settings.database), archive.settings
    lease = taken_lease(settings)
    start = starting_position(ledger, archive.offsets, consumer, topic, lease).start
    lease.release()
    advance(settings, archive.log, topic, {partition: at + 1 for partition, at in start.items()}, consumer)
    lower(archive, topic)
    lost = rf"{LEDGER_AND_TOPIC}, {{}} records lost".format(r"\d+", 1, *[r"\d+"] * 3)
    with pytest.raises(RangeExpired, match=lost):
        raise_on_mismatch(position_of(ledger, archive.offsets, consumer, topic))
