"""Decides if a person has to approve a build before it is published, and what that person is shown."""

from dataclasses import dataclass

from include.contracts.day import Day
from include.contracts.errors import PipelineError
from include.database.named import query
from include.database.sessions import connect
from include.integrity.days.comparison import Differences, diff, select_generation
from include.integrity.days.unexplained import Seen, Unexplained, select_unexplained
from include.runtime.settings import Settings


class AskedBefore(PipelineError):
    """The run asked before, and Airflow would still show that question: reprocess the day, or leave it to the night."""


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
    return ApprovalRequest(_is_needed(found, settings), found, differences)


def needs_person(settings: Settings, day: Day, run_id: str) -> bool:
    """True if a person has to approve the run's build, as it was compared last. Raises NothingBuilt."""
    with connect(settings.database, "batch", "approval") as connection, connection.cursor() as cursor:
        generation = select_generation(cursor, day, run_id)
        return _is_needed(select_unexplained(cursor, generation.generation_id), settings)


def _is_needed(found: Unexplained, settings: Settings) -> bool:
    return found.vanishing > 0 or found.count > settings.batch.approve_unexplained_above


def save_question(settings: Settings, day: Day, seen: Seen) -> None:
    """Record that a person is asked about the build. Raises AskedBefore if its run asked about something else.

    Airflow keeps the text of a task's first question, and would show that.
    """
    with connect(settings.database, "batch", "approval") as connection, connection.cursor() as cursor:
        cursor.execute(query("save_question", cursor), {"generation_id": seen.generation_id, "digest": seen.digest})
        if cursor.rowcount == 0:
            raise AskedBefore(day=day, generation=seen.generation_id)
