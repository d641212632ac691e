"""The watch of a pipeline: a snapshot of its state, and the conditions that a person has to look at.

A snapshot is read once, from every source. A condition is a pure function of it.
"""

import datetime as dt
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from zoneinfo import ZoneInfo

from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.contracts.errors import BrokerUnavailable, ContractMismatch
from include.database.named import query
from include.database.sessions import connect
from include.database.stream_progress import Pending, Seen, StreamProgressStore
from include.integrity.days.due_days import Window, days_in_topic, select_window, unpublished_days
from include.integrity.days.gateways import MissingStore, Unsent, missing_stores, note_stores, unsent_or_reason
from include.integrity.watch.alerts import Finding, Severity
from include.kafka.offsets import OffsetReader
from include.runtime.settings import AlertSettings, Role, Settings, listed_pipelines

GATEWAY_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class WatchedDay:
    """A day that readers see. `held_since` is None for a day that nobody holds, or if nobody noted since when.

    `is_acknowledged`: a person leaves the day as it is, and nothing happened to it since.
    """

    day: dt.date
    status: str
    is_published: bool
    is_dirty: bool
    uncertified_reason: str | None
    is_held: bool
    held_since: dt.datetime | None
    is_acknowledged: bool = False

    @property
    def is_certified(self) -> bool:
        """True if the day has a certificate."""
        return self.status == "certified"


@dataclass(frozen=True)
class Snapshot:
    """Values of every source. A source that did not answer has a reason in its place.

    `unpublished`: past days with records that were never published; those known to PostgreSQL alone if Kafka does not
    answer. `unarchived`: records by topic that reached Kafka ALERT_ARCHIVE_AGE_S ago or before. `gateways`: by address;
    empty for further pipelines, because all share the gateways, and so are `missing_stores`. `paused`: DAGs of the
    pipeline that are paused. `unreconciled`: timelines of the database whose lost rows are not written back, and when
    each was first seen.
    `alerted_lost`: days of which an alert says that they are lost. `database_ahead_s`: seconds by which PostgreSQL's
    clock is ahead of the reader's.
    """

    window: Window
    queries: Mapping[str, Seen]
    pending: Pending
    rejects: int
    first_reject_at: dt.datetime | None
    days: Collection[WatchedDay]
    unpublished: Collection[dt.date]
    unarchived: Mapping[str, int] = field(default_factory=dict)
    kafka_silence: str | None = None
    gateways: Mapping[str, Unsent | str] = field(default_factory=dict)
    missing_stores: Collection[MissingStore] = ()
    unreconciled: Mapping[str, dt.datetime] = field(default_factory=dict)
    paused: Collection[str] = ()
    alerted_lost: Collection[str] = ()
    database_ahead_s: float = 0.0


def read_snapshot(settings: Settings, paused: Collection[str] = ()) -> Snapshot:
    """Read every source. Blocks for seconds, and up to minutes if Kafka does not answer. Raises DatabaseUnavailable."""
    with connect(settings.database, "batch", "watch") as connection, connection.cursor() as cursor:
        window = select_window(cursor, settings)
        cursor.execute(query("select_clock", cursor))
        database_ahead_s = (cursor.fetchone()[0] - SystemClock().now()).total_seconds()
        oldest = window.today - dt.timedelta(days=window.retention_days)
        cursor.execute(query("select_watched_days", cursor), {"oldest": oldest, "newest": window.newest})
        days = [WatchedDay(*row) for row in cursor.fetchall()]
        cursor.execute(query("count_rejects", cursor), {"since": Day(window.newest, window.zone).start})
        rejects, first_reject_at = cursor.fetchone()
        cursor.execute(query("select_alerted_subjects", cursor), {"name": "day_lost"})
        alerted_lost = [subject for (subject,) in cursor.fetchall()]
    queries, pending = read_stream(settings, "batch")
    kafka_silence, unarchived = None, {}
    try:
        unarchived = _unarchived(settings)
        unpublished = unpublished_days(settings, window, days_in_topic)
    except (BrokerUnavailable, ContractMismatch) as exc:
        kafka_silence = str(exc)
        unpublished = unpublished_days(settings, window, lambda *_: ())
    gateways = read_gateways(settings)
    note_stores(settings, gateways)
    with connect(settings.database, "batch", "watch") as connection, connection.cursor() as cursor:
        missing = missing_stores(cursor, gateways)
        cursor.execute(query("select_unreconciled", cursor))
        unreconciled = {timeline: seen_at for timeline, seen_at, _ in cursor.fetchall()}
    is_first = settings.pipeline.name == listed_pipelines()[0]
    return Snapshot(
        window=window, queries=queries, pending=pending, rejects=rejects, first_reject_at=first_reject_at, days=days,
        unpublished=unpublished, unarchived=unarchived, kafka_silence=kafka_silence,
        gateways=gateways if is_first else {}, missing_stores=missing if is_first else (), paused=paused,
        alerted_lost=alerted_lost, unreconciled=unreconciled, database_ahead_s=database_ahead_s,
    )  # fmt: skip


def _unarchived(settings: Settings) -> dict[str, int]:
    """Count records by raw topic that are older than the limit and not in the archive."""
    offsets, pipeline = OffsetReader(settings.kafka.connection), settings.pipeline
    before = SystemClock().now() - dt.timedelta(seconds=settings.alerts.archive_age_s)
    found = {}
    for topic in (pipeline.stream.name, pipeline.table.name):
        topic_id = offsets.topic_id(topic)  # first: of a topic made again since, no offset counts for this id
        old, first = offsets.at(topic, before), offsets.earliest(topic)
        # last: records that the archive takes meanwhile are not missing in it
        with connect(settings.database, "batch", "watch") as connection, connection.cursor() as cursor:
            cursor.execute(query("select_ledger", cursor), {"consumer": "archive", "topic_id": topic_id})
            archived = dict(cursor.fetchall())
        found[topic] = sum(max(0, old[p] - max(archived.get(p, 0), first[p])) for p in old)
    return found


def read_stream(settings: Settings, role: Role) -> tuple[dict[str, Seen], Pending]:
    """Return the progress of each query, and the pending records. Blocks for seconds; raises DatabaseUnavailable."""
    progress = StreamProgressStore(settings.database, role)
    try:
        return {seen.progress.query: seen for seen in progress.read()}, progress.count_pending()
    finally:
        progress.close()


def read_gateways(settings: Settings, timeout_s: float = GATEWAY_TIMEOUT_S) -> dict[str, Unsent | str]:
    """Return what waits at each gateway, or why it is not known, by address. Blocks up to the timeout."""
    found = unsent_or_reason(settings, timeout_s)
    return {url: answer if isinstance(answer, Unsent) else str(answer) for url, answer in found.items()}


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
    for name in QUERIES:
        if not _is_silent(snapshot, limits, name):
            continue
        if (seen := snapshot.queries.get(name)) is None:
            yield Sign(name, f"query {name} never wrote its progress: start the stream")
        else:
            since = snapshot.window.now - dt.timedelta(seconds=seen.age_s)
            yield Sign(name, f"query {name} has been silent for {_duration(seen.age_s)}: start the stream", since)


def stream_behind(snapshot: Snapshot, limits: AlertSettings) -> Iterator[Sign]:
    """A query that is alive and too far behind its topic."""
    for name in QUERIES:
        if _is_silent(snapshot, limits, name):
            continue
        progress = snapshot.queries[name].progress
        lag_s, lag_records = progress.lag_s or 0.0, progress.lag_records or 0
        if lag_s > limits.stream_lag_s or lag_records > limits.stream_lag_records:
            waits = f"; it waits for {progress.waiting_for}" if progress.waiting_for else ""
            yield Sign(
                name,
                f"query {name} is {lag_records:,} records and {_duration(lag_s)} behind{waits}: see phases and rates",
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
