"""A Spark job as a task, which is tried again only when that can help. Imported at parse time."""

import os
from functools import partial
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from include.contracts.errors import FINAL
from include.runtime.lineage import PARENT
from include.runtime.process_tree import die_with_parent


def _parent(context: Context) -> dict[str, str]:
    """Return the variable that names this task as the parent of the job's lineage; none if lineage is off."""
    from airflow.providers.openlineage import conf

    if conf.is_disabled():
        return {}
    from airflow.providers.openlineage.plugins.macros import lineage_parent_id

    return {PARENT: lineage_parent_id(context["ti"])}


class JobSubmitOperator(SparkSubmitOperator):
    """Submits one of our jobs. Their exit codes say what every command's do; spark-submit ends with them.

    A failure that no retry mends fails the task: three more tries would hold the pool of rebuilds for nothing. Other
    codes are tried again, also 1, with which a Python or a JVM that did not come up ends.

    The job dies with its task: when a task process is killed, a retry begins, and the job would go on beside it.
    """

    def execute(self, context: Context) -> Any:
        """Run the job to its end. Raises AirflowFailException when trying again cannot help."""
        from include.airflow_support.connections import task_environment  # brings drivers with it

        # not by env_vars: these are shown with the task, and on the command line with some masters
        os.environ.update(task_environment((self.env_vars or {})["PIPELINE"]))
        self.env_vars = {**(self.env_vars or {}), **_parent(context)}
        try:
            return super().execute(context)
        except AirflowException as exc:
            process = getattr(self._hook, "_submit_sp", None)
            if process is not None and process.returncode in FINAL:
                raise AirflowFailException(f"{exc} A retry does not help: a person has to look first.") from exc
            raise

    def _get_hook(self) -> SparkSubmitHook:
        hook = super()._get_hook()
        hook.submit = partial(hook.submit, preexec_fn=die_with_parent)  # type: ignore[method-assign]  # given to Popen
        return hook
