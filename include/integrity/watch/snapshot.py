"""The state of a pipeline at one instant, as the watch judges it: read once, from every source."""

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.contracts.errors import BrokerUnavailable, ContractMismatch
from include.database.named import query
from include.database.sessions import connect
from include.database.stream_progress import Pending, Seen, StreamProgressStore
from include.integrity.days.due_days import Window, days_in_topic, select_window, unpublished_days
from include.integrity.days.gateways import MissingStore, Unsent, missing_stores, note_stores, unsent_or_reason
from include.kafka.offsets import OffsetReader
from include.runtime.settings import Role, Settings, listed_pipelines

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
