"""
# watch_pipeline

Checks the pipeline every five minutes and sends an alert when a condition begins, and an all-clear when it ends.

**What a run does**: reads the state of stream, gateways, Kafka, days and archive once, and judges it by a list of
conditions: the stream is silent or behind, events wait in a fallback store or are set aside, records became rejects or
are pending for too long, days are not certified by `ALERT_CERTIFIED_BY`, days that need a rebuild soon cannot be
rebuilt, a hold is not lifted, the archive is behind, a DAG is paused, a source does not answer. The table `alert`
holds the open alerts, so each is sent once. Notices go to the log of the task, to
`ALERT_WEBHOOK_URL` and to `ALERT_MAIL_TO`. A channel that fails is tried again by the next run, and the task fails.

**Danger**: none for the data: it reads, and writes tables `alert` and `alert_notice` alone. While it is paused, nobody
is alerted. It cannot report that Airflow itself is down: watch Airflow's health from outside.

**How to run again**: trigger it, or clear the task; a notice that was sent is not sent again. On a shell,
`pipeline days watch` prints the findings and sends nothing. All alerts are explained in
`docs/runbooks/alerts.md`.
"""

import datetime as dt
from typing import Any

from airflow.sdk import DAG, get_current_context, task

from include.airflow_support.defaults import dag_arguments
from include.runtime.settings import pipeline_names

for pipeline in pipeline_names():
    with DAG(
        **dag_arguments("watch_pipeline", "alerts", pipeline, __doc__),
        description="Checks the pipeline every five minutes, and sends alerts and all-clears.",
        schedule="*/5 * * * *",
        is_paused_upon_creation=False,  # nobody misses an alert that was never sent
    ):
        # no retry: the next run does the same, and comes as soon
        @task(retries=0, execution_timeout=dt.timedelta(minutes=4))
        def watch(pipeline: str) -> dict[str, Any]:
            """Find the conditions, record them as alerts, and notify the channels of changes."""
            from include.airflow_support.alerts import watch_pipeline

            return watch_pipeline(pipeline, get_current_context())

        watch(pipeline)
