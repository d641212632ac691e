"""The rebuild of a day from a shell, the results of commands as text, and whether a person has to look at one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from include.contracts.clock import SystemClock, rfc3339
from include.contracts.day import Day
from include.gateway.client import ReplayReport
from include.integrity.days import comparison, publication
from include.integrity.days import due_days as days
from include.integrity.days.catch_up import SpeedLayerLag
from include.integrity.days.certificate import Certificate
from include.integrity.days.comparison import Differences, Report, Sample
from include.integrity.days.day_status import Run, counts_text, rate_text
from include.integrity.days.due_days import AcknowledgedDay, DirtyDay, require_rebuildable
from include.integrity.days.gateways import MissingStore
from include.integrity.days.pruning import Orphan
from include.integrity.days.publication import Moved, PublicationRow, Published
from include.integrity.jobs import rebuild as run_job
from include.integrity.pages.day_page import GenerationRow, UndoPreview
from include.integrity.pages.page_model import DayRow
from include.integrity.pages.whereabouts import Whereabouts
from include.integrity.watch.alerts import Finding
from include.runtime.settings import Settings

SPEED_LAYER = "the speed layer's rows alone"


@dataclass(frozen=True)
class Rebuilt:
    """A day that was rebuilt and, if requested and no difference is unexplained, published."""

    report: Report
    published: Published | None


@singledispatch
def text_of(result: Any) -> str:
    """Return the result as lines. Raises NotImplementedError for a type that no command returns."""
    raise NotImplementedError(f"{type(result).__name__} has no text")


@text_of.register
def _(report: Report) -> str:
    built = report.generation
    lines = [
        f"{report.day}: generation {built.generation_id} ({built.status}) has {built.row_count:,} rows of "
        f"{built.raw_distinct:,} records, {built.pending_count:,} pending, {built.rejected_count:,} rejected",
        "Readers see no change." if not report.corrections else "It changes:",
        *_table([(name, f"{count:,}") for name, count in report.corrections.items()]),
    ]
    return "\n".join(lines)


@text_of.register
def _(rebuilt: Rebuilt) -> str:
    return "\n".join(text_of(part) for part in (rebuilt.report, rebuilt.published) if part is not None)


@text_of.register
def _(found: Differences) -> str:
    return "\n".join([text_of(found.report), *_samples(found.samples)])


@text_of.register
def _(found: Whereabouts) -> str:
    head = ("place", "day", "generation", "since", "stream", "table", "output", "event", "trace", "")
    rows = [
        (
            trace.place, str(trace.day or ""), str(trace.generation_id or ""), str(trace.at or ""),
            *("/".join(map(str, at)) if at else "" for at in (trace.stream, trace.table, trace.output)),
            trace.event_id or "", trace.trace_id or "",
            "; ".join(part for part in (trace.is_shown * "shown", trace.note) if part),
        )
        for trace in found.traces
    ]  # fmt: skip
    lines = [found.verdict, *(_table([head, *rows]) if rows else []), *_samples(found.corrections)]
    return "\n".join([*lines, *(f"not known: {place}" for place in found.unknown)])


def _samples(samples: Sequence[Sample]) -> list[str]:
    lines = []
    for sample in samples:
        lines.append(f"\n{sample.correction}  key {sample.key}")
        lines += [f"  before  {_row(sample.before)}", f"  after   {_row(sample.after)}"]
    return lines


@text_of.register
def _(certificate: Certificate) -> str:
    verdict = f"not certified: {certificate.reason}" if certificate.reason else "certified"
    lines = [f"{certificate.day}: generation {certificate.generation_id} is {verdict}"]
    lines += _table([(term.name, term.value, term.note) for term in certificate.terms])
    return "\n".join([*lines, "The query behind each term is in table day_certificate."])


@text_of.register
def _(store: MissingStore) -> str:
    return f"Given up: {store}."


@text_of.register
def _(published: Published) -> str:
    if published.was_identical:
        return f"The day shows the same content already: generation {published.generation_id} stays."
    return f"The day shows generation {published.generation_id}; {published.covered:,} live rows are covered."


@text_of.register
def _(moved: Moved) -> str:
    was, now = (_generation(one) for one in (moved.from_generation_id, moved.to_generation_id))
    return (
        f"{moved.action}: the day showed {was}, and shows {now}; "
        f"{moved.restored:,} live rows are back, {moved.covered:,} are covered."
    )


@text_of.register
def _(found: UndoPreview) -> str:
    lines = [f"{name}  {_build(one)}" for name, one in (("before", found.before), ("after ", found.after))]
    verb = "wrong again" if found.action == "undo" else "right again"
    lines += [f"Corrections that would be {verb}:"] if found.corrections else []
    return "\n".join([*lines, *_table([(name, f"{count:,}") for name, count in found.corrections.items()])])


@text_of.register
def _(lag: SpeedLayerLag) -> str:
    if lag.is_caught_up:
        return "The speed layer has taken everything."
    return f"The speed layer is behind: {lag.join_lag:,} records of the stream, {lag.serve_lag:,} of the output."


@text_of.register
def _(report: ReplayReport) -> str:
    return f"{report.sent:,} events sent, {report.left:,} still wait, {report.refused:,} set aside."


@text_of.register
def _(results: list) -> str:  # type: ignore[type-arg]  # singledispatch takes the bare class
    if not results:
        return "Nothing."
    parts: list[str] = []
    for kind, lines in _LISTS.items():
        of_kind = [one for one in results if isinstance(one, kind)]
        if of_kind:
            parts += lines(of_kind)
    return "\n".join(parts)


def _days(rows: Sequence[DayRow]) -> list[str]:
    head = (
        "day",
        "status",
        "rows",
        "live",
        "corrected",
        "pending",
        "rejected",
        "generation",
        "rebuildable",
        "duplicates",
        "arrived",
    )
    lines = _table(
        [
            head,
            *(
                (
                    str(day.day), day.status, f"{day.row_count:,}", f"{day.live_row_count:,}",
                    f"{day.correction_count:,}", f"{day.pending_count:,}", f"{day.rejected_count:,}",
                    str(day.generation_id or "none"), row.countdown, rate_text(day.duplicate_rate),
                    counts_text(day.dirty) or "nothing since",
                )
                for row in rows
                for day in [row.status]
            ),
        ]
    )  # fmt: skip
    notes = [f"{row.status.day}: {note}" for row in rows for note in row.notes]
    if len(rows) == 1 and rows[0].status.corrections:
        notes.append(f"{rows[0].status.day}: corrected {counts_text(rows[0].status.corrections)}")
    return [*lines, *notes]


def _runs(runs: Sequence[Run]) -> list[str]:
    return [
        f"newest build: generation {run.generation_id} of run {run.run_id} is {run.phase} since {run.phase_at}, "
        f"{run.records_read:,} of {run.records_total:,} records read from the {run.source}, "
        f"{run.rows_loaded:,} rows loaded" + (f"; {run.error}" if run.error else "")
        for run in runs
    ]


def _dirty(days: Sequence[DirtyDay]) -> list[str]:
    return _table(
        [(str(one.day), counts_text(one.causes), f"held: {one.held_reason}" if one.held_reason else "") for one in days]
    )


def _history(changes: Sequence[PublicationRow]) -> list[str]:
    return _table([
        (str(one.made_at), one.action, f"{_generation(one.from_generation_id)} → {_generation(one.to_generation_id)}",
         f"{one.covered_rows:,} covered, {one.restored_rows:,} restored", one.made_by, one.reason or "")
        for one in changes
    ])  # fmt: skip


def _acknowledged(days: Sequence[AcknowledgedDay]) -> list[str]:
    return _table(
        [
            (str(one.day), "is reported again" if one.is_withdrawn else "stays as it is", one.made_by, one.reason)
            for one in days
        ]
    )


def _orphans(orphans: Sequence[Orphan]) -> list[str]:
    return _table([(one.day, f"generation {one.generation_id}", one.reason) for one in orphans])


def _findings(findings: Sequence[Finding]) -> list[str]:
    head = ("severity", "alert", "subject", "since", "finding", "runbook")
    return _table([head, *(
        (one.severity, one.name, one.subject, rfc3339(one.since) if one.since else "", one.message,
         f"docs/runbooks/{one.runbook}.md")
        for one in findings
    )])  # fmt: skip


_LISTS: Mapping[type, Any] = {
    DayRow: _days, Run: _runs, DirtyDay: _dirty, AcknowledgedDay: _acknowledged, PublicationRow: _history,
    Orphan: _orphans, Finding: _findings,
}  # fmt: skip


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "(no row)"
    return ", ".join(f"{name}={value!r}" for name, value in row.items()) or "(the same)"


def _build(built: GenerationRow | None) -> str:
    if built is None:
        return SPEED_LAYER
    return (
        f"generation {built.generation_id}: {built.row_count:,} rows, hash {built.content_hash}, "
        f"built at {built.built_at} by run {built.run_id}: {built.reason or 'no reason given'}"
    )


def _generation(generation_id: int | None) -> str:
    return SPEED_LAYER if generation_id is None else f"generation {generation_id}"


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
