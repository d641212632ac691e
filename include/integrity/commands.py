"""The rebuild of a day from a shell, and whether a person has to look at the result of a step."""

from typing import Any

from include.contracts.clock import SystemClock, rfc3339
from include.contracts.day import Day
from include.gateway.client import ReplayReport
from include.integrity.days import comparison, publication
from include.integrity.days import due_days as days
from include.integrity.days.certificate import Certificate
from include.integrity.days.comparison import Differences, Report
from include.integrity.days.due_days import require_rebuildable
from include.integrity.process import rebuild as run_job
from include.integrity.report import Rebuilt
from include.integrity.watch.findings import Finding
from include.runtime.settings import Settings


def needs_a_person(result: Any) -> bool:
    """True if a person has to look at the result: differences, refused events, an uncertified day, findings."""
    match result:
        case Certificate():
            return result.reason is not None
        case Differences() | Rebuilt():
            return result.report.unexplained > 0
        case Report():
            return result.unexplained > 0
        case ReplayReport():
            return result.refused > 0
        case [Finding(), *_]:
            return True
        case _:
            return False


def rebuild(
    settings: Settings, day: Day, run_id: str | None, source: str, publish: bool, reason: str | None, made_by: str
) -> Rebuilt:
    """Build the day in a child process, and compare it; publish it if asked to and no difference is unexplained."""
    require_rebuildable(day, days.load_window(settings))
    run_id = run_id or f"by-hand-{rfc3339(SystemClock().now())}"
    run_job(day, run_id, reason, source)
    report = comparison.verify(settings, day, run_id)
    if not publish or report.unexplained:
        return Rebuilt(report, None)
    return Rebuilt(report, publication.publish(settings, day, run_id, made_by=made_by, reason=reason))
