"""
# audit_kafka

Compares Kafka with the contract every morning: the number of brokers, and of the pipeline's topics the existence,
partitions, replicas, replicas in sync, retention, cleanup and every other setting. It also compares the settings of the
pipeline's producers, and whether the newest records are in the partitions of their keys.

**What a run does**: reads brokers and topics, and records each drift as an alert with the command that mends it. Alerts
are kept and sent as those of `watch_pipeline`: one while a drift lasts, and an all-clear from the next audit. The
brokers and the producers' settings are the first pipeline's to audit.

**Danger**: none. It reads Kafka and alters nothing there. Read a command before you run it: one that reassigns
partitions copies their data between brokers.

**How to run again**: trigger it, or clear the task; do so after a drift was mended, so that its alert ends. On a shell,
`python -m include.integrity audit` prints the drifts and tells nobody.
"""

from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable, get_current_context, task

from include.airflow_support.defaults import dag_arguments, pipeline_timezone
from include.settings import pipeline_names

for pipeline in pipeline_names():
    with DAG(
        **dag_arguments("audit_kafka", pipeline, __doc__),
        description="Compares Kafka's brokers and topics with the contract, and sends alerts for drifts.",
        schedule=CronTriggerTimetable("30 5 * * *", timezone=pipeline_timezone(pipeline)),
        is_paused_upon_creation=False,
    ):

        @task
        def audit(pipeline: str) -> dict[str, Any]:
            """Find the drifts, remember them, and tell the channels what is new."""
            from include.airflow_support.watching import audit_kafka

            return audit_kafka(pipeline, get_current_context())

        audit(pipeline)
