"""What the DAGs' tasks call, one function a task: text in, as Airflow renders it, and a JSON value out, kept as XCom.

Imported inside tasks, never at parse time: it brings drivers with it.
"""

from dataclasses import asdict
from typing import Any

from include.airflow_support.days import days_between
from include.clock import SystemClock
from include.contracts.day import Day
from include.errors import Retryable
from include.gateway import client
from include.integrity import settled, steps
from include.settings import Settings


class FallbackNotDrained(Retryable):
    """The gateway's fallback store still holds events; a rebuild now would miss them."""


def replay_fallback() -> dict[str, Any]:
    """Drain the gateway's fallback store. Blocks for minutes at most; raises FallbackNotDrained, GatewayUnavailable."""
    report = client.replay_fallback(Settings.from_environment())
    if report.left:
        raise FallbackNotDrained(left=report.left)
    return asdict(report)


def wait_until_settled(timeout_s: float) -> dict[str, Any]:
    """Wait for the speed layer, at most that long; the answer says whether it caught up."""
    return asdict(settled.wait_until_settled(Settings.from_environment(), timeout_s))


def rebuildable_days(first: str, last: str) -> list[str]:
    """The days asked for, oldest first. Raises DayChoiceError for days that can't be rebuilt now."""
    settings = Settings.from_environment()
    today = Day.of(SystemClock().now(), settings.timezone)
    return days_between(first, last, settings.kafka.board_retention_days, today.date)


def verify(day: str, run_id: str) -> dict[str, Any]:
    """Compare what the run built with what is shown; the answer counts what would change. See `steps.verify`."""
    settings = Settings.from_environment()
    return asdict(steps.verify(settings, Day.parse(day, settings.timezone), run_id))


def publish(day: str, run_id: str) -> int:
    """Show what the run built; the answer is the generation. See `steps.publish`."""
    settings = Settings.from_environment()
    return steps.publish(settings, Day.parse(day, settings.timezone), run_id)


def certify(day: str) -> dict[str, Any]:
    """Certify the published day; the answer is its certificate. See `steps.certify`."""
    settings = Settings.from_environment()
    return asdict(steps.certify(settings, Day.parse(day, settings.timezone)))
