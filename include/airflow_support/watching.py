"""The tasks of the DAGs `watch_pipeline` and `audit`: each finds, remembers and tells.

Imported inside the tasks: it brings drivers with it.
"""

import datetime as dt
import logging
from collections.abc import Collection, Mapping
from typing import Any

from airflow.sdk import Context, Variable
from airflow.sdk.exceptions import AirflowRuntimeError

from include.airflow_support.connections import task_settings
from include.airflow_support.notifiers import channels_of
from include.contracts.clock import SystemClock, rfc3339
from include.contracts.errors import DatabaseUnavailable
from include.database.schema_check import require_schema
from include.integrity.days.day_status import rate_text
from include.integrity.jobs import dag_ids
from include.integrity.watch import audit
from include.integrity.watch.alerts import AlertStore, Event, Finding, Notice, Send, notify, tell
from include.integrity.watch.conditions import database_silent, judge
from include.integrity.watch.snapshot import read_snapshot

log = logging.getLogger(__name__)


def watch_pipeline(pipeline: str, context: Context) -> dict[str, Any]:
    """Watch the pipeline once; returns the open findings, and how many notices each channel took.

    Raises NotNotified if a channel failed. If PostgreSQL does not answer, the channels are told of that alone, and
    DatabaseUnavailable is raised.
    """
    settings = task_settings(pipeline)
    channels, store = channels_of(settings.alerts, context), AlertStore(settings)
    silence = _DatabaseSilence(pipeline, channels)
    try:
        require_schema(settings.database, "batch")
        watched = judge(read_snapshot(settings, _paused(pipeline, context)), settings.alerts)
        store.record(watched.findings, watched.checked, list(channels))
    except DatabaseUnavailable as exc:
        silence.begins(exc)
        raise
    silence.ends()
    return _summary(watched.findings) | {"sent": notify(store, channels)}


def audit_kafka(pipeline: str, context: Context) -> dict[str, Any]:
    """Audit brokers and topics once; returns the same. Raises BrokerUnavailable, DatabaseUnavailable, NotNotified."""
    settings = task_settings(pipeline)
    channels, store = channels_of(settings.alerts, context), AlertStore(settings)
    require_schema(settings.database, "batch")
    findings = audit.audit_kafka(settings)
    store.record(findings, [*audit.AUDITED], list(channels))
    return _summary(findings) | {"sent": notify(store, channels)}


def audit_stream(pipeline: str, context: Context) -> dict[str, Any]:
    """Publish the duplicate rate of each day; returns it beside the rest. Raises DatabaseUnavailable, NotNotified."""
    settings = task_settings(pipeline)
    channels, store = channels_of(settings.alerts, context), AlertStore(settings)
    require_schema(settings.database, "batch")
    days = audit.duplicates_by_day(settings)
    findings = audit.audit_stream(days, settings.alerts.duplicates_percent)
    store.record(findings, [*audit.STREAM_AUDITED], list(channels))
    rates = {str(day.day): rate_text(day.duplicate_rate) for day in days}
    log.info("duplicates of the stream by day: %s", rates)
    return _summary(findings) | {"rates": rates, "sent": notify(store, channels)}


def _summary(findings: Collection[Finding]) -> dict[str, Any]:
    return {"findings": [f"{one.name} {one.subject}".strip() for one in findings]}


def _paused(pipeline: str, context: Context) -> list[str]:
    return [dag_id for dag_id in dag_ids(pipeline).values() if _is_paused(dag_id, context)]


def _is_paused(dag_id: str, context: Context) -> bool:
    try:
        return bool(context["ti"].get_dag(dag_id).is_paused)
    except AirflowRuntimeError as exc:
        if (exc.error.detail or {}).get("status_code") != 404:
            raise
        log.info("DAG %s is not known yet: Airflow reads the files one after the other when it starts", dag_id)
        return False


class _DatabaseSilence:
    """An outage of PostgreSQL, where alerts are remembered: a Variable of Airflow has since when, and who was told."""

    def __init__(self, pipeline: str, channels: Mapping[str, Send]) -> None:
        self._pipeline = pipeline
        self._channels = channels
        self._key = f"watch_pipeline_{pipeline}_database_silent"

    def begins(self, error: DatabaseUnavailable) -> None:
        """Tell each channel once."""
        known = self._known() or {"since": rfc3339(SystemClock().now()), "told": []}
        finding = database_silent(str(error), dt.datetime.fromisoformat(known["since"]))
        told = [name for name in self._channels if name in known["told"] or self._tell(name, "opened", finding)]
        Variable.set(self._key, {**known, "told": told}, serialize_json=True)

    def ends(self) -> None:
        """Tell those that were told that it is over; one that does not take it is told by the next watch."""
        if (known := self._known()) is None:
            return
        finding = database_silent("it answers again", dt.datetime.fromisoformat(known["since"]))
        left = [name for name in self._channels if name in known["told"] and not self._tell(name, "closed", finding)]
        if left:
            Variable.set(self._key, {**known, "told": left}, serialize_json=True)
        else:
            Variable.delete(self._key)

    def _known(self) -> dict[str, Any] | None:
        known: dict[str, Any] | None = Variable.get(self._key, default=None, deserialize_json=True)
        return known

    def _tell(self, channel: str, event: Event, finding: Finding) -> bool:
        assert finding.since is not None
        closed_at = SystemClock().now() if event == "closed" else None
        return tell(self._channels[channel], channel, Notice(self._pipeline, event, finding, finding.since, closed_at))
