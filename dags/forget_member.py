"""
# forget_member

Removes the data of a person everywhere. Started by hand, through a form: a key of the pipeline's table, such as a
member's id or a customer's number, and the records of the stream that are joined to it. A dry run, the default, counts
them.

**What a run does**: drains the gateways' fallback stores and runs `pipeline days forget` as a Spark job, whose log has
the counts: rows of every day and generation, pending records, rejects, corrections and the archive, and for the
pipeline with the site's tables the system of record. It sends tombstones. The key stays forgotten: no rebuild shows it.

**Danger**: with `dry_run` off, the data are gone, and no undo or rebuild brings them back. Look at a dry run first. The
reason is kept forever: put no name into it.

**How to run again**: every task can run twice, and data already removed count as 0. Run it again after the gateways'
idempotency window of a day. The job waits in the pool `rebuild` while a rebuild is running.
"""

from airflow.sdk import DAG, task

from include.airflow_support.defaults import (
    dag_arguments,
    dry_run_field,
    forget_submission,
    key_field,
    reason_field,
    require_same_key,
)
from include.airflow_support.tasks import MADE_BY, JobSubmitOperator, replay_fallback
from include.runtime.settings import pipeline_names

KEY = "{{ params.key }}"

for pipeline in pipeline_names():
    with DAG(
        **dag_arguments("forget_member", "forget", pipeline, __doc__, "by hand"),
        description="Removes the data of a person everywhere; a dry run only counts it.",
        schedule=None,
        is_paused_upon_creation=False,  # nothing starts by itself
        params={
            "key": key_field("Key", "The person's key in the pipeline's table, such as a member's id."),
            "key_again": key_field("Key, again", "The same key once more."),
            "dry_run": dry_run_field("Count the data, and remove nothing."),
            "reason": reason_field("Kept forever, so give no personal data."),
        },
    ):

        @task
        def confirm(pipeline: str, key: str, key_again: str) -> None:
            """Refuse a key of more than 64 bits, and two different keys, before anything starts."""
            require_same_key(key, key_again)

        forget = JobSubmitOperator(
            task_id="forget",
            application_args=[
                f"--key={KEY}",
                "--reason={{ params.reason }}",
                f"--by={MADE_BY}",
                "{{ '--no-execute' if params.dry_run else '--execute' }}",
            ],
            **forget_submission(pipeline),
        )
        confirm(pipeline, KEY, "{{ params.key_again }}") >> replay_fallback(pipeline) >> forget
