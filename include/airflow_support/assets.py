"""The assets of a pipeline: a day that is due, which starts its rebuild, and a certified day, which others follow.

Imported at parse time. Events have a day as their partition key.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from airflow.sdk import Asset, Context, get_current_context

from include.contracts.errors import PipelineError
from include.integrity.jobs import dag_ids

# The newest request of the run's day: events of one key that arrive before its run is created share that run. One that
# a person creates in Airflow's website has none of these values; one that is sent to the API is nobody's word for who
# asked.
_REQUEST = "(triggering_asset_events.values() | first | sort(attribute='timestamp') | last).extra"
REQUEST_REASON = f"{{{{ {_REQUEST}.get('reason') or dag.dag_id }}}}"
_PERSON = f"(not {_REQUEST}.get('from_rest_api') and {_REQUEST}.get('made_by'))"
REQUEST_MADE_BY = f"{{{{ {_PERSON} or 'airflow' }}}}, {{{{ dag.dag_id }}}} {{{{ run_id }}}}"


class DagPaused(PipelineError):
    """A DAG that has to take the days is paused, and Airflow drops the events of a paused DAG."""


def due_day(pipeline: str) -> Asset:
    """Return the asset whose events each start a run of `rebuild_day`."""
    return Asset(f"{pipeline}_due_day")


def certified_day(pipeline: str) -> Asset:
    """Return the asset that announces days: certified ones, and days that were undone or redone."""
    return Asset(f"{pipeline}_certified_day")


def request_days(pipeline: str, days: Sequence[str], built_by: str) -> None:
    """Add an event for each day to the running task, in this order; Airflow sends them once the task has succeeded.

    `built_by` names the builds that the night has made of some of them. Raises DagPaused.
    """
    context = get_current_context()
    run, dag_id = context["dag_run"], dag_ids(pipeline)["rebuild_day"]
    if context["ti"].get_dag(dag_id).is_paused:
        raise DagPaused(f"days {', '.join(days)} are not rebuilt: unpause {dag_id}, then clear this task", dag=dag_id)
    events = context["outlet_events"][due_day(pipeline)]
    events.extra = {
        "reason": context["dag"].dag_id,
        "made_by": run.triggering_user_name or "airflow",
        "built_by": built_by,
        # a backfill is asked for by a person, and no night takes a day that it leaves
        "night_started_at": run.start_date.isoformat() if run.run_type == "scheduled" and run.start_date else None,
    }
    # add_partitions keeps a set, and the days are built in the order of their events
    events.partition_keys = dict.fromkeys(days)  # type: ignore[assignment]


def night_started_at(context: Context) -> dt.datetime | None:
    """Return the start of the night that requested the run's day; None for a day that a person requested."""
    started_at: str | None = _newest_request(context).get("night_started_at")
    return dt.datetime.fromisoformat(started_at) if started_at else None


def built_by(context: Context) -> str | None:
    """Return the name of the builds of the night that requested the run's day; None for a day requested otherwise."""
    request = _newest_request(context)
    return None if request.get("from_rest_api") else request.get("built_by")


def _newest_request(context: Context) -> dict[str, Any]:
    (requests,) = context["triggering_asset_events"].values()
    extra: dict[str, Any] = max(requests, key=lambda each: each.timestamp).extra
    return extra


def announce_day(pipeline: str, day: str) -> None:
    """Add an event of the day after its last action to the running task; Airflow sends it once the task has succeeded.

    Its extra is an `announcement.Announcement`.
    """
    from include.airflow_support.connections import day_settings
    from include.integrity.days.publication import announcement_of

    announcement = announcement_of(*day_settings(pipeline, day))
    event = get_current_context()["outlet_events"][certified_day(pipeline)]
    event.extra = asdict(announcement)
    event.add_partitions(day)
