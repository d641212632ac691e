"""The dry run of an undo or a redo: what readers would see in its place."""

from collections.abc import Mapping
from dataclasses import dataclass

from psycopg2.extensions import cursor as Cursor

from include.contracts.day import Day
from include.database.named import query
from include.integrity.days.day_lock import DayShows, in_turn
from include.integrity.days.publication import require_showable, target_of
from include.integrity.days.publication_history import Action, Shown
from include.integrity.pages.day_page import GenerationRow
from include.runtime.settings import Settings


@dataclass(frozen=True)
class UndoPreview:
    """An undo or a redo that was not made: the generations before and after. None: the speed layer's rows alone.

    `corrections` counts by class what an undo would make wrong again, or a redo right: the corrections of the
    generation that an undo takes away, or a redo brings back.
    """

    action: Action
    before: GenerationRow | None
    after: GenerationRow | None
    corrections: Mapping[str, int]


def preview(settings: Settings, day: Day, action: Action, to: int | None = None) -> UndoPreview:
    """Return what the undo or redo would do; changes nothing. Raises what it would raise: see `publication.undo`."""

    def look(cursor: Cursor, shows: DayShows) -> UndoPreview:
        target = target_of(cursor, shows, day, action, to)
        require_showable(cursor, shows, day, target)
        cursor.execute(query("select_generations_of_day", cursor),
                       {"day": day.date, "generation_id": shows.generation_id})  # fmt: skip
        kept: dict[Shown, GenerationRow] = {row[0]: GenerationRow(*row) for row in cursor.fetchall()}
        corrected = shows.generation_id if action == "undo" else target
        cursor.execute(query("count_corrections", cursor), {"generation_id": corrected})
        return UndoPreview(action, kept.get(shows.generation_id), kept.get(target), dict(cursor.fetchall()))

    return in_turn(settings, day, look, "look")
