"""Reads the versions of rows that are published: those in a topic, and those waiting in a fallback store.

With `contents`, versions that the API made of its rows come with what a lost row is written back from.
"""

import datetime as dt
import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
from confluent_kafka import TIMESTAMP_CREATE_TIME

from include.contracts.fields import record_id
from include.contracts.headers import EVENT_ID
from include.contracts.record_time import Timed, accepted_time, record_time
from include.contracts.topics import Topic
from include.contracts.versions import accepted_version
from include.gateway.event_ids import row_event_id
from include.gateway.fallback import schema as sql
from include.gateway.ports import StoreUnavailable
from include.kafka.offsets import OffsetReader
from include.kafka.range_reader import RangeReader
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
    found = dict(reversed(record.headers() or []))  # of several headers with one name, the first counts
    is_of_row = found.get(EVENT_ID) == row_event_id(topic.name, row_id, at).encode()
    return Content(at, record.value()) if is_of_row else None
