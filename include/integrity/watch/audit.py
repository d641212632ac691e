"""The audits: drifts of Kafka from the contract, and duplicates of the stream, as findings."""

from collections.abc import Mapping, Sequence

from include.contracts.topics import (
    MAX_MESSAGE_BYTES,
    MAX_OUTPUT_BYTES,
    PYTHON_PRODUCER_SETTINGS,
    SINK_SETTINGS,
    TRANSACTION_SETTINGS,
)
from include.gateway.kafka_producer import producer_config
from include.integrity.days.day_status import DayStatus, load_statuses, rate_text
from include.integrity.watch.alerts import Finding, Severity
from include.kafka.admin import audit_cluster, misplaced_records, producer_drifts, topics_below
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.settings import EXACTLY_ONCE, Settings, listed_pipelines

RUNBOOK = "audit"
AUDITED: Mapping[str, Severity] = {
    "brokers_missing": "critical",
    "topic_missing": "critical",
    "topic_drift": "warning",
    "topic_under_replicated": "critical",
    "producer_drift": "warning",
}


# by producer: the contract's settings, its own, and where they are set
PRODUCERS: Mapping[str, tuple[Mapping[str, object], Mapping[str, object], str]] = {
    "gateway": (
        PYTHON_PRODUCER_SETTINGS,
        producer_config(KafkaConnection(""), 1.0),
        "producer_config in include/gateway/kafka_producer.py",
    ),
    "stream": (PYTHON_PRODUCER_SETTINGS, SINK_SETTINGS, "SINK_SETTINGS in include/contracts/topics.py"),
    "stream, exactly once": (
        PYTHON_PRODUCER_SETTINGS,
        TRANSACTION_SETTINGS,
        "TRANSACTION_SETTINGS in include/contracts/topics.py",
    ),
}
STREAM_AUDITED: Mapping[str, Severity] = {"stream_duplicates": "warning"}


def audit_kafka(settings: Settings) -> list[Finding]:
    """Return the drifts of the pipeline's topics and of the records in them.

    Those of brokers and producers are the first pipeline's: all share them.

    Blocks for seconds; raises BrokerUnavailable.
    """
    pipeline, kafka = settings.pipeline, settings.kafka
    topics = [pipeline.stream, pipeline.table, pipeline.output]
    drifts = audit_cluster(kafka, topics)
    absent = {drift.subject for drift in drifts if drift.kind == "topic_missing"}
    is_first = pipeline.name == listed_pipelines()[0]
    if is_first:
        drifts += [drift for name, settings in PRODUCERS.items() for drift in producer_drifts(name, *settings)]
    drifts += misplaced_records(kafka, [topic for topic in topics if topic.name not in absent])
    found = [
        Finding(drift.kind, AUDITED[drift.kind], str(drift), RUNBOOK, drift.subject)
        for drift in drifts
        if is_first or drift.kind != "brokers_missing"
    ]
    needed = dict.fromkeys((pipeline.stream.name, pipeline.table.name), MAX_MESSAGE_BYTES)
    needed[pipeline.output.name] = MAX_OUTPUT_BYTES
    return found + [
        Finding("topic_drift", AUDITED["topic_drift"], text, RUNBOOK, f"{topic} max.message.bytes")
        for topic, needed_bytes in needed.items()
        if topic not in absent
        for text in topics_below(kafka.connection, [topic], needed_bytes)
    ]


def duplicates_by_day(settings: Settings) -> list[DayStatus]:
    """Return the published ones of the newest KAFKA_RETENTION_DAYS days. Blocks; raises DatabaseUnavailable."""
    days = load_statuses(settings, "batch", settings.kafka.retention_days)
    return [day for day in days if day.duplicate_count is not None]


def audit_stream(days: Sequence[DayStatus], limit_percent: int) -> list[Finding]:
    """Return the days with more duplicates of the stream than the limit: 0 with exactly-once delivery. Pure."""
    twice = [
        Finding(
            "stream_duplicates",
            STREAM_AUDITED["stream_duplicates"],
            f"{day.duplicate_count:,} records for day {day.day} are in the output more than once, although the "
            "delivery was exactly once: if no repair and no recheck sent them again, keep the topics, and report it "
            "with the driver's log",
            RUNBOOK,
            str(day.day),
        )
        for day in days
        if day.delivery == EXACTLY_ONCE and day.duplicate_count
    ]
    return twice + [
        Finding(
            "stream_duplicates",
            STREAM_AUDITED["stream_duplicates"],
            f"{rate_text(day.duplicate_rate)} of the records that the stream wrote for day {day.day} are duplicates "
            f"({day.duplicate_count:,}): see how often its driver was restarted",
            RUNBOOK,
            str(day.day),
        )
        for day in days
        if day.delivery != EXACTLY_ONCE and day.duplicate_rate is not None and day.duplicate_rate * 100 > limit_percent
    ]
