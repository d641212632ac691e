"""The announcement of a day to those who follow it: what it shows, and the action that made it show that."""

from collections.abc import Mapping
from dataclasses import dataclass

from include.contracts.day import Day
from include.contracts.errors import NothingBuilt
from include.database.named import query
from include.database.sessions import connect
from include.integrity.days.publication_history import Shown
from include.runtime.settings import Settings


@dataclass(frozen=True)
class Announcement:
    """A day after its last action: publish, republish (it had shown a generation before), undo or redo.

    Generation and hash are None while the day shows the speed layer's rows alone. `corrections` are counted by class.
    Only a day whose `status` is `certified` is proven.
    """

    day: str
    action: str
    status: str
    generation: Shown
    content_hash: str | None
    rows: int
    corrections: Mapping[str, int]


def announcement_of(settings: Settings, day: Day) -> Announcement:
    """Return the announcement of a day that was published before. Raises NothingBuilt, DatabaseUnavailable."""
    with connect(settings.database, "batch", "announcement") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_announcement", cursor), {"day": day.date})
        row = cursor.fetchone()
    if row is None:
        raise NothingBuilt("the day was never published: rebuild it first", day=day)
    return Announcement(str(day), *row)
