"""Decides if a person has to approve a build before it is published, and what that person is shown."""

from dataclasses import dataclass

from include.adapters.postgres.sessions import connect
from include.contracts.day import Day
from include.integrity.comparison import Differences, diff
from include.settings import Settings
from include.sql.named import query


@dataclass(frozen=True)
class ApprovalRequest:
    """A build that waits for a person.

    `vanishing` of the unexplained differences take a row from readers, or bring one back.
    `differences` has counts by class, and rows of each class with personal values hidden.
    """

    vanishing: int
    differences: Differences

    @property
    def unexplained(self) -> int:
        """Differences without an explanation."""
        return self.differences.report.unexplained


def request_approval(settings: Settings, day: Day, run_id: str) -> ApprovalRequest | None:
    """Return the request for the run's build; None if it may be published without a person.

    A person decides on more unexplained differences than APPROVE_UNEXPLAINED_ABOVE, and on any row that would vanish or
    come back. Raises as `comparison.diff`.
    """
    differences = diff(settings, day, run_id)
    if not differences.report.unexplained:
        return None
    with connect(settings.database, "batch", "approval") as connection, connection.cursor() as cursor:
        cursor.execute(query("count_vanishing", cursor), {"generation_id": differences.report.generation.generation_id})
        vanishing, _ = cursor.fetchone()
    request = ApprovalRequest(vanishing, differences)
    is_needed = vanishing > 0 or request.unexplained > settings.batch.approve_unexplained_above
    return request if is_needed else None
