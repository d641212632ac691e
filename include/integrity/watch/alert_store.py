"""Alerts that are open, and the notices of them that are still to be sent, in PostgreSQL."""

import dataclasses
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from include.contracts.clock import rfc3339
from include.database.named import query
from include.database.sessions import connect
from include.integrity.watch.findings import Finding, Notice
from include.runtime.settings import Role, Settings


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
