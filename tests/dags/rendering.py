"""A task's templates as Airflow's worker renders them: its own context, made of what its API server sends."""

import copy
import datetime as dt
import uuid
from functools import cache
from typing import Any

RUN_AT = dt.datetime(2026, 11, 20, 19, tzinfo=dt.UTC)
DAY, RUN_ID = "2026-11-20", "a-run"


REQUEST = {"reason": "nightly_rebuild", "made_by": "airflow", "night_started_at": RUN_AT.isoformat()}


def rendered(
    task: Any,
    run_type: str,
    conf: dict[str, Any] | None = None,
    days: tuple[str, ...] = (DAY,),
    request: dict[str, Any] = REQUEST,
    day: str = DAY,
) -> Any:
    """The task with its templates rendered, in a run of that type. Of a mapped one, the copy of the first day.

    `conf` has the values of the form, `request` those of the event that asked for the day. `days` stands for what the
    task of that name returned: results of other tasks come from a server. `day` is the run's partition key.
    """
    from airflow.sdk.api.datamodels._generated import DagRun, TIRunContext
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    class Instance(RuntimeTaskInstance):
        def xcom_pull(self, *_: Any, **__: Any) -> list[str]:
            return list(days)

    is_mapped = task.is_mapped or task.get_closest_mapped_task_group() is not None
    event = {
        "asset": {"name": "board_detail_due_day", "uri": "board_detail_due_day", "extra": {}},
        "extra": request,
        "source_task_id": "start_days", "source_dag_id": "nightly_rebuild", "source_run_id": "a-night",
        "source_map_index": -1, "source_aliases": [], "timestamp": RUN_AT, "partition_key": day,
    }  # fmt: skip
    run = DagRun(
        dag_id=task.dag_id, run_id=RUN_ID, logical_date=None, data_interval_start=None, data_interval_end=None,
        run_after=RUN_AT, start_date=RUN_AT, end_date=None, run_type=run_type, state="running", conf=conf,
        triggering_user_name="operator" if run_type == "manual" else None,
        consumed_asset_events=[event] if run_type == "asset_triggered" else [],
        partition_key=None if run_type == "manual" else day,
    )  # fmt: skip
    instance = Instance.model_construct(
        id=uuid.uuid4(), task_id=task.task_id, dag_id=task.dag_id, run_id=RUN_ID, try_number=1, start_date=RUN_AT,
        map_index=0 if is_mapped else -1, task=task.prepare_for_execution(),
    )  # fmt: skip
    instance._upstream_map_indexes = dict.fromkeys(task.upstream_task_ids, 0) if is_mapped else {}
    instance._ti_context_from_server = TIRunContext(dag_run=run, max_tries=0)
    dag = task.get_dag()
    params = copy.deepcopy(dag.params)
    try:
        instance.render_templates()
    finally:
        dag.params = params  # Airflow keeps the run's values there
    return instance.task


def submit(dag: Any, values: dict[str, Any]) -> dict[str, Any]:
    """The values a run gets, as Airflow's API checks and completes them: on its own copy of the DAG."""
    checked: dict[str, Any] = copy.deepcopy(_params(dag)).deep_merge(values).validate()
    return checked


@cache
def _params(dag: Any) -> Any:
    from airflow.serialization.serialized_objects import DagSerialization

    return DagSerialization.from_dict(DagSerialization.to_dict(dag)).params


def texts(value: Any) -> list[str]:
    """Every text in a rendered value."""
    match value:
        case str():
            return [value]
        case dict():
            return [text for each in value.values() for text in texts(each)]
        case list() | tuple():
            return [text for each in value for text in texts(each)]
        case _:
            return []
