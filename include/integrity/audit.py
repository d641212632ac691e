"""The audit of Kafka: drifts from the contract, as findings."""

from collections.abc import Mapping

from include.adapters.kafka.admin import topics_below
from include.adapters.kafka.audit import audit_cluster
from include.gateway.limits import MAX_MESSAGE_BYTES
from include.integrity.findings import Finding, Severity
from include.settings import Settings, listed_pipelines

RUNBOOK = "audit_kafka"
AUDITED: Mapping[str, Severity] = {
    "brokers_missing": "critical",
    "topic_missing": "critical",
    "topic_drift": "warning",
    "topic_under_replicated": "critical",
}


def audit_kafka(settings: Settings) -> list[Finding]:
    """Return the drifts of the pipeline's topics, and of the brokers if the pipeline is the first: all share them.

    Blocks for seconds; raises BrokerUnavailable.
    """
    pipeline, kafka = settings.pipeline, settings.kafka
    drifts = audit_cluster(kafka, [pipeline.stream, pipeline.table, pipeline.output])
    is_first = pipeline.name == listed_pipelines()[0]
    found = [
        Finding(drift.kind, AUDITED[drift.kind], str(drift), RUNBOOK, drift.subject)
        for drift in drifts
        if is_first or drift.kind != "brokers_missing"
    ]
    absent = {drift.subject for drift in drifts if drift.kind == "topic_missing"}
    raw = [topic.name for topic in (pipeline.stream, pipeline.table) if topic.name not in absent]
    return found + [
        Finding("topic_drift", AUDITED["topic_drift"], text, RUNBOOK, f"{topic} max.message.bytes")
        for topic in raw
        for text in topics_below(kafka.bootstrap_servers, [topic], MAX_MESSAGE_BYTES)
    ]
