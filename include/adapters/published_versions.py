"""Reads the versions of rows that are published: those in a topic, and those waiting in a fallback store."""

import datetime as dt
import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from include.adapters.files import fallback_schema as sql
from include.adapters.kafka.offsets import OffsetReader
from include.adapters.kafka.range_reader import RangeReader
from include.contracts.fields import record_id
from include.contracts.topics import Topic
from include.contracts.versions import version_in
from include.gateway.ports import StoreUnavailable
from include.kafka_connection import KafkaConnection

log = logging.getLogger(__name__)

_BATCH = 500  # rows read at a time; small, because a value can be large
_PROGRESS_S = 5.0


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """One published version of a row. `modified_at` is None for a tombstone."""

    row_id: int
    modified_at: dt.datetime | None


def iter_topic(kafka: KafkaConnection, topic: Topic, since: dt.datetime | None) -> Iterator[PublishedVersion]:
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
                version = version_of(topic, message.key(), message.value())
                if version is not None:
                    yield version
            if time.monotonic() > logged_s + _PROGRESS_S:
                logged_s = time.monotonic()
                log.info("read %d records of %s, at %s of %s", count, topic.name, positions, ends)


def iter_store(folder: Path, topic: Topic) -> Iterator[PublishedVersion]:
    """Yield the versions of a topic in a fallback store, whose gateway may be running. Raises StoreUnavailable."""
    path = folder / sql.FILE
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            last_id = 0
            # page by page, because a long read transaction would keep the gateway from shrinking its file
            while rows := connection.execute(sql.OF_TOPIC, (last_id, topic.name, _BATCH)).fetchall():
                last_id = rows[-1][0]
                for _, key, value in rows:
                    version = version_of(topic, key, value)
                    if version is not None:
                        yield version
    except sqlite3.Error as exc:
        raise StoreUnavailable("the fallback store cannot be read", path=path, reason=exc) from exc


def version_of(topic: Topic, key: bytes | None, value: bytes | None) -> PublishedVersion | None:
    """Return the version of a record; None if its key is not an id or its version is not valid."""
    row_id = record_id(key)
    if row_id is None:
        return None
    if value is None:
        return PublishedVersion(row_id, None)
    at = version_in(value, topic)
    return None if at is None else PublishedVersion(row_id, at)
