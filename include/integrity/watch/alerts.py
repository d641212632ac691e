"""Findings of a watch, the alerts that are open for them in PostgreSQL, and the notices that tell people of them.

A notice is sent at least once, and none twice while all goes well.
"""

import dataclasses
import datetime as dt
import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from include.contracts.clock import rfc3339
from include.contracts.errors import PipelineError, Retryable
from include.database.named import query
from include.database.sessions import connect
from include.runtime.settings import Role, Settings

log = logging.getLogger(__name__)

Severity = Literal["warning", "critical"]
Event = Literal["opened", "closed"]


@dataclass(frozen=True)
class Finding:
    """A condition that a person has to look at.

    `name` says which, `subject` what it concerns: a day, a gateway, a query or a DAG; empty for the pipeline. `message`
    says state, value and remedy; it holds neither personal data nor secrets. `runbook` is a name in docs/runbooks.
    `since` is None if only the watch knows since when it lasts.
    """

    name: str
    severity: Severity
    message: str
    runbook: str
    subject: str = ""
    since: dt.datetime | None = None


@dataclass(frozen=True)
class Notice:
    """A message about an alert of a pipeline that began, or ended at `closed_at`. Without a row, `alert_id` is 0."""

    pipeline: str
    event: Event
    finding: Finding
    since: dt.datetime
    closed_at: dt.datetime | None = None
    alert_id: int = 0

    @property
    def title(self) -> str:
        """One line: pipeline, name, subject, and how bad it is or that it is over."""
        state = self.finding.severity if self.event == "opened" else "over"
        what = " ".join(f"{self.finding.name} {self.finding.subject}".split())
        return f"[{state}] {self.pipeline}: {what}"

    @property
    def facts(self) -> dict[str, str]:
        """The lines below the title, by their names."""
        over = {"over since": rfc3339(self.closed_at)} if self.closed_at else {}
        return {
            "message": self.finding.message,
            "severity": self.finding.severity,
            "since": rfc3339(self.since),
            **over,
        }


def open_alerts(settings: Settings, role: Role = "batch") -> list[Finding]:
    """Return the open alerts, the critical ones first. Blocks; raises DatabaseUnavailable."""
    with connect(settings.database, role, "alerts") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_open_alerts", cursor))
        return [Finding(*row) for row in cursor.fetchall()]


class AlertStore:
    """The memory of the watch: it makes one alert of findings that repeat, also of two watches at once.

    Every call is one transaction. Raises DatabaseUnavailable.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def record(self, findings: Collection[Finding], checked: Collection[str], channels: Collection[str]) -> None:
        """Open, keep and close alerts, and note what each channel has to be told.

        An alert is closed if its name is among the `checked` ones and no finding has its name and subject. Alerts that
        ended RUN_RETENTION_DAYS ago are removed. Two findings may not have the same name and subject.
        """
        found = [dataclasses.asdict(one) | {"since": one.since and rfc3339(one.since)} for one in findings]
        with connect(self._settings.database, "batch", "alerts") as connection, connection.cursor() as cursor:
            cursor.execute(query("lock_alerts", cursor))
            cursor.execute(
                query("record_findings", cursor),
                {"found": json.dumps(found), "checked": list(checked), "channels": list(channels)},
            )
            cursor.execute(query("forget_alerts", cursor), {"days": self._settings.batch.run_retention_days})

    @contextmanager
    def next_notice(self, channel: str, failed: Collection[int] = ()) -> Iterator[Notice | None]:
        """Yield the next notice that the channel has not taken; None if there is none.

        At the end of the block it is marked as sent. Nobody else sends it meanwhile. If the block raises an error, or
        the process dies, the notice remains: the channel may then get it twice. `failed` are alerts to leave out.
        """
        with connect(self._settings.database, "batch", "alerts") as connection, connection.cursor() as cursor:
            cursor.execute(query("take_notice", cursor), {"channel": channel, "failed": list(failed)})
            if (row := cursor.fetchone()) is None:
                yield None
                return
            alert_id, event, name, subject, severity, message, runbook, since, closed_at = row
            finding = Finding(name, severity, message, runbook, subject, since)
            ended_at = closed_at if event == "closed" else None
            yield Notice(self._settings.pipeline.name, event, finding, since, ended_at, alert_id)
            cursor.execute(
                query("mark_notice_sent", cursor), {"alert_id": alert_id, "event": event, "channel": channel}
            )

    def count_failure(self, channel: str, notice: Notice) -> None:
        """Note that the channel did not take the notice: it comes after the others from now on."""
        with connect(self._settings.database, "batch", "alerts") as connection, connection.cursor() as cursor:
            cursor.execute(
                query("count_failed_notice", cursor),
                {"alert_id": notice.alert_id, "event": notice.event, "channel": channel},
            )


MAX_FAILURES = 3  # of a channel in a watch: each may block until its timeout
Send = Callable[[Notice], None]  # returns when the channel has taken the notice, raises any error otherwise


class NotNotified(Retryable):
    """A channel did not take all notices; the next watch sends them again."""


def notify(store: AlertStore, channels: Mapping[str, Send]) -> dict[str, int]:
    """Send what the channels have not taken yet; returns how many notices each took.

    A channel that fails is tried again by the next watch, and holds up no other channel. Each failure is logged. Raises
    NotNotified at the end if a channel failed; DatabaseUnavailable.
    """
    sent = dict.fromkeys(channels, 0)
    failing = []
    for channel, send in channels.items():
        failed: set[int] = set()
        while len(failed) < MAX_FAILURES and (taken := _send_next(store, channel, send, failed)) is not None:
            sent[channel] += taken
        failing += [channel] if failed else []
    if failing:
        raise NotNotified(channels=", ".join(failing))
    return sent


def tell(send: Send, channel: str, notice: Notice) -> bool:
    """Send one notice; returns whether the channel took it. A failure is logged."""
    try:
        send(notice)
    except PipelineError as exc:
        log.error("channel %s did not take %s: %s", channel, notice.title, exc)
        return False
    except Exception as exc:  # noqa: BLE001 - of any library; without its message, which may have an address with a token
        log.error("channel %s did not take %s: %s", channel, notice.title, type(exc).__name__)
        return False
    return True


def _send_next(store: AlertStore, channel: str, send: Send, failed: set[int]) -> bool | None:
    """Send one notice: True if it was taken, None if there is none left. Adds its alert to `failed` if it was not."""
    try:
        with store.next_notice(channel, failed) as notice:
            if notice is None:
                return None
            if not tell(send, channel, notice):
                raise _NotTaken(notice)
    except _NotTaken as exc:
        store.count_failure(channel, exc.notice)
        failed.add(exc.notice.alert_id)
        return False
    return True


class _NotTaken(Exception):
    """Rolls the transaction of a notice back."""

    def __init__(self, notice: Notice) -> None:
        super().__init__(notice.title)
        self.notice = notice
