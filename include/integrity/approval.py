"""Decides if a person has to approve a build before it is published, and what that person is shown."""

from dataclasses import dataclass

from include.adapters.postgres.sessions import connect
from include.contracts.day import Day
from include.integrity.comparison import Differences, diff
from include.integrity.unexplained import Unexplained, select_unexplained
from include.settings import Settings


@dataclass(frozen=True)
class ApprovalRequest:
    """A build, and if a person has to approve it.

    `differences` has counts by class, and rows of each class with personal values hidden.
    """

    is_needed: bool
    unexplained: Unexplained
    differences: Differences


def request_approval(settings: Settings, day: Day, run_id: str) -> ApprovalRequest:
    """Return the request for the run's build.

    A person decides on more unexplained differences than APPROVE_UNEXPLAINED_ABOVE, and on any row that would vanish or
    come back. Raises as `comparison.diff`.
    """
    differences = diff(settings, day, run_id)
    with connect(settings.database, "batch", "approval") as connection, connection.cursor() as cursor:
        found = select_unexplained(cursor, differences.report.generation.generation_id)
    is_needed = found.vanishing > 0 or found.count > settings.batch.approve_unexplained_above
    return ApprovalRequest(is_needed, found, differences)
