"""Parts of tasks that decide something, beside the functions of `include.integrity` that tasks call.

Arguments are text, as Airflow renders it, and results JSON. The first argument names the pipeline: one Airflow runs the
DAGs of all. Imported inside tasks, never at parse time: it brings drivers with it.
"""

import datetime as dt
import json
import logging
from dataclasses import asdict
from typing import Any

from include.airflow_support.connections import batch_settings, day_settings, task_settings
from include.airflow_support.defaults import FormError, require_reason
from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.contracts.errors import PipelineError, Retryable
from include.gateway.reconcile import DEFAULT_SINCE, Scope, reconcile_sources
from include.integrity.commands import text_of
from include.integrity.days import certificate as certificates
from include.integrity.days import due_days as days
from include.integrity.days import gateways, publication
from include.integrity.days.catch_up import find_late_versions
from include.integrity.days.comparison import needs_person, request_approval, save_question
from include.integrity.days.due_days import days_between
from include.integrity.days.gateways import FallbackNotDrained, require_stores_read
from include.integrity.pages.day_page import preview

log = logging.getLogger(__name__)


class StreamBehind(Retryable):
    """The stream has not taken all that was accepted, and that may be of the day."""


class ApprovalMissing(PipelineError):
    """Task `approve` was marked as done and did not run, so nobody was asked; clear it with downstream tasks."""


class NotPublished(PipelineError):
    """Rows of the system of record that Kafka or its readers do not take as they are. The log has each, with why."""


class UnknownRunType(PipelineError):
    """A night's run is `scheduled` or `backfill`; the DAG passes something else."""


class NeedsRebuild(PipelineError):
    """Records reached the published day after it was built: it is certified after its next rebuild."""


class NotCertified(PipelineError):
    """The day is published, and a person has to look at it before it can be certified."""


def days_of_the_night(pipeline: str, day: str, run_type: str) -> list[str]:
    """The days a run of the night rebuilds: a scheduled one its own and the dirty ones, a backfill its own alone."""
    settings = batch_settings(pipeline)
    match run_type:
        case "scheduled":
            find_late_versions(settings)
            return days.days_to_rebuild(settings, Day.parse(day, settings.timezone))
        case "backfill":
            return rebuildable_days(pipeline, day, day)
        case _:
            raise UnknownRunType(run_type=run_type)


def seconds_left(pipeline: str, started_at: dt.datetime) -> float:
    """Return the seconds left in the night's budget; negative if it is spent."""
    budget_s = task_settings(pipeline).batch.night_budget_s
    return budget_s - (SystemClock().now() - started_at).total_seconds()


def rebuildable_days(pipeline: str, first: str, last: str) -> list[str]:
    """The days asked for, oldest first. Raises DayChoiceError and DayNotOver for days that can't be rebuilt now."""
    settings = batch_settings(pipeline)
    days.dirty_days(settings)  # marks days that keys moved out of, before they are rebuilt
    return days_between(first, last, days.load_window(settings))


def needs_approval(pipeline: str, day: str, run_id: str) -> bool:
    """True if a person would have to approve the verified build."""
    return needs_person(*day_settings(pipeline, day), run_id)


def approval_question(pipeline: str, day: str, run_id: str) -> tuple[str | None, dict[str, Any]]:
    """Return what a person has to know to approve the build, and what the approval is of (`unexplained.Seen`).

    The question is None if the build may be published without a person. Raises AskedBefore.
    """
    settings, of_day = day_settings(pipeline, day)
    request = request_approval(settings, of_day, run_id)
    found = request.unexplained
    if not request.is_needed:
        return None, asdict(found.seen)
    save_question(settings, of_day, found.seen)
    question = (
        f"{found.count:,} differences are unexplained. {found.vanishing:,} of them take a row from readers "
        f"or bring one back, and the raw records do not explain why.\n{text_of(request.differences)}"
    )
    return question, asdict(found.seen)


def certify(pipeline: str, day: str) -> dict[str, Any]:
    """Certify the published day; the answer is its certificate. See `certificate.certify`.

    Raises FallbackNotDrained and StreamBehind, which are tried again; NeedsRebuild when nothing but newer records
    stands against the day, which the next night takes; and NotCertified.
    """
    certificate = certificates.certify(*day_settings(pipeline, day))
    if certificate.count("fallback_pending"):
        raise FallbackNotDrained(certificate.reason or "", day=day)
    if certificate.count("behind"):
        raise StreamBehind(certificate.reason or "", day=day)
    if certificate.needs_only_rebuild:
        raise NeedsRebuild(certificate.reason or "", day=day)
    if certificate.reason:
        raise NotCertified(certificate.reason, day=day)
    return asdict(certificate)


def undo(
    pipeline: str, day: str, to: str, reason: str, made_by: str, action: str, is_dry_run: bool = False
) -> dict[str, Any]:
    """Show what was shown before, or take that back. `to` is a generation or empty. See `publication.undo`.

    A dry run returns what would be shown. `made_by` names the run: one that finds its own change there has made it
    already, and changes nothing. Raises FormError, and the errors of `publication.undo`.
    """
    if action not in ("undo", "redo"):
        raise FormError("action", action, "give undo or redo")
    if action == "redo" and to:
        raise FormError("to", to, "a redo takes no generation; leave it empty")
    settings, of_day = day_settings(pipeline, day)
    history = publication.history(settings, of_day)
    mine = [one for one in history if (one.made_by, one.action) == (made_by, action)]
    if mine:
        return _json(mine[0])
    target = int(to) if to else None
    if is_dry_run:
        return _json(preview(settings, of_day, "redo" if action == "redo" else "undo", target))
    if action == "redo":
        return _json(publication.redo(settings, of_day, reason, made_by))
    return _json(publication.undo(settings, of_day, reason, target, made_by))


def _json(result: Any) -> dict[str, Any]:
    """Return the fields as JSON has them: Airflow's website shows other values, such as times, as it stores them."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(result), default=str))
    return plain


def reconcile(pipeline: str, run_type: str, since: str, is_dry_run: bool, reason: str) -> list[dict[str, Any]]:
    """Publish rows that were saved and never published; returns the counts of each topic. See `reconcile_sources`.

    A run by hand needs a reason, and only it can be a dry run. `since` is a day or empty. The fallback stores are
    drained first: versions that wait in the store of another machine would be published twice. After a failover, the
    timeline of the database stays open while a store has unsent events or is missing. Raises FormError,
    FallbackNotDrained, NotPublished, StoresUnread and the errors of `reconcile_sources`.
    """
    is_by_hand = run_type == "manual"
    if is_by_hand:
        require_reason(reason)
        log.info("reason: %s", reason)
    settings, now = task_settings(pipeline), SystemClock().now()
    first = Day.parse(since, settings.timezone).start if since else now - DEFAULT_SINCE
    if first > now:
        raise FormError("since", since, "that day has not begun; give an earlier one")
    gateways.replay_fallback(batch_settings(pipeline))
    scope = Scope(
        first,
        stores=[settings.gateway.fallback_dir],
        dry_run=is_by_hand and is_dry_run,
        require_all_read=lambda: require_stores_read(settings),
    )
    done = reconcile_sources(settings, scope)
    refused, ahead = sum(one.refused for one in done), sum(one.ahead for one in done)
    if refused or ahead:
        raise NotPublished(refused=refused, ahead_of_the_clock=ahead)
    return [asdict(one) for one in done]
