"""
# audit

Compares Kafka with the contract every morning, and publishes the rate of duplicates that the stream wrote.

**What a run does**: two tasks, neither of which waits for the other. Alerts are kept and sent as those of
`watch_pipeline`: one while its cause lasts, and an all-clear from the next audit.

- `kafka` compares the number of brokers, and of the pipeline's topics the existence, partitions, replicas, replicas in
  sync, retention, cleanup and every other setting. It also compares the settings of the pipeline's producers, and
  whether the newest records are in the partitions of their keys. It records each drift as an alert with the command
  that corrects it. Only the first pipeline's audit compares the brokers and the producers' settings.
- `stream` reads the duplicates that the published rebuild of each of the newest `KAFKA_RETENTION_DAYS` days counted in
  the output topic, logs and returns the rate of each day, and records an alert for each day above
  `ALERT_DUPLICATES_PERCENT`, and for each day of exactly-once delivery that has any. The same rates are in
  `pipeline days status`, and the counts in view `day_trust`.

**Danger**: none. It reads, and writes tables `alert` and `alert_notice` alone. Read a command before you run it: one
that reassigns partitions copies their data between brokers. Duplicates do not change what readers of the view
see: each version once.

**How to run again**: trigger it, or clear a task. Do so after a drift was corrected, so that its alert ends. A
rate changes only when its day is rebuilt and published. On a shell, `pipeline kafka audit` prints the drifts and sends
no alert.
"""

from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable, get_current_context, task

from include.airflow_support.defaults import dag_arguments, pipeline_timezone
from include.runtime.settings import pipeline_names

for pipeline in pipeline_names():
    with DAG(
        **dag_arguments("audit", "audit", pipeline, __doc__),
        description="Compares Kafka with the contract, and publishes the rate of duplicates; sends alerts for both.",
        schedule=CronTriggerTimetable("0 9 * * *", timezone=pipeline_timezone(pipeline)),  # after the night's rebuilds
        is_paused_upon_creation=False,
    ):

        @task
        def kafka(pipeline: str) -> dict[str, Any]:
            """Find the drifts, record them as alerts, and notify the channels of changes."""
            from include.airflow_support.alerts import audit_kafka

            return audit_kafka(pipeline, get_current_context())

        @task
        def stream(pipeline: str) -> dict[str, Any]:
            """Publish the rates, record days above the limit as alerts, and notify the channels."""
            from include.airflow_support.alerts import audit_stream

            return audit_stream(pipeline, get_current_context())

        kafka(pipeline)
        stream(pipeline)
