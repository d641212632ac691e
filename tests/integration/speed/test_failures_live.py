"""Errors of the real Spark, over a real broker: whether they are caused by a record."""

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from include.kafka.offsets import OffsetReader
from include.runtime.kafka_connection import KafkaConnection
from spark_jobs.connectors.failures import cause_of, is_passing
from spark_jobs.connectors.kafka import read_range

UNLIMITED = {f"message.timestamp.{side}.max.ms": str(2**63 - 1) for side in ("before", "after")}


@pytest.fixture(scope="module")
def offsets(kafka):
    """Topic `times` has a record whose time in microseconds is beyond 64 bits, topic `one` a right record."""
    client = {"bootstrap.servers": kafka.bootstrap_servers}
    admin = AdminClient(client)
    config = {"message.timestamp.type": "CreateTime", **UNLIMITED}
    made = admin.create_topics([NewTopic(name, 1, 1, config=config) for name in ("times", "one")])
    for future in made.values():
        future.result(30)
    producer = Producer(client)
    producer.produce("times", b"x", b"1", timestamp=2**63 - 1)
    producer.produce("one", b"x", b"1")
    assert producer.flush(30) == 0
    return OffsetReader(KafkaConnection(kafka.bootstrap_servers))


@pytest.mark.parametrize(
    ("topic", "start", "end", "passes", "cause"),
    [
        ("times", 0, 1, False, "java.lang.ArithmeticException: long overflow"),
        ("one", 5, 1, True, "start offset 5 is greater than the end offset 1"),
    ],
)
def test_only_what_a_record_causes_is_for_a_record(spark, offsets, topic, start, end, passes, cause):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - of whatever class Spark's version gives it
        read_range(spark, offsets, topic, {0: start}, {0: end}).select("timestamp").collect()
    assert is_passing(caught.value) is passes
    assert cause in cause_of(caught.value)
