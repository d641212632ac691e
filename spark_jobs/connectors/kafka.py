"""Streams of Kafka topics in Spark, which plan the ranges of batches."""

import json
from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from include.contracts.offsets import Offsets
from include.runtime.kafka_connection import KafkaConnection

# Spark only plans the offsets of batches: the driver and the tasks read them.
PLANNING_OPTIONS = {"failOnDataLoss": "true", "kafka.isolation.level": "read_committed"}


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
        .options(**PLANNING_OPTIONS)
    )


def _as_json(topic: str, offsets: Mapping[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})
