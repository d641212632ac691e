"""A day with its balance, corrections, generations and history, as its page shows it, and the dry run of an undo."""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psycopg2.extensions import cursor as Cursor

from include.contracts.day import Day
from include.database.named import query
from include.database.sessions import connect
from include.integrity.days.certificate import Term
from include.integrity.days.day_pointer import Action, DayShows, Shown, run_locked
from include.integrity.days.publication import PublicationRow, require_showable, target_of
from include.integrity.pages.page_model import DayRow, load_rows
from include.runtime.settings import Settings

SAMPLES = 20  # rows shown of each class


@dataclass(frozen=True)
class LeftOut:
    """Records of the day that are no rows, counted by kind (pending, rejected, deleted, moved) and reason."""

    kind: str
    reason: str
    count: int


@dataclass(frozen=True)
class GenerationRow:
    """A build of the day that is kept. `is_shown`: readers see it."""

    generation_id: int
    run_id: str
    reason: str | None
    status: str
    row_count: int | None
    pending_count: int | None
    rejected_count: int | None
    duplicate_count: int | None
    content_hash: str | None
    built_at: dt.datetime | None
    published_at: dt.datetime | None
    is_shown: bool


@dataclass(frozen=True)
class Changed:
    """A row that differs, in the columns `changed`. Personal values are hidden.

    `kind` is the class of a correction; between two generations it is added, removed or changed.
    """

    kind: str
    key: int
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    changed: Sequence[str]


@dataclass(frozen=True)
class Difference:
    """The difference between two generations of a day: counts by kind, and up to 20 rows."""

    from_id: int
    to_id: int
    counts: Mapping[str, int]
    rows: Sequence[Changed]


@dataclass(frozen=True)
class DayPage:
    """A day and the details of the generation that it shows; without one, `terms`, `left_out` and `balance` are empty.

    `corrections` has up to 20 rows of each class.
    """

    row: DayRow
    terms: Sequence[Term]
    corrections: Sequence[Changed]
    left_out: Sequence[LeftOut]
    generations: Sequence[GenerationRow]
    history: Sequence[PublicationRow]

    @property
    def shown(self) -> GenerationRow | None:
        """The generation that readers see; None while they see the speed layer's rows alone."""
        return next((each for each in self.generations if each.is_shown), None)

    @property
    def kept(self) -> Sequence[GenerationRow]:
        """The generations whose rows are kept, and can be compared."""
        return [each for each in self.generations if each.status in ("built", "published", "superseded")]


def load_difference(settings: Settings, day: Day, from_id: int, to_id: int) -> Difference:
    """Return the difference between two kept generations of the day. Blocks; raises DatabaseUnavailable."""
    with connect(settings.database, "integrity", "integrity") as connection, connection.cursor() as cursor:
        params = {"day": day.date, "from_id": from_id, "to_id": to_id, "limit": SAMPLES}
        cursor.execute(query("select_difference", cursor), params)
        found = cursor.fetchall()
    counts = {kind: total for kind, total, *_ in found}
    rows = [
        Changed(kind, key, _ordered(before, settings), _ordered(after, settings), changed)
        for kind, _, key, before, after, changed in found
    ]
    return Difference(from_id, to_id, counts, rows)


def _ordered(row: Mapping[str, Any] | None, settings: Settings) -> Mapping[str, Any] | None:
    """Return the row with the columns of the definition first, in its order."""
    if row is None:
        return None
    return {name: row[name] for name in dict.fromkeys((*settings.pipeline.relational_columns, *row)) if name in row}


def load_day(settings: Settings, day: Day) -> DayPage | None:
    """Return the page of the day; None for a day of which nothing is known. Blocks; raises DatabaseUnavailable."""
    rows = load_rows(settings, "integrity", day=day.date)
    if not rows:
        return None
    with connect(settings.database, "integrity", "integrity") as connection, connection.cursor() as cursor:
        params = {"day": day.date, "generation_id": rows[0].status.generation_id, "limit": SAMPLES}

        def select(name: str) -> list[tuple[Any, ...]]:
            cursor.execute(query(name, cursor), params)
            return list(cursor.fetchall())

        return DayPage(
            rows[0],
            [Term(*row) for row in select("select_certificate")],
            [
                Changed(name, key, _ordered(before, settings), _ordered(after, settings), changed)
                for name, key, before, after, changed in select("select_day_corrections")
            ],
            [LeftOut(*row) for row in select("select_left_out")],
            [GenerationRow(*row) for row in select("select_generations_of_day")],
            [PublicationRow(*row) for row in select("select_publications")],
        )


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

    return run_locked(settings, day, look, "look")
