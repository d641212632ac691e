"""Catches up with Kafka before a comparison: waits for the speed layer, and finds late versions of the table's keys.

A comparison counts the lag of the speed layer as missing rows. With a late version, rows of days built before would
have other values. Such a version is kept as long as a generation that was built without it, shown or not: a day may
show it later.
"""

import datetime as dt
import logging
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from confluent_kafka import Message
from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import execute_values

from include.contracts.fields import record_id
from include.contracts.offsets import Offsets
from include.contracts.topics import Topic
from include.contracts.versions import accepted_time, accepted_version, record_time
from include.database.named import query
from include.database.offset_ledger import move_partitions, open_partitions
from include.database.sessions import connect
from include.integrity.days.day_checks import Ends, mark_days_dirty
from include.kafka.offsets import OffsetReader
from include.kafka.reader import TopicTail
from include.runtime.settings import Role, Settings

log = logging.getLogger(__name__)

CONSUMER = "late_version"
_EVER = dt.datetime.max.replace(tzinfo=dt.UTC)


class LateVersion(NamedTuple):
    """A version of a table key that came after the cut of a generation, and is not newer than a row of it."""

    topic_id: str
    partition: int
    offset: int
    table_key: int
    version_at: dt.datetime


class Kept(NamedTuple):
    """A generation that its day shows or may show later. `is_searched`: an earlier search included it."""

    generation_id: int
    day: dt.date
    table_ends: Ends
    newest_version_at: dt.datetime | None
    is_searched: bool
    is_shown: bool

    def end(self, partition: int) -> int:
        """Return the end of the cut in a partition; 0 for a partition that the topic did not have yet."""
        return (self.table_ends[partition] or 0) if partition < len(self.table_ends) else 0


class Lateness:
    """The versions that are late for any of the generations."""

    def __init__(self, kept: Iterable[Kept], partitions: Iterable[int]) -> None:
        ordered = sorted(kept, key=lambda one: one.newest_version_at or _EVER)
        self._newest = [one.newest_version_at or _EVER for one in ordered]
        self._ends: dict[int, list[int]] = {}  # the lowest cut of this generation and of all with newer rows
        for partition in partitions:
            ends = self._ends[partition] = [one.end(partition) for one in ordered]
            for number in range(len(ends) - 2, -1, -1):
                ends[number] = min(ends[number], ends[number + 1])

    def __contains__(self, version: LateVersion) -> bool:
        number = bisect_left(self._newest, version.version_at)
        return number < len(self._newest) and version.offset >= self._ends[version.partition][number]


def find_late_versions(settings: Settings) -> int:
    """Save late versions of the table, and request a check of the days that they may change; returns their number.

    Reads the table's topic from the offsets at which the last call ended, and from the cut of each generation that was
    begun since. No transaction is open meanwhile: versions are saved as they come. A last transaction requests the
    checks and advances the offsets, so the next call repeats a call that was interrupted. Several calls may search at
    once. Versions that only matter for a pending record are not searched for. Records that are gone from the topic are
    logged, and mark the days that show a generation without them: a rebuild reads them from the archive. Blocks while
    the topic is read; raises BrokerUnavailable, TopicChanged, DatabaseUnavailable.
    """
    topic = settings.pipeline.table.name
    reader = OffsetReader(settings.kafka.connection)
    topic_id = reader.topic_id(topic)
    whole = reader.available(topic)
    earliest, ends = whole.start, whole.end
    # after the ends: a generation that is begun meanwhile is searched from its cut by the next call
    with connect(settings.database, "batch", CONSUMER) as connection, connection.cursor() as cursor:
        cursor.execute(query("select_kept_generations", cursor))
        kept = [Kept(*row) for row in cursor.fetchall()]
        if not kept:
            return 0  # nothing is built that could lack them
        open_partitions(cursor, CONSUMER, topic, topic_id, {p: min(one.end(p) for one in kept) for p in earliest})
        cursor.execute(query("select_ledger", cursor), {"consumer": CONSUMER, "topic_id": topic_id})
        offsets: Offsets = dict(cursor.fetchall())
    new = [one for one in kept if not one.is_searched]
    starts = {partition: min([offset, *(one.end(partition) for one in new)]) for partition, offset in offsets.items()}
    gone = _gone(topic, kept, starts, earliest)
    late_of = Lateness(kept, ends)
    count, found = 0, dict[int, LateVersion]()
    with closing(TopicTail(settings.kafka.connection, topic)) as tail:
        tail.begin({partition: max(start, earliest[partition]) for partition, start in starts.items()})
        for lot in tail.iter_to(ends):
            late = [one for one in _versions(lot, settings.pipeline.table, topic_id, ends) if one in late_of]
            if late:
                reader.require_ids({topic: topic_id})
            count += _save(settings, late)
            for one in late:  # the last offset per partition, with the oldest version
                before = found.get(one.partition, one)
                found[one.partition] = one._replace(version_at=min(one.version_at, before.version_at))
    reader.require_ids({topic: topic_id})
    with connect(settings.database, "batch", CONSUMER) as connection, connection.cursor() as cursor:
        mark_days_dirty(cursor, f"unread {topic}", gone)
        _request_checks(cursor, [*found.values()])
        # another search may have advanced the offsets, and saved the versions before them
        cursor.execute(query("lock_ledger", cursor), {"consumer": CONSUMER, "topic_id": topic_id})
        offsets = dict(cursor.fetchall())
        cursor.execute(query("insert_searched", cursor), {"ids": [one.generation_id for one in new]})
        cursor.execute(query("forget_late_versions", cursor))
        move_partitions(cursor, CONSUMER, topic, topic_id, offsets, ends)
    log.info("%d versions of topic %s came after the cut of a generation whose rows they may change", count, topic)
    return count


def _gone(
    topic: str, kept: Sequence[Kept], starts: Mapping[int, int], earliest: Mapping[int, int]
) -> dict[dt.date, int]:
    """Return the days that show a generation without records that are gone, each with the number of offsets."""
    gone: dict[dt.date, int] = {}
    for one in kept:
        count = sum(max(0, earliest[p] - max(start, one.end(p))) for p, start in starts.items())
        if count and one.is_shown:
            gone[one.day] = count
    if any(earliest[partition] > start for partition, start in starts.items()):
        log.error("records of topic %s are gone before they were searched for late versions; published days without"
                  " them: %s. Rebuild them from the archive",
                  topic, ", ".join(map(str, sorted(gone))) or "none")  # fmt: skip
    return gone


def _versions(messages: Iterable[Message], table: Topic, topic_id: str, ends: Offsets) -> Iterator[LateVersion]:
    for message in messages:
        key, partition, offset = message.key(), message.partition(), message.offset()
        table_key = record_id(key)
        if offset >= ends[partition] or table_key is None:
            continue
        value = message.value()
        accepted = accepted_time(message) if value is None else None
        at = accepted_version(table, value, record_time(message), accepted)
        if at is not None:
            yield LateVersion(topic_id, partition, offset, table_key, at)


def _save(settings: Settings, late: Sequence[LateVersion]) -> int:
    """Save the versions; returns the number of new ones."""
    if not late:
        return 0
    with connect(settings.database, "batch", CONSUMER) as connection, connection.cursor() as cursor:
        # sorted: searches at the same time must not deadlock on each other's rows
        execute_values(cursor, query("insert_late_versions", cursor), sorted(late), page_size=len(late))
        return int(cursor.rowcount)


def _request_checks(cursor: Cursor, found: Sequence[LateVersion]) -> None:
    cursor.execute(query("request_checks", cursor), {
        "partitions": [one.partition for one in found], "last_offsets": [one.offset for one in found],
        "oldest": [one.version_at for one in found],
    })  # fmt: skip


POLL_S = 0.5
CATCH_UP_S = 60.0


@dataclass(frozen=True)
class SpeedLayerLag:
    """The lag of the speed layer when last polled. `is_caught_up`: it had caught up."""

    is_caught_up: bool
    join_lag: int
    serve_lag: int

    @property
    def behind(self) -> int:
        """Records of both topics that the speed layer has not processed."""
        return self.join_lag + self.serve_lag


def catch_up(settings: Settings) -> SpeedLayerLag:
    """Find late versions, and wait up to a minute for the speed layer, so that both have marked published days.

    Raises BrokerUnavailable, TopicChanged, DatabaseUnavailable.
    """
    find_late_versions(settings)
    return wait_until_caught_up(settings, CATCH_UP_S)


def wait_until_caught_up(settings: Settings, timeout_s: float = 300) -> SpeedLayerLag:
    """Wait until both queries have processed the records that were in their topics at the call, at most `timeout_s`.

    A speed layer that is down does not stop a rebuild, which reads raw only: `is_caught_up` is then false, and rows
    that it did not serve are counted as missing. Raises BrokerUnavailable, DatabaseUnavailable.
    """
    deadline = time.monotonic() + timeout_s
    offsets = OffsetReader(settings.kafka.connection)
    stream_id, output_id = (
        offsets.topic_id(settings.pipeline.stream.name),
        offsets.topic_id(settings.pipeline.output.name),
    )
    # high watermarks: records after an open transaction were accepted too, and no consumer can read them yet
    stream_ends = offsets.high_watermarks(settings.pipeline.stream.name)
    has_said = False
    while True:
        join_lag = _behind(stream_ends, taken_offsets(settings, "join", stream_id))
        # read after the join's ledger, which advances after the acknowledgements: records sent until then are counted
        output_ends = offsets.high_watermarks(settings.pipeline.output.name)
        serve_lag = _behind(output_ends, taken_offsets(settings, "serve", output_id))
        if join_lag == 0 and serve_lag == 0:
            return SpeedLayerLag(True, 0, 0)
        if time.monotonic() > deadline:
            log.warning("join is %d records behind, serve %d; going on without the speed layer", join_lag, serve_lag)
            return SpeedLayerLag(False, join_lag, serve_lag)
        if not has_said:
            log.info("join is %d records behind, serve %d; waiting up to %g s", join_lag, serve_lag, timeout_s)
            has_said = True
        time.sleep(POLL_S)


def _behind(ends: dict[int, int], at: dict[int, int]) -> int:
    return sum(max(0, end - at.get(partition, 0)) for partition, end in ends.items())


def taken_offsets(settings: Settings, consumer: str, topic_id: str, role: Role = "batch") -> Offsets:
    """Return the next offset of a query of the speed layer in each partition. Raises DatabaseUnavailable."""
    with connect(settings.database, role, "catch-up") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_ledger", cursor), {"consumer": consumer, "topic_id": topic_id})
        return dict(cursor.fetchall())
