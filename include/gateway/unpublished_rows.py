"""Compares rows of the system of record with published versions: finds unpublished rows, and writes back lost ones.

Published versions are those in a topic, and those that wait in a fallback store. With `contents`, versions that the API
made of its rows come with the values from which a lost row is written back.
"""

import csv
import datetime as dt
import io
import logging
import sqlite3
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
import psycopg2
from confluent_kafka import TIMESTAMP_CREATE_TIME
from psycopg2.extensions import connection as Connection

from include.contracts.errors import DatabaseUnavailable
from include.contracts.fields import record_id
from include.contracts.headers import EVENT_ID
from include.contracts.pipelines import BOARD, MEMBER
from include.contracts.topics import Topic
from include.contracts.versions import Timed, accepted_time, accepted_version, headers_of, record_time
from include.database.named import query
from include.gateway.fallback import schema as sql
from include.gateway.intake import row_event_id
from include.gateway.ports import Saved, StoreUnavailable
from include.gateway.system_of_record import saved_row
from include.kafka.offsets import OffsetReader
from include.kafka.reader import RangeReader
from include.runtime.kafka_connection import KafkaConnection

log = logging.getLogger(__name__)


_RECORDS_AT_ONCE = 500  # rows read at a time; small, because a value can be large
_PROGRESS_S = 5.0
_decode_headers = msgspec.json.Decoder(list[tuple[str, str]]).decode


class Content(NamedTuple):
    """A version that the API made of its row: its time, also of a deletion, and its value; None for a deletion."""

    at: dt.datetime
    value: bytes | None


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """One published version of a row. `modified_at` is None for a tombstone.

    `content` is None if it was not asked for, or if the record is not of the API's rows: `/topics` and a person's
    removal make records of their own.
    """

    row_id: int
    modified_at: dt.datetime | None
    content: Content | None = None


def iter_topic(
    kafka: KafkaConnection, topic: Topic, since: dt.datetime | None, contents: bool = False
) -> Iterator[PublishedVersion]:
    """Yield the versions in the topic up to its present end, from records not older than `since`. Memory is bounded.

    Skips records whose key or version cannot be read, since they are not of the system of record. Raises
    BrokerUnavailable, and ContractMismatch if the topic does not exist.
    """
    offsets = OffsetReader(kafka)
    first = offsets.earliest(topic.name) if since is None else offsets.at(topic.name, since)
    ends = {partition: end for partition, end in offsets.ends(topic.name).items() if end > first[partition]}
    with closing(RangeReader(kafka, skip_deleted=True)) as reader:  # retention may delete meanwhile
        positions = {partition: first[partition] for partition in ends}
        reader.begin(topic.name, positions)
        count, logged_s = 0, time.monotonic()
        for messages in reader.iter_to(ends, positions):
            count += len(messages)
            for message in messages:
                version = version_of(topic, message, contents)
                if version is not None:
                    yield version
            if time.monotonic() > logged_s + _PROGRESS_S:
                logged_s = time.monotonic()
                log.info("read %d records of %s, at %s of %s", count, topic.name, positions, ends)


def iter_store(folder: Path, topic: Topic, contents: bool = False) -> Iterator[PublishedVersion]:
    """Yield the versions of a topic in a fallback store, whose gateway may be running. Raises StoreUnavailable."""
    path = folder / sql.FILE
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            last_id = 0
            # page by page, because a long read transaction would keep the gateway from shrinking its file
            while rows := connection.execute(sql.OF_TOPIC, (last_id, topic.name, _RECORDS_AT_ONCE)).fetchall():
                last_id = rows[-1][0]
                for _, *row in rows:
                    version = version_of(topic, _StoredRecord(*row), contents)
                    if version is not None:
                        yield version
    except sqlite3.Error as exc:
        raise StoreUnavailable("the fallback store cannot be read", path=path, reason=exc) from exc


class _Record(Timed, Protocol):
    """A record with the interface of confluent_kafka's Message."""

    def key(self) -> bytes | None:
        """Return the key."""

    def value(self) -> bytes | None:
        """Return the value; None for a tombstone."""


@dataclass(frozen=True, slots=True)
class _StoredRecord:
    """A record of a fallback store, with the interface of confluent_kafka's Message."""

    stored_key: bytes | None
    stored_value: bytes | None
    stored_headers: bytes
    timestamp_ms: int

    def key(self) -> bytes | None:
        return self.stored_key

    def value(self) -> bytes | None:
        return self.stored_value

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_CREATE_TIME, self.timestamp_ms

    def headers(self) -> list[tuple[str, bytes]]:
        try:
            return [(name, text.encode("latin-1")) for name, text in _decode_headers(self.stored_headers)]
        except ValueError:  # damaged on the disk: it is not known whose record it is
            return []


def version_of(topic: Topic, record: _Record, contents: bool = False) -> PublishedVersion | None:
    """Return the version of a record; None if its key is not an id, or if readers reject it for its version.

    With `contents`, the version of a row of the API has its content.
    """
    row_id, value = record_id(record.key()), record.value()
    if row_id is None:
        return None
    accepted = accepted_time(record) if value is None else None
    at = accepted_version(topic, value, record_time(record), accepted)
    if at is None:
        return None
    modified_at = None if value is None else at
    return PublishedVersion(row_id, modified_at, _content(topic, row_id, at, record) if contents else None)


def _content(topic: Topic, row_id: int, at: dt.datetime, record: _Record) -> Content | None:
    found = dict(reversed(headers_of(record)))  # of several headers with one name, the first counts
    is_of_row = found.get(EVENT_ID) == row_event_id(topic.name, row_id, at).encode()
    return Content(at, record.value()) if is_of_row else None


_BATCH = 10_000
_FETCH = 100  # small, because a document can be large and all of them must fit into the producer's buffer
_SELECT = {MEMBER.name: "select_unpublished_members", BOARD.name: "select_unpublished_boards"}
# write rows back; select ids without a record, those with a tombstone, and those of two rows
_LOST = {
    MEMBER.name: ("write_back_members", "select_without_record_members", "select_with_tombstone_members",
                  "select_given_twice_members"),
    BOARD.name: ("write_back_boards", "select_without_record_boards", "select_with_tombstone_boards",
                 "select_given_twice_boards"),
}  # fmt: skip
_DATE_BACK = {MEMBER.name: "date_back_members", BOARD.name: "date_back_boards"}


class Timeline(NamedTuple):
    """A timeline of the database, on which rows may be missing that were committed after `replayed_until`.

    `replayed_until` is None if it is not known.
    """

    name: str
    first_seen_at: dt.datetime
    replayed_until: dt.datetime | None


@dataclass(frozen=True, slots=True)
class WrittenBack:
    """Ids of one topic's rows after a change of the timeline.

    `rows`: written back from their records. `without_record`: between these, ids of which nothing is known.
    `with_tombstone`: rows of which a tombstone exists that the API did not make: forgotten, perhaps.
    `given_twice`: rows whose id another row had before, by its record. They are as they were.
    """

    rows: list[int]
    without_record: list[int]
    with_tombstone: list[int]
    given_twice: list[int]


@dataclass(frozen=True, slots=True)
class UnpublishedRow:
    """A row to publish. `key` is the client's key of the change that made this version, if it is known."""

    saved: Saved
    key: str | None


class UnpublishedRows:
    """Compares the tables with published versions in a temporary table, so memory is bounded.

    Every method blocks and raises DatabaseUnavailable. `connection` is the gateway role's; the caller closes it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def committed_until(self, min_age_s: float) -> dt.datetime:
        """Return the instant before which changes should be published by now, by the clock that made the versions."""
        with self._transaction(), self._connection.cursor() as cursor:
            cursor.execute(query("select_committed_until", cursor), {"min_age_s": min_age_s})
            [until] = cursor.fetchone()
            assert isinstance(until, dt.datetime)
            return until

    def begin(self) -> None:
        """Delete the published versions of the previous topic."""
        with self._transaction(), self._connection.cursor() as cursor:
            cursor.execute(query("create_published_version", cursor))
            cursor.execute(query("truncate_published_version", cursor))

    def add(self, versions: Iterable[PublishedVersion]) -> int:
        """Add published versions; returns their number."""
        count, remaining = 0, iter(versions)
        while batch := list(islice(remaining, _BATCH)):
            lines = io.StringIO()
            csv.writer(lines, lineterminator="\n").writerows(map(_columns, batch))
            lines.seek(0)
            with self._transaction(), self._connection.cursor() as cursor:
                cursor.copy_expert(query("copy_published_version", cursor), lines)
            count += len(batch)
        return count

    def iter_rows(
        self, topic: Topic, since: dt.datetime | None, until: dt.datetime
    ) -> Generator[list[UnpublishedRow], None, None]:
        """Yield batches of rows modified in [since, until) whose version is not published, the oldest change first."""
        window = {"since": since or dt.datetime.min.replace(tzinfo=dt.UTC), "until": until}
        with self._transaction(), self._connection.cursor(f"unpublished_{topic.name}") as cursor:
            cursor.itersize = _FETCH
            cursor.execute(query(_SELECT[topic.name], cursor), window)
            while rows := cursor.fetchmany(_FETCH):
                yield [_unpublished(topic, row) for row in rows]

    def date_back(self, topic: Topic, dry_run: bool) -> list[int]:
        """Give the present as their version to rows that are ahead of it by more than the topic's tolerance.

        Returns their ids. Readers reject the records of such versions, and no later change of the row is accepted.
        """
        with self._transaction(), self._connection.cursor() as cursor:
            cursor.execute(query(_DATE_BACK[topic.name], cursor), {"tolerance": topic.clock_tolerance})
            ids = sorted(row_id for (row_id,) in cursor.fetchall())
            if dry_run:
                self._connection.rollback()
            return ids

    def correct_timelines(self) -> None:
        """Date timelines by the present that were noted while PostgreSQL's clock was ahead."""
        with self._transaction(), self._connection.cursor() as cursor:
            cursor.execute(query("correct_timelines", cursor))

    def unreconciled(self) -> list[Timeline]:
        """Return the timelines on which lost rows were not written back yet, the oldest first."""
        with self._transaction(), self._connection.cursor() as cursor:
            cursor.execute(query("select_unreconciled", cursor))
            return [Timeline(*row) for row in cursor.fetchall()]

    def write_back(self, topic: Topic, dry_run: bool) -> WrittenBack:
        """Write rows and versions that the tables lack from the published ones, unless it is a dry run.

        The published versions must have their content.
        """
        write_back, select_without_record, select_with_tombstone, select_given_twice = _LOST[topic.name]
        with self._transaction(), self._connection.cursor() as cursor:
            cursor.execute(query(write_back, cursor))
            found = dict(cursor.fetchall())
            lost = sorted(row_id for row_id, was_missing in found.items() if was_missing)
            cursor.execute(query(select_without_record, cursor),
                           {"first": lost[0] if lost else 1, "last": lost[-1] if lost else 0})  # fmt: skip
            without_record = [row_id for first, last in cursor.fetchall() for row_id in range(first, last + 1)]
            cursor.execute(query(select_with_tombstone, cursor))
            with_tombstone = [row_id for (row_id,) in cursor.fetchall()]
            cursor.execute(query(select_given_twice, cursor))
            given_twice = [row_id for (row_id,) in cursor.fetchall()]
            if dry_run:
                self._connection.rollback()
        return WrittenBack(sorted(found), without_record, with_tombstone, given_twice)

    def save_reconciled(self, timelines: Iterable[Timeline]) -> None:
        """Record that the rows that were lost on these timelines are written back."""
        with self._transaction(), self._connection.cursor() as cursor:
            cursor.execute(query("save_reconciled", cursor), {"timelines": [each.name for each in timelines]})

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            with self._connection:
                yield
        except psycopg2.Error as exc:  # by its code: the server's text quotes rows
            raise DatabaseUnavailable(sqlstate=exc.pgcode or "none", kind=type(exc).__name__) from exc


def _columns(version: PublishedVersion) -> tuple[object, ...]:
    at = None if version.modified_at is None else version.modified_at.isoformat()
    if version.content is None:
        return version.row_id, at, None, None
    value = version.content.value
    return version.row_id, at, version.content.at.isoformat(), None if value is None else value.decode()


def _unpublished(topic: Topic, row: tuple[object, ...]) -> UnpublishedRow:
    *columns, is_deleted, key = row
    assert key is None or isinstance(key, str)
    saved = saved_row(topic, tuple(columns))
    if is_deleted:
        saved = Saved(saved.id, None, saved.modified_at, None)
    return UnpublishedRow(saved, key)
