"""Conditions that a person has to look at: each a function of a snapshot. Pure, but for `watch`."""

import datetime as dt
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple
from zoneinfo import ZoneInfo

from include.contracts.day import Day
from include.integrity.days.gateways import Unsent
from include.integrity.watch.alerts import Finding, Severity
from include.integrity.watch.snapshot import Snapshot, read_snapshot
from include.runtime.settings import AlertSettings, Settings

QUERIES = ("join", "serve")
RECENT_DAYS = 31  # for which a day that is lost has an alert of its own
NAMED_DAYS = 5  # in the message of an alert about many


class Sign(NamedTuple):
    """A finding of a condition: what it concerns, state and remedy, and since when if that is known."""

    subject: str
    message: str
    since: dt.datetime | None = None


@dataclass(frozen=True)
class Condition:
    """A condition of a pipeline. `is_known` is false if a source that it needs did not answer: an alert stays open."""

    name: str
    severity: Severity
    runbook: str
    look: Callable[[Snapshot, AlertSettings], Iterator[Sign]]
    is_known: Callable[[Snapshot, AlertSettings], bool] = lambda *_: True


@dataclass(frozen=True)
class Watched:
    """The findings, and the names of the conditions that could be checked."""

    findings: list[Finding]
    checked: list[str]


def watch(settings: Settings) -> list[Finding]:
    """Return the findings of now, the critical ones first. Blocks; errors as `read_snapshot`."""
    return judge(read_snapshot(settings), settings.alerts).findings


def judge(snapshot: Snapshot, limits: AlertSettings) -> Watched:
    """Return what the conditions find in the snapshot, the critical ones first."""
    findings = [
        Finding(one.name, one.severity, sign.message, one.runbook, sign.subject, sign.since)
        for one in CONDITIONS
        for sign in one.look(snapshot, limits)
    ]
    findings.sort(key=lambda finding: finding.severity != "critical")
    return Watched(findings, [one.name for one in CONDITIONS if one.is_known(snapshot, limits)])


def _is_silent(snapshot: Snapshot, limits: AlertSettings, query: str) -> bool:
    seen = snapshot.queries.get(query)
    return seen is None or seen.age_s > limits.stream_silent_s


def stream_silent(snapshot: Snapshot, limits: AlertSettings) -> Iterator[Sign]:
    """A query whose driver wrote no progress for too long."""
    for query in QUERIES:
        if not _is_silent(snapshot, limits, query):
            continue
        if (seen := snapshot.queries.get(query)) is None:
            yield Sign(query, f"query {query} never wrote its progress: start the stream")
        else:
            since = snapshot.window.now - dt.timedelta(seconds=seen.age_s)
            yield Sign(query, f"query {query} has been silent for {_duration(seen.age_s)}: start the stream", since)


def stream_behind(snapshot: Snapshot, limits: AlertSettings) -> Iterator[Sign]:
    """A query that is alive and too far behind its topic."""
    for query in QUERIES:
        if _is_silent(snapshot, limits, query):
            continue
        progress = snapshot.queries[query].progress
        lag_s, lag_records = progress.lag_s or 0.0, progress.lag_records or 0
        if lag_s > limits.stream_lag_s or lag_records > limits.stream_lag_records:
            waits = f"; it waits for {progress.waiting_for}" if progress.waiting_for else ""
            yield Sign(
                query,
                f"query {query} is {lag_records:,} records and {_duration(lag_s)} behind{waits}: see phases and rates",
                snapshot.window.now - dt.timedelta(seconds=lag_s),
            )


def _is_lag_known(snapshot: Snapshot, limits: AlertSettings) -> bool:
    return all(
        not _is_silent(snapshot, limits, query) and snapshot.queries[query].progress.lag_s is not None
        for query in QUERIES
    )


def gateway_silent(snapshot: Snapshot, _: AlertSettings) -> Iterator[Sign]:
    """A gateway that did not say how many events wait."""
    for url, found in snapshot.gateways.items():
        if isinstance(found, str):
            yield Sign(url, f"the gateway did not answer: {found}")


def fallback_waiting(snapshot: Snapshot, limits: AlertSettings) -> Iterator[Sign]:
    """Events that wait too long in a fallback store."""
    for url, found in _answered(snapshot):
        if found.waiting and found.oldest_s >= limits.fallback_age_s:
            yield Sign(
                url,
                f"{found.waiting:,} events wait in the fallback store, the oldest for {_duration(found.oldest_s)}: "
                "bring Kafka back, or see the gateway's log for the reason why the store is not drained",
                snapshot.window.now - dt.timedelta(seconds=found.oldest_s),
            )


def events_set_aside(snapshot: Snapshot, _: AlertSettings) -> Iterator[Sign]:
    """Accepted events that no drain will send."""
    for url, found in _answered(snapshot):
        if found.set_aside or found.lost:
            yield Sign(
                url,
                f"{found.set_aside:,} accepted events are set aside because Kafka refused them, and {found.lost:,} "
                "were lost to damage of the store: send them again, or acknowledge the loss",
            )


def store_missing(snapshot: Snapshot, _: AlertSettings) -> Iterator[Sign]:
    """Stores that answered before, and whose gateway is gone or has another store now."""
    for store in snapshot.missing_stores:
        yield Sign(
            store.store_id,
            f"{store}, no longer answers: bring its gateway back with its folder, or give the store up",
            store.seen_at,
        )


def clock_wrong(snapshot: Snapshot, limits: AlertSettings) -> Iterator[Sign]:
    """Clocks that differ: a gateway's from the brokers', PostgreSQL's from Airflow's, a driver's from PostgreSQL's."""
    found = [(url, gateway.clock_ahead_s, "the Kafka brokers'") for url, gateway in _answered(snapshot)]
    found.append(("PostgreSQL", snapshot.database_ahead_s, "Airflow's"))
    for name, seen in snapshot.queries.items():
        if not _is_silent(snapshot, limits, name):  # what a driver said last may have been corrected since
            found.append((name, seen.clock_ahead_s, "PostgreSQL's"))
    for subject, ahead_s, other in found:
        if ahead_s is not None and abs(ahead_s) > limits.clock_skew_s:
            difference = f"{_duration(abs(ahead_s))} {'ahead of' if ahead_s > 0 else 'behind'} {other}"
            remedy = "see with `date -u` which one is wrong, and correct it"
            yield Sign(subject, f"the clock of {subject} is {difference}: {remedy}")


def _answered(snapshot: Snapshot) -> Iterator[tuple[str, Unsent]]:
    for url, found in snapshot.gateways.items():
        if isinstance(found, Unsent):
            yield url, found


def _do_gateways_answer(snapshot: Snapshot, _: AlertSettings) -> bool:
    return not any(isinstance(found, str) for found in snapshot.gateways.values())


def rows_unrecovered(snapshot: Snapshot, _: AlertSettings) -> Iterator[Sign]:
    """A failover or a restore of the database whose lost rows are not written back."""
    for timeline, seen_at in snapshot.unreconciled.items():
        yield Sign(
            timeline,
            f"the database failed over, or was restored (timeline {timeline}), and rows that it lost are not written "
            "back: run the DAG reconcile_sources; no day is certified until then",
            seen_at,
        )


def kafka_silent(snapshot: Snapshot, _: AlertSettings) -> Iterator[Sign]:
    """Kafka did not answer, or lacks a topic."""
    if snapshot.kafka_silence is not None:
        yield Sign("", f"Kafka did not answer: {snapshot.kafka_silence}")


def _does_kafka_answer(snapshot: Snapshot, _: AlertSettings) -> bool:
    return snapshot.kafka_silence is None


def records_rejected(snapshot: Snapshot, _: AlertSettings) -> Iterator[Sign]:
    """Records that became rejects yesterday or today."""
    if snapshot.rejects:
        yield Sign(
            "",
            f"{snapshot.rejects:,} records became rejects since {snapshot.window.newest}: table reject has each with "
            "its reason; correct their sender",
            snapshot.first_reject_at,
        )


def pending_old(snapshot: Snapshot, limits: AlertSettings) -> Iterator[Sign]:
    """Records that wait too long for their key of the table."""
    count, oldest_s = snapshot.pending
    if count and oldest_s > limits.pending_age_s:
        yield Sign(
            "",
            f"{count:,} records are pending, the oldest for {_duration(oldest_s)}: the table has no record of their "
            "key; have its sender send it",
            snapshot.window.now - dt.timedelta(seconds=oldest_s),
        )


def day_not_certified(snapshot: Snapshot, limits: AlertSettings) -> Iterator[Sign]:
    """Past days that can be rebuilt and are not certified; yesterday from ALERT_CERTIFIED_BY on. Held days are not."""
    window = snapshot.window
    is_due = window.now.astimezone(ZoneInfo(window.zone)).time() >= limits.certified_by
    for day, why in sorted(_uncertified(snapshot).items()):
        if day in window and (day < window.newest or is_due):
            yield Sign(str(day), f"day {day} is not certified: {why}", Day(day, window.zone).end)


def day_expiring(snapshot: Snapshot, limits: AlertSettings) -> Iterator[Sign]:
    """Days that need a rebuild, and soon cannot be rebuilt: the topics drop them, and no archive has them."""
    window = snapshot.window
    for day, why in sorted(_in_need(snapshot).items()):
        left = window.days_left(day)
        if day in window and left is not None and left <= limits.expiry_days:
            yield Sign(
                str(day),
                f"day {day} can be rebuilt for {left} more days only, and {why}: rebuild it, or raise "
                "KAFKA_RETENTION_DAYS",
            )


def day_lost(snapshot: Snapshot, _: AlertSettings) -> Iterator[Sign]:
    """Days that needed a rebuild, and can no longer be rebuilt.

    Those that were lost long ago have one alert together: an import may bring years of them.
    """
    lost = lost_days(snapshot)
    for day in sorted(lost, reverse=True):
        if (snapshot.window.oldest - day).days <= RECENT_DAYS or str(day) in snapshot.alerted_lost:
            yield Sign(
                str(day),
                f"day {day} can no longer be rebuilt, and readers cannot trust it: {lost.pop(day)}. Restore its "
                "records, or acknowledge that the day stays as it is",
            )
    if lost:
        newest = "; ".join(f"{day}: {why}" for day, why in sorted(lost.items(), reverse=True)[:NAMED_DAYS])
        rest = f"; and {len(lost) - NAMED_DAYS:,} earlier ones" if len(lost) > NAMED_DAYS else ""
        yield Sign(
            "",
            f"{len(lost):,} days can no longer be rebuilt, and readers cannot trust them: {newest}{rest}. Restore "
            "their records, or acknowledge that the days stay as they are",
        )


def lost_days(snapshot: Snapshot) -> dict[dt.date, str]:
    """Return the days before the window that need a rebuild and that nobody acknowledged, with the reason.

    Readers see a row of them: a day of which only a pending record is known is left to `pending_old`.
    """
    seen = {one.day for one in snapshot.days}
    return {day: why for day, why in _in_need(snapshot).items() if day in seen and snapshot.window.is_lost(day)}


def _in_need(snapshot: Snapshot) -> dict[dt.date, str]:
    """Return the days that need a rebuild, with the reason."""
    return _uncertified(snapshot) | {
        one.day: "it is held since it was undone" if one.is_held else "records reached it after it was published"
        for one in snapshot.days
        if (one.is_held or one.is_dirty) and not one.is_acknowledged
    }


def _uncertified(snapshot: Snapshot) -> dict[dt.date, str]:
    """Return past days without a certificate that nobody holds or acknowledged, with the reason."""
    left_out = {one.day for one in snapshot.days if one.is_held or one.is_acknowledged}
    found = dict.fromkeys(snapshot.unpublished, "it was never published; see its last nightly run")
    found |= {
        one.day: one.uncertified_reason or "its night did not certify it; the next one tries again"
        for one in snapshot.days
        if one.is_published and not one.is_certified
    }
    return {day: why for day, why in found.items() if day not in left_out}


def day_held(snapshot: Snapshot, limits: AlertSettings) -> Iterator[Sign]:
    """Days that a person holds for too long."""
    for one in snapshot.days:
        held = snapshot.window.now - one.held_since if one.held_since else None
        if one.is_held and not one.is_acknowledged and (held is None or held >= dt.timedelta(days=limits.hold_days)):
            since = f"since {one.held_since:%Y-%m-%d %H:%M} UTC" if one.held_since else "since an unknown time"
            yield Sign(
                str(one.day),
                f"day {one.day} is held {since}, and nightly runs skip it: publish it by hand, or redo it",
                one.held_since,
            )


def archive_behind(snapshot: Snapshot, limits: AlertSettings) -> Iterator[Sign]:
    """Records that should be in the archive by now."""
    for topic, count in snapshot.unarchived.items():
        if count:
            yield Sign(
                topic,
                f"{count:,} records of topic {topic} are older than {_duration(limits.archive_age_s)} and not "
                "archived: see task archive of nightly_rebuild",
            )


def dag_paused(snapshot: Snapshot, _: AlertSettings) -> Iterator[Sign]:
    """DAGs of the pipeline that Airflow does not run."""
    for dag_id in snapshot.paused:
        yield Sign(dag_id, f"DAG {dag_id} is paused: unpause it")


CONDITIONS = (
    Condition("stream_silent", "critical", "stream-down", stream_silent),
    Condition("stream_behind", "warning", "stream-lag", stream_behind, _is_lag_known),
    Condition("gateway_silent", "critical", "alerts", gateway_silent),
    Condition("fallback_waiting", "warning", "gateway-fallback", fallback_waiting, _do_gateways_answer),
    Condition("events_set_aside", "critical", "gateway-fallback", events_set_aside, _do_gateways_answer),
    Condition("store_missing", "critical", "gateway-lost", store_missing, _do_gateways_answer),
    Condition("clock_wrong", "critical", "clock", clock_wrong, _do_gateways_answer),
    Condition("rows_unrecovered", "critical", "database", rows_unrecovered),
    Condition("kafka_silent", "critical", "alerts", kafka_silent),
    Condition("records_rejected", "warning", "stream-lag", records_rejected),
    Condition("pending_old", "warning", "stream-lag", pending_old),
    Condition("day_not_certified", "critical", "nightly_rebuild", day_not_certified, _does_kafka_answer),
    Condition("day_expiring", "critical", "nightly_rebuild", day_expiring, _does_kafka_answer),
    Condition("day_lost", "critical", "archive", day_lost),
    Condition("day_held", "warning", "undo", day_held),
    Condition("archive_behind", "warning", "archive", archive_behind, _does_kafka_answer),
    Condition("dag_paused", "warning", "alerts", dag_paused),
)


def database_silent(reason: str, since: dt.datetime) -> Finding:
    """Return the finding of a watch that cannot read PostgreSQL, where alerts are remembered."""
    message = f"PostgreSQL did not answer: {reason}"
    return Finding("database_silent", "critical", message, "alerts", since=since)


def _duration(seconds: float) -> str:
    """Return a duration for people, rounded down to its largest unit."""
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} seconds"
