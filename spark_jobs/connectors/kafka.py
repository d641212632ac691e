"""Kafka for Spark: ranges and streams read, records written."""

import json
import uuid
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from include.adapters.kafka_offsets import OffsetReader, Offsets
from include.errors import MissingRange

PRODUCER_OPTIONS = {
    "kafka.acks": "all",
    "kafka.enable.idempotence": "true",
    "kafka.compression.type": "snappy",
    # full batches, so that the broker has fewer requests; the flush at a task's end sends what waits
    "kafka.batch.size": "262144",
    "kafka.linger.ms": "20",
}

CONSUMER_OPTIONS = {
    "includeHeaders": "true",
    "failOnDataLoss": "true",
    "kafka.isolation.level": "read_committed",
    # A cached consumer has one fetch under way when its batch ends, and the next batch waits for its answer:
    # with the default of 500 ms a batch of ten records took 2.2 s.
    "kafka.fetch.max.wait.ms": "20",
    # A consumer is kept for each partition, with the records that it polled last and those that it fetched since:
    # large posts would fill the heap with them.
    "kafka.max.poll.records": "500",
    "kafka.max.partition.fetch.bytes": "1048576",
}
# Reads of a topic's ranges share their consumers. With a group for each read, which is Spark's default, every read
# would leave a consumer for each partition behind, for five minutes.
RANGE_GROUP = f"spark-kafka-source-range-{uuid.uuid4()}"


def read_range(
    session: SparkSession, offset_reader: OffsetReader, topic: str, start: Offsets, end: Offsets
) -> DataFrame:
    """The records of `start <= offset < end`, with headers.

    Raises MissingRange when Kafka no longer holds the start; a range lost while reading fails the Spark job.
    """
    earliest = offset_reader.earliest(topic)
    lost = {p: (start[p], first) for p, first in earliest.items() if start[p] < first and start[p] < end[p]}
    if lost:
        raise MissingRange(topic=topic, wanted_and_first=lost)
    return (
        session.read.format("kafka")
        .option("kafka.bootstrap.servers", offset_reader.bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", _as_json(topic, start))
        .option("endingOffsets", _as_json(topic, end))
        .option(
            "kafka.group.id", f"{RANGE_GROUP}-{offset_reader.topic_id(topic)}"
        )  # of one made again: other consumers
        .options(**CONSUMER_OPTIONS)
        .load()
    )


def stream_reader(
    session: SparkSession, bootstrap_servers: str, topic: str, start: Offsets | None, max_records: int
) -> DataStreamReader:
    """A reader of the topic from `start` (the beginning when None); a checkpoint, once there, decides instead."""
    return (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest" if start is None else _as_json(topic, start))
        .option("maxOffsetsPerTrigger", str(max_records))
        .options(**CONSUMER_OPTIONS)
    )


def write_records(records: DataFrame, bootstrap_servers: str, topic: str) -> None:
    """Send the records and wait for their acknowledgement. At least once: a retried task sends its part again."""
    writer = records.write.format("kafka").option("kafka.bootstrap.servers", bootstrap_servers).option("topic", topic)
    # version 2 of Spark's sinks, see open_session: with it an observation of the records completes
    writer.options(**PRODUCER_OPTIONS).mode("append").save()


def _as_json(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})
