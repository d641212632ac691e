"""
# audit_stream

Publishes every morning the rate of duplicates that the stream wrote, for the newest `KAFKA_RETENTION_DAYS` days.

**What a run does**: reads the duplicates that the published rebuild of each day counted in the output topic, logs and
returns the rate of each day, and records an alert for each day above `ALERT_DUPLICATES_PERCENT`. The same rates are in
`python -m include.integrity status`, and the counts in view `day_trust`.

**Danger**: none. It reads, and writes tables `alert` and `alert_notice` alone. Duplicates do not change what readers
see: the stream writes at least once, and readers see each version once.

**How to run again**: trigger it, or clear the task. A rate changes only when its day is rebuilt and published.
"""

from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable, get_current_context, task

from include.airflow_support.defaults import dag_arguments, pipeline_timezone
from include.settings import pipeline_names

for pipeline in pipeline_names():
    with DAG(
        **dag_arguments("audit_stream", pipeline, __doc__),
        description="Publishes the rate of duplicates that the stream wrote for each day.",
        schedule=CronTriggerTimetable("0 9 * * *", timezone=pipeline_timezone(pipeline)),  # after the night's rebuilds
        is_paused_upon_creation=False,
    ):

        @task
        def audit(pipeline: str) -> dict[str, Any]:
            """Publish the rates, remember days above the limit, and tell the channels what is new."""
            from include.airflow_support.watching import audit_stream

            return audit_stream(pipeline, get_current_context())

        audit(pipeline)
