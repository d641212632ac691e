"""The tasks of the DAGs `watch_pipeline` and `audit`, and the channels of alerts: each task finds, remembers and tells.

Channels are notifiers of Airflow: log, webhook and mail. Texts are passed to `notify` as they are: Airflow would render
them as templates, and they hold data. Imported inside the tasks: it brings drivers with it.
"""

import datetime as dt
import html
import logging
from collections.abc import Collection, Mapping
from typing import Any

import httpx
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import BaseNotifier, Context, Variable
from airflow.sdk.exceptions import AirflowRuntimeError

from include.airflow_support.connections import address_of, task_settings
from include.contracts.clock import SystemClock, rfc3339
from include.contracts.errors import DatabaseUnavailable, Retryable
from include.database.schema_check import require_schema
from include.integrity.days.day_status import rate_text
from include.integrity.jobs import dag_ids
from include.integrity.watch import audit
from include.integrity.watch.alerts import AlertStore, Event, Finding, Notice, Send, notify, tell
from include.integrity.watch.conditions import database_silent, judge, read_snapshot
from include.runtime.settings import AlertSettings

log = logging.getLogger(__name__)


WEBHOOK_TIMEOUT_S = 10.0


class WebhookFailed(Retryable):
    """The webhook did not take the notice."""


class LogNotifier(BaseNotifier):
    """Writes the notice to the task's log."""

    def __init__(self, notice: Notice) -> None:
        super().__init__()
        self.notice = notice

    def notify(self, context: Context) -> None:
        """Log it: at the level of its severity, or as information when it is over."""
        level = {"critical": logging.ERROR, "warning": logging.WARNING}[self.notice.finding.severity]
        facts = "; ".join(f"{name}: {text}" for name, text in facts_of(self.notice).items())
        log.log(level if self.notice.event == "opened" else logging.INFO, "%s; %s", self.notice.title, facts)


class WebhookNotifier(BaseNotifier):
    """Posts the notice as a JSON object."""

    def __init__(self, url: str, notice: Notice) -> None:
        super().__init__()
        self.url = url
        self.notice = notice

    def notify(self, context: Context) -> None:
        """Post it. Blocks for 10 s at each step at most; raises WebhookFailed unless the answer is 2xx."""
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each address, and this one is a secret
        try:
            answer = httpx.post(self.url, json=body_of(self.notice), timeout=WEBHOOK_TIMEOUT_S)
        except httpx.HTTPError as exc:
            raise WebhookFailed(reason=type(exc).__name__) from None  # its message may have the address, a secret
        if not answer.is_success:
            raise WebhookFailed(status=answer.status_code)


def facts_of(notice: Notice) -> dict[str, str]:
    """Return the facts of a notice, with the address at which its runbook opens."""
    return {**notice.facts, "runbook": address_of(f"runbooks/{notice.finding.runbook}")}


def body_of(notice: Notice) -> dict[str, Any]:
    """Return the JSON object of a notice. `key` is the same for the begin and the end of an alert."""
    finding = notice.finding
    return {
        "event": notice.event,
        "key": f"{notice.pipeline}/{finding.name}/{finding.subject}",
        "pipeline": notice.pipeline,
        "name": finding.name,
        "subject": finding.subject,
        "title": notice.title,
        "text": finding.message,
        **{name.replace(" ", "_"): text for name, text in facts_of(notice).items() if name != "message"},
    }


def mail_of(notice: Notice, recipients: tuple[str, ...]) -> SmtpNotifier:
    """Return the mail of a notice, over the connection smtp_default, which also has the sender."""
    rows = "".join(
        f"<tr><th align='left'>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
        for name, text in facts_of(notice).items()
    )
    text = f"<p>{html.escape(notice.title)}</p><table>{rows}</table>"
    return SmtpNotifier(list(recipients), subject=notice.title, html_content=text, smtp_conn_id="smtp_default")


def channels_of(settings: AlertSettings, context: Context) -> Mapping[str, Send]:
    """Return the channels that the settings name: log always, webhook and mail with an address."""
    channels: dict[str, Send] = {"log": lambda notice: LogNotifier(notice).notify(context)}
    if settings.webhook_url:
        channels["webhook"] = lambda notice: WebhookNotifier(settings.webhook_url, notice).notify(context)
    if settings.mail_to:
        channels["mail"] = lambda notice: mail_of(notice, settings.mail_to).notify(context)
    return channels


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
