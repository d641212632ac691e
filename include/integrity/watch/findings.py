"""Findings of a watch, and the notices that tell people of them."""

import datetime as dt
from dataclasses import dataclass
from typing import Literal

from include.contracts.clock import rfc3339

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
