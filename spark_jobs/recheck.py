"""Takes rows out of the way whose records the contract rejects by now: `pipeline stream recheck`."""

import datetime as dt
import os
import socket
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import execute_values

from include.archive.catalogue import ArchiveStore
from include.contracts import headers as h
from include.contracts.clock import rfc3339
from include.contracts.day import Day
from include.contracts.errors import Retryable
from include.contracts.topics import Topic
from include.contracts.versions import accepted_time, record_time
from include.database.driver_lease import DriverLease
from include.database.generation_store import GenerationStore
from include.database.named import query
from include.database.sessions import connect
from include.database.shown_keys import a_few_at_a_time, day_number
from include.integrity.days.catch_up import wait_until_caught_up
from include.kafka.offsets import OffsetReader
from include.kafka.record_table import RAW
from include.runtime.settings import DatabaseSettings, Settings
from spark_jobs.archive.rewriting import VersionsOf, iter_expired
from spark_jobs.connectors.archive_files import ArchiveFolder
from spark_jobs.connectors.splits import TopicSplit, read_topic
from spark_jobs.decoding.arrow import RawColumns, array
from spark_jobs.decoding.reference import RowRecord, TableRow, iter_records, read_record
from spark_jobs.speed.pending_store import PendingRecord

PAGE = 1_000


class RejectedRecord(NamedTuple):
    """The coordinates of a record of the stream or the table that the contract rejects."""

    topic: str
    topic_id: str
    partition: int
    offset: int


class MadeRow(NamedTuple):
    """A row that was made from a rejected record: its place, day, key of the stream and version, and the record.

    `place` is live, covered or pending; of a published day final, or the kind of a record that is left out.
    """

    place: str
    day: dt.date | None
    key: int
    version_at: dt.datetime | None
    topic: str
    partition: int
    offset: int

    @property
    def row(self) -> tuple[str, dt.date | None, int]:
        """Place, day and key: those of one row if both of its records are rejected."""
        return self.place, self.day, self.key


class RecheckStore:
    """Works as the owner of the tables, the only role that may delete from all of them. Raises DatabaseUnavailable."""

    def __init__(self, database: DatabaseSettings) -> None:
        self._database = database

    def find(self, records: Collection[RejectedRecord]) -> list[MadeRow]:
        """Return the rows that were made from these records. Changes nothing."""
        with connect(self._database, "pipeline_owner", "recheck") as connection, connection.cursor() as cursor:
            _begin(cursor, records)
            cursor.execute(query("select_made_of_rejected", cursor))
            found = [MadeRow(*row) for row in cursor.fetchall()]
            cursor.execute(query("select_days_shown", cursor))
            for day, generation_id in a_few_at_a_time(cursor, cursor.fetchall()):
                shown = {"day_number": day_number(day), "generation_id": generation_id}
                cursor.execute(query("select_shown_of_rejected", cursor), shown)
                found += [MadeRow(*row) for row in cursor.fetchall()]
            connection.rollback()
        return found

    def remove(
        self, records: Collection[RejectedRecord], again: Iterable[PendingRecord], days: Mapping[dt.date, int],
        cause: str, lease: DriverLease,
    ) -> Mapping[str, int]:  # fmt: skip
        """Remove the rows of the speed layer, and mark published days dirty; returns the number of rows by table.

        `again` are the records to join instead; they wait in `pending_record`. `days` are the days to rebuild, with the
        number of rows. Raises DriverSuperseded.
        """
        removed: dict[str, int] = {}
        with connect(self._database, "pipeline_owner", "recheck") as connection, connection.cursor() as cursor:
            _begin(cursor, records)
            lease.hold(cursor)
            cursor.execute(query("hold_pointers", cursor))
            cursor.execute(query("lock_days_of_rejected", cursor), {"days": list(days)})
            published = [day for day, is_published in cursor.fetchall() if is_published]
            for table, name in (
                ("pending_record", "delete_pending_of_rejected"),
                ("detail_covered", "delete_covered_of_rejected"),
                ("detail_live", "delete_live_of_rejected"),
                ("late_version", "delete_late_of_rejected"),
            ):
                cursor.execute(query(name, cursor))
                removed[table] = cursor.rowcount
            if rows := [(*record, True) for record in again]:
                execute_values(cursor, query("insert_pending", cursor), rows, page_size=PAGE)
            removed["sent again"] = len(rows)
            if published:
                marks = {"cause": cause, "days": published, "counts": [days[day] for day in published]}
                cursor.execute(query("mark_days_dirty", cursor), marks)
        return removed


def days_to_rebuild(found: Sequence[MadeRow]) -> Mapping[dt.date, int]:
    """Return the number of these rows by day, of rows that a rebuild must replace."""
    rows = {made.row for made in found}
    return Counter(day for place, day, _ in rows if day is not None and place != "pending")


def _begin(cursor: Cursor, records: Collection[RejectedRecord]) -> None:
    cursor.execute(query("create_rejected_record", cursor))
    if records:
        execute_values(cursor, query("insert_rejected_record", cursor), list(records), page_size=PAGE)


SHOWN = 50  # lines printed


class StreamBehind(Retryable):
    """The stream has not processed all records; start it, wait until it has, stop it and run this again."""


@dataclass
class Rejected:
    """The rejected records of a topic, by coordinates, with the reason."""

    topic: Topic
    topic_id: str
    reasons: dict[tuple[int, int], str] = field(default_factory=dict)


class Recheck:
    """Reads the topics by the present contract, and compares the tables with what it rejects."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._offsets = OffsetReader(settings.kafka.connection)
        self._archive = ArchiveStore(settings.database)
        self._folder = ArchiveFolder.of(settings.batch)
        self._lease = DriverLease(settings.database, f"recheck-{socket.gethostname()}-{os.getpid()}")

    def refuse_live_driver(self) -> None:
        """Raise DriverAlive if a driver may still write."""
        self._lease.refuse_live_driver()

    def look(self, keep: bool) -> tuple[list[Rejected], list[MadeRow]]:
        """Return the rejected records of both topics, and the rows that were made from some of them.

        `keep`: save the rejected records in table reject.
        """
        rejected = [self._rejected(topic, keep) for topic in self._topics]
        return rejected, RecheckStore(self._settings.database).find(_records(rejected))

    def remove(self, rejected: Sequence[Rejected], found: Sequence[MadeRow]) -> Mapping[str, int]:
        """Remove the rows; returns their number by table. Raises StreamBehind, DriverSuperseded, ArchiveBusy."""
        lag = wait_until_caught_up(self._settings, 0)
        if not lag.is_caught_up:
            raise StreamBehind(join=lag.join_lag, serve=lag.serve_lag)
        stream, table = rejected
        again = self._newest({row.key for row in found if row.place in ("live", "covered")})
        self._lease.take()  # so that an undetected driver can no longer write
        try:
            removed = RecheckStore(self._settings.database).remove(
                _records(rejected), again, days_to_rebuild(found), f"rejected {stream.topic.name}", self._lease
            )
        finally:
            self._lease.release()  # else the stream would wait until the lease times out
        with self._archive.hold():
            return {**removed, "archived versions": self._archived(table).remove()}

    def count_archived(self, rejected: Sequence[Rejected]) -> int:
        """Return the number of archived versions of the table's rejected records. Rebuilds take them as authors."""
        return self._archived(rejected[1]).count()

    def _archived(self, table: Rejected) -> VersionsOf:
        return VersionsOf(self._archive, self._folder, table.topic_id, [*table.reasons])

    @property
    def _topics(self) -> tuple[Topic, Topic]:
        return self._settings.pipeline.stream, self._settings.pipeline.table

    def _rejected(self, topic: Topic, keep: bool) -> Rejected:
        columns = RawColumns(topic, ())
        store = GenerationStore(self._settings.database)
        found = Rejected(topic, self._offsets.topic_id(topic.name))
        for records in self._records(topic, found.topic_id):
            _, rejects = columns.read(records)
            found.reasons |= {(each.partition, each.offset): each.reason for each in rejects}
            if keep:
                store.save_rejects(rejects)
        self._offsets.require_ids({topic.name: found.topic_id})
        return found

    def _records(self, topic: Topic, topic_id: str, all_headers: bool = False) -> Iterator[pa.Table]:
        earliest, ends = self._offsets.earliest(topic.name), self._offsets.ends(topic.name)
        yield from iter_expired(self._archive, self._folder, topic.name, topic_id, earliest)
        splits = [TopicSplit(topic.name, partition, earliest[partition], end) for partition, end in ends.items()]
        yield from read_topic(splits, self._settings.kafka.connection, RAW.names, all_headers)

    def _newest(self, keys: Collection[int]) -> list[PendingRecord]:
        """Return the newest valid record of each key of the stream; none for a key that it deletes."""
        if not keys:
            return []
        topic = self._settings.pipeline.stream
        wanted = pa.array([str(key).encode() for key in keys], pa.binary())
        newest: dict[int, tuple[TableRow, RowRecord]] = {}
        for records in self._records(topic, self._offsets.topic_id(topic.name), all_headers=True):
            for record in iter_records(records.filter(pc.is_in(array(records["key"]), value_set=wanted))):
                row = read_record(record, topic)
                if isinstance(row, TableRow) and (row.key not in newest or row.version > newest[row.key][0].version):
                    newest[row.key] = row, record
        return [self._pending(row, record) for row, record in newest.values() if not row.deleted]

    def _pending(self, row: TableRow, record: RowRecord) -> PendingRecord:
        definition = self._settings.pipeline
        stream = definition.stream
        event_id = next((value for name, value in record.headers() if name == h.EVENT_ID), None)
        created = row.values[stream.field(definition.day_field).column]
        value = record.value()
        assert value is not None
        return PendingRecord(
            stream.name, row.partition, row.offset, row.key, row.values[stream.field(definition.join_field).column],
            Day.of(created, self._settings.timezone).date, record.key(), value, record_time(record),
            h.event_id(event_id), accepted_time(record), row.version_at,
        )  # fmt: skip


def _records(rejected: Sequence[Rejected]) -> list[RejectedRecord]:
    return [RejectedRecord(one.topic.name, one.topic_id, *at) for one in rejected for at in one.reasons]


def lines(rejected: Sequence[Rejected], found: Sequence[MadeRow]) -> Iterator[str]:
    """Yield a line for each row and record, up to `SHOWN`."""
    reasons = {(one.topic.name, *at): reason for one in rejected for at, reason in one.reasons.items()}
    for row in found[:SHOWN]:
        place = f"{row.place} of {row.day}" if row.day else row.place
        version = "" if row.version_at is None else f", version {rfc3339(row.version_at)}"
        record = f"{row.topic}/{row.partition}/{row.offset}"
        yield f"{place}: key {row.key}{version}, of {record}: {reasons[row.topic, row.partition, row.offset]}"
    if len(found) > SHOWN:
        yield f"and {len(found) - SHOWN:,} more lines"
