"""Publish, undo and redo: they choose the generation that a day shows. Readers see the change at once, and never wait.

A publication points the day at a generation, or at none (the speed layer's rows alone), in one transaction. The view
hides live rows that the cut of the generation covers, so no rows have to move with the pointer. `pruning` moves them
later, and back before an undo, without a change for readers. The announcement of a day tells those who follow it which
action made it show what it shows.
"""

import datetime as dt
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from psycopg2.extensions import cursor as Cursor

from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.contracts.errors import BalanceBroken, NothingBuilt, PipelineError, StaleRun
from include.database.generation_store import is_attached
from include.database.named import pipeline_of, query
from include.database.sessions import connect
from include.database.shown_keys import array
from include.integrity.days.comparison import Seen, compare_served_since, require_accepted, require_verified
from include.integrity.days.day_checks import check_after_move, request_check
from include.integrity.days.day_pointer import (
    Action,
    Author,
    DayShows,
    Move,
    PublicationHistory,
    Result,
    Shown,
    run_locked,
)
from include.integrity.days.pruning import prune, uncover
from include.runtime.failpoints import failpoint
from include.runtime.lineage import lineage_of, publish_job
from include.runtime.settings import Settings

log = logging.getLogger(__name__)


SPEED_LAYER = 0  # the argument that means the speed layer's rows alone
NOT_SAID = "not said"


class DayHeld(PipelineError):
    """A person undid the day's last publication, so only a person may publish it."""


class UndoRefused(PipelineError):
    """The day cannot show the requested generation."""


@dataclass(frozen=True)
class Published:
    """The generation that the day shows, and the number of live rows that its cut covers.

    `was_identical`: the day showed the same rows already, so the new build was discarded and the pointer stays.
    """

    generation_id: int
    covered: int
    was_identical: bool = False


@dataclass(frozen=True)
class Moved:
    """An undo or a redo. Generation None: the speed layer's rows alone."""

    action: Action
    from_generation_id: Shown
    to_generation_id: Shown
    covered: int
    restored: int


@dataclass(frozen=True)
class PublicationRow:
    """One publication, undo or redo: a row of table `publication`. Generation None: the speed layer's rows alone."""

    publication_id: int
    day: dt.date
    action: Action
    from_generation_id: Shown
    to_generation_id: Shown
    reason: str | None
    made_by: str
    covered_rows: int
    restored_rows: int
    made_at: dt.datetime

    @property
    def author(self) -> Author:
        """The person and the run that made it."""
        return Author.of(self.made_by)


def publish(
    settings: Settings,
    day: Day,
    run_id: str | None = None,
    made_by: str = NOT_SAID,
    reason: str | None = None,
    automatic: bool = False,
    accept_vanishing: bool = False,
    approved: Seen | None = None,
) -> Published:
    """Point the day at its built generation (of the run, or the newest). Running it again changes nothing.

    A generation with the same content as the shown one is discarded; the shown one gets the later cut, and the day is
    no longer dirty. `automatic`: refuse a day held by a person; otherwise the hold ends with the publication.
    `approved`: what was seen when the publication was decided on; anything else is refused. Waits for a batch of the
    speed layer that writes into the day, not for readers. Raises DayNotOver; NothingBuilt; NotVerified unless `verify`
    has compared the build with the rows that the day shows; StaleRun if another run published the day meanwhile;
    DayHeld; BalanceBroken; ApprovalOutdated; RowsWouldVanish unless `accept_vanishing` or `approved`; DayBusy if
    another session holds the day for a minute; DatabaseUnavailable.
    """
    with lineage_of(settings.lineage, publish_job(settings, day)) as outcome:
        day.require_over(SystemClock().now())
        published = _run_locked_and_checked(settings, day, lambda cursor, shows: _publish(
            cursor, shows, day, run_id, made_by, reason, automatic, accept_vanishing, approved))  # fmt: skip
        outcome.generation_id = published.generation_id
    log.info("day %s: generation %d is shown%s, %d live rows covered", day, published.generation_id,
             ", and was: the new build has the same content" if published.was_identical else "",
             published.covered)  # fmt: skip
    try:
        prune(settings, day)
    except PipelineError as exc:  # the day is published nevertheless
        log.warning("day %s: old generations are left to the next `collect`: %s", day, exc)
    return published


def undo(settings: Settings, day: Day, reason: str, to: int | None = None, made_by: str = NOT_SAID) -> Moved:
    """Point the day back at its previous generation, or at the kept generation `to`, or at SPEED_LAYER.

    Holds the day: no automatic run publishes it until a person publishes or redoes it. Two calls go back two
    publications. Raises UndoRefused if there is nothing to go back to, or it is no longer kept; DayBusy;
    DatabaseUnavailable.
    """
    return _show_again(settings, day, "undo", to, reason, made_by, held_for=reason)


def redo(settings: Settings, day: Day, reason: str, made_by: str = NOT_SAID) -> Moved:
    """Show what the last undo took away, and end the hold. Raises UndoRefused; DayBusy; DatabaseUnavailable."""
    return _show_again(settings, day, "redo", None, reason, made_by, held_for=None)


def _show_again(
    settings: Settings, day: Day, action: Action, to: int | None, reason: str, made_by: str, held_for: str | None
) -> Moved:  # fmt: skip
    """Move the pointer to the target. The day is held for that reason; None ends a hold."""

    def move(cursor: Cursor, shows: DayShows) -> Moved:
        moved = _move_back(cursor, shows, day, action, target_of(cursor, shows, day, action, to), reason, made_by)
        cursor.execute(query("hold_day", cursor), {"day": day.date, "reason": held_for})
        return moved

    target = run_locked(settings, day, lambda cursor, shows: target_of(cursor, shows, day, action, to), "look")
    uncover(settings, day, target)
    return _run_locked_and_checked(settings, day, move)


def target_of(cursor: Cursor, shows: DayShows, day: Day, action: Action, to: int | None) -> Shown:
    """Return what the day would show after an undo or a redo: `to` if it is given. Raises UndoRefused without one."""
    if to is not None:
        return None if to == SPEED_LAYER else to
    moves = (Move(row.action, row.from_generation_id, row.to_generation_id) for row in _history(cursor, day))
    past = PublicationHistory.of(moves)
    if not (candidates := past.before if action == "undo" else past.undone):
        done, possible = ("published", "undone") if action == "undo" else ("undone", "redone")
        raise UndoRefused(f"nothing was {done} that could be {possible}", day=day)
    return candidates[0]


def require_showable(cursor: Cursor, shows: DayShows, day: Day, target: Shown) -> None:
    """Raise UndoRefused or BalanceBroken if an undo or a redo cannot show the target."""
    _require_kept(cursor, shows, day, target)
    _require_whole(cursor, day, target)


def history(settings: Settings, day: Day) -> list[PublicationRow]:
    """Return the publications, undos and redos of the day, oldest first. Raises DatabaseUnavailable."""
    with connect(settings.database, "batch", "history") as connection, connection.cursor() as cursor:
        return _history(cursor, day)


def _run_locked_and_checked(settings: Settings, day: Day, step: Callable[[Cursor, DayShows], Result]) -> Result:
    """Run the step, which moves the pointer or clears marks, and check the day afterwards."""

    def requesting(cursor: Cursor, shows: DayShows) -> Result:
        result = step(cursor, shows)
        request_check(cursor, day.date)
        return result

    result = run_locked(settings, day, requesting)
    check_after_move(settings, day.date)
    return result


def _publish(
    cursor: Cursor, shows: DayShows, day: Day, run_id: str | None, made_by: str, reason: str | None, automatic: bool,
    accept_vanishing: bool, approved: Seen | None,
) -> Published:  # fmt: skip
    if automatic and shows.held_reason is not None:
        raise DayHeld(day=day, reason=shows.held_reason, remedy="publish or redo it by hand")
    cursor.execute(query("select_publishable", cursor), {"day": day.date, "run_id": run_id})
    row = cursor.fetchone()
    if row is None:
        raise NothingBuilt("rebuild the day first", day=day, run=run_id or "any")
    generation_id, status, base_id, identical_to = row
    params = {"day": day.date, "generation_id": generation_id, "shown_id": shows.generation_id}
    if status == "built":
        published = _publish_built(
            cursor, shows, day, generation_id, base_id, made_by, reason, accept_vanishing, approved
        )
        cursor.execute(query("forget_attempts", cursor), {"day": day.date})
        if not automatic:
            cursor.execute(query("hold_day", cursor), {"day": day.date, "reason": None})
    elif shows.generation_id == (shown := identical_to or generation_id):
        published = Published(shown, 0, was_identical=identical_to is not None)
    else:
        raise StaleRun("its build was undone or replaced since; redo, or rebuild the day", **params)
    return published


def _publish_built(
    cursor: Cursor, shows: DayShows, day: Day, generation_id: int, base_id: Shown, made_by: str, reason: str | None,
    accept_vanishing: bool, approved: Seen | None,
) -> Published:  # fmt: skip
    params = {"day": day.date, "generation_id": generation_id, "shown_id": shows.generation_id}
    cursor.execute(query("select_is_of_replaced", cursor), params)
    if cursor.fetchone()[0]:
        pipeline = pipeline_of(cursor)
        raise StaleRun(f"topic {pipeline.stream.name} or {pipeline.table.name} was made again since this build began, "
                       "or the stream still has to be repaired (`pipeline stream repair`); then rebuild the day",
                       day=day, generation=generation_id)  # fmt: skip
    if base_id != shows.generation_id:
        raise StaleRun("the day was published, undone or redone after this build began; rebuild it to publish",
                       day=day, generation=generation_id, shown=shows.generation_id, base=base_id)  # fmt: skip
    cursor.execute(query("select_is_behind", cursor), params)
    if cursor.fetchone()[0]:
        raise StaleRun("the shown generation was built from records that this build did not read: it began earlier, "
                       "or they are in an accepted gap of the archive; rebuild the day, in a gap keep what is shown",
                       day=day, generation=generation_id, shown=shows.generation_id)  # fmt: skip
    verified = require_verified(cursor, day, generation_id, shows.generation_id)
    if shows.generation_id is not None:
        cursor.execute(query("select_is_identical", cursor), params)
        if cursor.fetchone()[0]:
            for step in ("extend_cut", "discard_identical"):
                cursor.execute(query(step, cursor), params)
            late = _cover_pending(cursor, day, shows.generation_id)
            cursor.execute(query("count_on_top", cursor), params)
            _mark_dirty(cursor, day, cursor.fetchone()[0] + late, causes=None)
            return Published(shows.generation_id, 0, was_identical=True)
    compare_served_since(cursor, day, generation_id, shows.generation_id, verified)
    if not accept_vanishing:
        require_accepted(cursor, day, generation_id, approved)
    moved, on_top = _point(cursor, shows, day, "publish", generation_id, reason, made_by)
    _mark_dirty(cursor, day, on_top, causes=None)
    return Published(generation_id, moved.covered)


def _move_back(
    cursor: Cursor, shows: DayShows, day: Day, action: Action, target: Shown, reason: str, made_by: str
) -> Moved:
    _require_kept(cursor, shows, day, target)
    moved, on_top = _point(cursor, shows, day, action, target, reason, made_by)
    if target is None:  # the speed layer's day, which the night rebuilds when it is not held
        cursor.execute(query("clear_dirty_day", cursor), {"day": day.date, "causes": None})
    else:
        _mark_dirty(
            cursor, day, on_top, causes=[f"{kind} {pipeline_of(cursor).stream.name}" for kind in ("late", "unread")]
        )
    log.info("day %s: %s from generation %s to %s, %d live rows restored, %d covered", day, action,
             moved.from_generation_id, target, moved.restored, moved.covered)  # fmt: skip
    return moved


def _point(
    cursor: Cursor, shows: DayShows, day: Day, action: Action, target: Shown, reason: str | None, made_by: str
) -> tuple[Moved, int]:
    """Move the pointer; returns also the number of live rows on top and of pending records that came after the cut.

    The caller holds the day and the tombstones.
    """
    params = {"day": day.date, "generation_id": target, "shown_id": shows.generation_id}
    _require_whole(cursor, day, target)
    late = _cover_pending(cursor, day, target)
    cursor.execute(query("restore_covered", cursor), params)
    cursor.execute(query("unpoint_day" if target is None else "point_day", cursor), params)
    if cursor.rowcount != 1:
        raise StaleRun("the generation cannot be shown; rebuild the day", **params)
    failpoint("point.after_pointer")
    if target is not None:
        cursor.execute(query("set_days_of_live_tombstones", cursor), params)
    cursor.execute(query("count_covered", cursor), params)
    covered, restored, on_top, keys = cursor.fetchone()
    if keys:
        cursor.execute(query("set_aside_known", cursor), params | {"keys": array(keys)})
        known = cursor.fetchone()[0]
        covered, on_top = covered + known, on_top - known
    cursor.execute(query("mark_published", cursor), params)
    cursor.execute(query("insert_publication", cursor), {
        **params, "action": action, "reason": reason, "made_by": made_by, "covered": covered, "restored": restored,
    })  # fmt: skip
    return Moved(action, shows.generation_id, target, covered, restored), on_top + late


def _cover_pending(cursor: Cursor, day: Day, target: Shown) -> int:
    """Mark the day's pending records that the target covers; returns how many others came after its cut."""
    cursor.execute(query("cover_pending", cursor), {"day": day.date, "generation_id": target, "only_new": False})
    return int(cursor.fetchone()[0])


def _require_kept(cursor: Cursor, shows: DayShows, day: Day, target: Shown) -> None:
    """Raise UndoRefused if the day did not show the target, or not all of its rows are kept."""
    left_at = _left_at(cursor, day, target)
    if left_at is None or (shows.undoable_since is not None and left_at < shows.undoable_since):
        raise UndoRefused("its covered live rows are not kept any more, so the day would not be whole",
                          day=day, to=target or SPEED_LAYER, kept_since=shows.undoable_since)  # fmt: skip


def _require_whole(cursor: Cursor, day: Day, target: Shown) -> None:
    """Raise BalanceBroken for a generation that lost a record: no command may show it. UndoRefused without a table."""
    cursor.execute(query("select_broken_balance", cursor), {"generation_id": target})
    row = cursor.fetchone()
    if row is not None:
        raw_distinct, row_count, pending, rejected = row
        raise BalanceBroken("rebuild the day", day=day, generation=target, raw_distinct=raw_distinct, rows=row_count,
                            pending=pending, rejected=rejected)  # fmt: skip
    if target is not None and not is_attached(cursor, target):
        raise UndoRefused("the generation's table is gone; rebuild the day", day=day, generation=target)


def _mark_dirty(cursor: Cursor, day: Day, on_top: int, causes: list[str] | None) -> None:
    """Replace the marks of these causes (None: of all) with the count of records on top of the shown generation."""
    cursor.execute(query("clear_dirty_day", cursor), {"day": day.date, "causes": causes})
    cursor.execute(query("count_unread", cursor), {"day": day.date})
    (unread,) = cursor.fetchone()
    cursor.execute(query("mark_day_dirty_again", cursor), {"day": day.date, "on_top": on_top, "unread": unread})


def _left_at(cursor: Cursor, day: Day, target: Shown) -> dt.datetime | None:
    """Return the time at which the day last stopped showing the target; None if no row says that it showed it."""
    if target is not None:
        cursor.execute(query("select_kept", cursor), {"day": day.date, "generation_id": target})
        row = cursor.fetchone()
        if row is None or row[0] != "superseded":
            raise UndoRefused("the day did not show that generation, shows it already, or does not keep it any more",
                              day=day, generation=target, status=row[0] if row else "unknown")  # fmt: skip
    left = [row.made_at for row in _history(cursor, day) if row.from_generation_id == target]
    return left[-1] if left else None


def _history(cursor: Cursor, day: Day) -> list[PublicationRow]:
    cursor.execute(query("select_publications", cursor), {"day": day.date})
    return [PublicationRow(*row) for row in cursor.fetchall()]


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
