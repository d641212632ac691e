"""The functions of the DAGs' tasks, one per task: arguments are text, as Airflow renders it, and results JSON.

The first argument names the pipeline: one Airflow runs the DAGs of all. Imported inside tasks, never at parse time: it
brings drivers with it.
"""

import datetime as dt
import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from include.airflow_support.connections import batch_settings, run, task_settings
from include.airflow_support.forms import FormError, require_reason
from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.contracts.errors import PipelineError, Retryable
from include.database.generation_store import GenerationStore
from include.gateway.reconcile import DEFAULT_SINCE, Scope, reconcile_sources
from include.integrity.days import certificate as certificates
from include.integrity.days import covered_rows as covering
from include.integrity.days import due_days as days
from include.integrity.days.announcement import announcement_of
from include.integrity.days.approval import needs_person, request_approval, save_question
from include.integrity.days.day_range import days_between
from include.integrity.days.gateway_stores import require_stores_read
from include.integrity.days.gateways import FallbackNotDrained
from include.integrity.days.late_members import find_late_members
from include.integrity.report import text_of

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


def replay_fallback(pipeline: str) -> dict[str, Any]:
    """Drain every gateway's store. Blocks for minutes at most; raises FallbackNotDrained, GatewayUnavailable."""
    return asdict(run("drain", pipeline=pipeline))


def wait_until_caught_up(pipeline: str, timeout_s: float) -> dict[str, Any]:
    """Wait for the speed layer, at most that long; the answer says whether it caught up."""
    return asdict(run("catch-up", pipeline=pipeline, timeout_s=timeout_s))


def days_of_the_night(pipeline: str, day: str, run_type: str) -> list[str]:
    """The days a run of the night rebuilds: a scheduled one its own and the dirty ones, a backfill its own alone."""
    settings = batch_settings(pipeline)
    match run_type:
        case "scheduled":
            find_late_members(settings)
            return days.days_to_rebuild(settings, Day.parse(day, settings.timezone))
        case "backfill":
            return rebuildable_days(pipeline, day, day)
        case _:
            raise UnknownRunType(run_type=run_type)


def days_to_certify(pipeline: str, chosen: Collection[str], run_type: str) -> list[str]:
    """Published days that earlier nights did not certify, without those that this run rebuilds; none in a backfill."""
    return days.days_to_certify(batch_settings(pipeline), chosen) if run_type == "scheduled" else []


def seconds_left(pipeline: str, started_at: dt.datetime) -> float:
    """For how long a nightly run that started then may begin another day; below 0 when its budget is spent."""
    budget_s = task_settings(pipeline).batch.night_budget_s
    return budget_s - (SystemClock().now() - started_at).total_seconds()


def take_over(pipeline: str, day: str, built_by: str, run_id: str) -> int | None:
    """Make the night's build of the day the run's own; returns its generation. See `GenerationStore.take_over`."""
    settings = batch_settings(pipeline)
    return GenerationStore(settings.database).take_over(Day.parse(day, settings.timezone), built_by, run_id)


def rebuildable_days(pipeline: str, first: str, last: str) -> list[str]:
    """The days asked for, oldest first. Raises DayChoiceError and DayNotOver for days that can't be rebuilt now."""
    settings = batch_settings(pipeline)
    days.dirty_days(settings)  # marks days that boards moved out of, before they are rebuilt
    return days_between(first, last, days.load_window(settings))


def verify(pipeline: str, day: str, run_id: str) -> dict[str, Any]:
    """Compare what the run built with what is shown; the answer counts what would change. See `comparison.verify`."""
    return asdict(run("verify", day, pipeline=pipeline, run_id=run_id))


def diff(pipeline: str, day: str, run_id: str) -> dict[str, Any]:
    """The same, with rows of each class before and after, personal values hidden. See `comparison.diff`."""
    return asdict(run("diff", day, pipeline=pipeline, run_id=run_id))


def needs_approval(pipeline: str, day: str, run_id: str) -> bool:
    """True if a person would have to approve the verified build."""
    settings = batch_settings(pipeline)
    return needs_person(settings, Day.parse(day, settings.timezone), run_id)


def approval_question(pipeline: str, day: str, run_id: str) -> tuple[str | None, dict[str, Any]]:
    """Return what a person has to know to approve the build, and what the approval is of (`unexplained.Seen`).

    The question is None if the build may be published without a person. Raises AskedBefore.
    """
    settings = batch_settings(pipeline)
    request = request_approval(settings, Day.parse(day, settings.timezone), run_id)
    found = request.unexplained
    if not request.is_needed:
        return None, asdict(found.seen)
    save_question(settings, Day.parse(day, settings.timezone), found.seen)
    question = (
        f"{found.count:,} differences are unexplained. {found.vanishing:,} of them take a row from readers "
        f"or bring one back, and raw does not say why.\n{text_of(request.differences)}"
    )
    return question, asdict(found.seen)


def publish(
    pipeline: str,
    day: str,
    run_id: str,
    made_by: str,
    reason: str,
    is_by_hand: bool,
    approved: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Show what the run built, as `approve` saw it (`unexplained.Seen`); None: whatever vanishes, a person accepted it.

    A day that a person holds is published by hand only. See `publication.publish`.
    """
    return asdict(run("publish", day, pipeline=pipeline, run_id=run_id, made_by=made_by, reason=reason or None,
                      automatic=not is_by_hand, accept_vanishing=approved is None, approved=approved))  # fmt: skip


def cover(pipeline: str, day: str) -> int:
    """Move live rows that the day covers out of the way of readers; returns how many. See `covering.cover`."""
    settings = batch_settings(pipeline)
    return covering.cover(settings, Day.parse(day, settings.timezone))


def certify(pipeline: str, day: str) -> dict[str, Any]:
    """Certify the published day; the answer is its certificate. See `certificate.certify`.

    Raises FallbackNotDrained and StreamBehind, which are tried again; NeedsRebuild when nothing but newer records
    stands against the day, which the next night takes; and NotCertified.
    """
    certificate = certify_if_possible(pipeline, day)
    if certificate.count("fallback_pending"):
        raise FallbackNotDrained(certificate.reason or "", day=day)
    if certificate.count("behind"):
        raise StreamBehind(certificate.reason or "", day=day)
    if certificate.needs_only_rebuild:
        raise NeedsRebuild(certificate.reason or "", day=day)
    if certificate.reason:
        raise NotCertified(certificate.reason, day=day)
    return asdict(certificate)


def certify_if_possible(pipeline: str, day: str) -> certificates.Certificate:
    """The day's certificate, which says why the day is not certified if it is not. See `certificate.certify`."""
    certificate: certificates.Certificate = run("certify", day, pipeline=pipeline)
    return certificate


def announcement(pipeline: str, day: str) -> dict[str, Any]:
    """Return the day after its last action, for those who follow it. See `announcement.Announcement`."""
    settings = batch_settings(pipeline)
    return asdict(announcement_of(settings, Day.parse(day, settings.timezone)))


def collect_orphans(pipeline: str) -> list[dict[str, Any]]:
    """Drop generations that nobody will publish; the answer lists them with why. See `pruning.collect_orphans`."""
    return [asdict(orphan) for orphan in run("collect", pipeline=pipeline)]


def undo(
    pipeline: str, day: str, to: str, reason: str, made_by: str, action: str, is_dry_run: bool = False
) -> dict[str, Any]:
    """Show what was shown before, or take that back. `to` is a generation or empty. See `publication.undo`.

    A dry run returns what would be shown. `made_by` names the run: one that finds its own change there has made it
    already, and changes nothing. Raises FormError, and the errors of `publication.undo`.
    """
    if action == "redo" and to:
        raise FormError("to", to, "a redo takes none: it shows what the last undo took away; leave it empty")
    mine = [one for one in run("history", day, pipeline=pipeline) if (one.made_by, one.action) == (made_by, action)]
    if mine:
        return _json(mine[0])
    target: dict[str, Any] = {"to": int(to) if to else None} if action == "undo" else {}
    return _json(run(action, day, pipeline=pipeline, reason=reason, made_by=made_by, dry_run=is_dry_run, **target))


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
    replay_fallback(pipeline)
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
