"""Reads ranges and streams of Kafka topics with Spark, and writes records."""

import json
import uuid
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from include.contracts.errors import MissingRange
from include.contracts.offsets import Offsets
from include.contracts.topics import SINK_SETTINGS
from include.kafka.offsets import OffsetReader
from include.runtime.kafka_connection import KafkaConnection

PRODUCER_OPTIONS = {f"kafka.{name}": value for name, value in SINK_SETTINGS.items()}

CONSUMER_OPTIONS = {
    "includeHeaders": "true",
    "failOnDataLoss": "true",
    "kafka.isolation.level": "read_committed",
    # A cached consumer has one fetch in flight when its batch ends, and the next batch waits for the response.
    # With the default of 500 ms, a batch of ten records took 2.2 s.
    "kafka.fetch.max.wait.ms": "20",
    # One consumer per partition is cached, with its last polled records and those prefetched since. With large posts
    # they would fill the heap.
    "kafka.max.poll.records": "500",
    "kafka.max.partition.fetch.bytes": "1048576",
}
# Reads of a topic's ranges share their consumers. With Spark's default, a new group per read, every read would leave
# one consumer per partition in the cache for five minutes.
RANGE_GROUP = f"spark-kafka-source-range-{uuid.uuid4()}"


def read_range(
    session: SparkSession, offset_reader: OffsetReader, topic: str, start: Offsets, end: Offsets
) -> DataFrame:
    """Return the records with `start <= offset < end`, with headers.

    Raises MissingRange if Kafka no longer holds the start. A range that is lost while it is read fails the Spark job.
    """
    earliest = offset_reader.earliest(topic)
    lost = {p: (start[p], first) for p, first in earliest.items() if start[p] < first and start[p] < end[p]}
    if lost:
        raise MissingRange(topic=topic, wanted_and_first=lost)
    return (
        session.read.format("kafka")
        .options(**offset_reader.kafka.spark())
        .option("subscribe", topic)
        .option("startingOffsets", _as_json(topic, start))
        .option("endingOffsets", _as_json(topic, end))
        # with the topic id, so that a topic that was created again gets new consumers
        .option("kafka.group.id", f"{RANGE_GROUP}-{offset_reader.topic_id(topic)}")
        .options(**CONSUMER_OPTIONS)
        .load()
    )


def stream_reader(
    session: SparkSession, kafka: KafkaConnection, topic: str, start: Offsets | None, max_records: int
) -> DataStreamReader:
    """Return a reader of the topic from `start` (the earliest offsets if None); an existing checkpoint overrides it."""
    return (
        session.readStream.format("kafka")
        .options(**kafka.spark())
        .option("subscribe", topic)
        .option("startingOffsets", "earliest" if start is None else _as_json(topic, start))
        .option("maxOffsetsPerTrigger", str(max_records))
        .options(**CONSUMER_OPTIONS)
    )


def write_records(records: DataFrame, kafka: KafkaConnection, topic: str) -> None:
    """Send the records and wait for their acknowledgement. At least once: a retried task sends its records again."""
    writer = records.write.format("kafka").options(**kafka.spark()).option("topic", topic)
    # a sink of Spark's API version 2 (see STREAM_CONFIGURATION), with which an observation of the records completes
    writer.options(**PRODUCER_OPTIONS).mode("append").save()


def _as_json(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})
