"""Members whose version came late: boards of published days may read otherwise since. Their days are marked dirty."""

import datetime as dt
import logging
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from confluent_kafka import Message
from psycopg2 import sql
from psycopg2.extensions import cursor as Cursor
from psycopg2.extras import execute_values

from include.adapters.kafka_offsets import OffsetReader, Offsets
from include.adapters.offset_ledger import move_partitions, open_partitions
from include.adapters.postgres import connect
from include.adapters.topic_tail import TopicTail
from include.clock import instant_of
from include.contracts.definition import BOARD_DETAIL_PIPELINE as PIPELINE
from include.contracts.fields import record_id
from include.contracts.headers import ACCEPTED_AT, accepted_at
from include.contracts.validation import parse_timestamp
from include.contracts.versions import version_in
from include.settings import Settings
from include.sql.named import query

log = logging.getLogger(__name__)

CONSUMER = "late_member"
TOPIC = PIPELINE.table.name
JOIN_COLUMN = PIPELINE.stream.field(PIPELINE.join_field).column


class LateMember(NamedTuple):
    """A version of a member that is older than a publication it came after."""

    member_id: int
    partition: int
    offset: int
    version_at: dt.datetime


def mark_late_members(settings: Settings) -> int:
    """Mark the published days that a late version of a member may change; returns how many such versions there are.

    Reads the members' topic from where the last call ended, or from the published cuts; the place moves in the
    transaction of the marks, so each version counts once. A day may be marked that would not change: its rebuild clears
    the mark. Versions that only decide while a board's author is unknown are not looked for. Blocks as long as reading
    takes; raises BrokerUnavailable, MissingRange, LedgerConflict, DatabaseUnavailable.
    """
    reader = OffsetReader(settings.kafka.bootstrap_servers)
    topic_id = reader.topic_id(TOPIC)
    earliest, ends = reader.earliest(TOPIC), reader.ends(TOPIC)
    with connect(settings.database, "batch", CONSUMER) as connection, connection.cursor() as cursor:
        published_at, start = _published(cursor, earliest)
        if published_at is None:
            return 0  # nothing is published that could be late
        open_partitions(cursor, CONSUMER, TOPIC, topic_id, start)
        cursor.execute(query("select_ledger"), {"consumer": CONSUMER, "topic_id": topic_id})
        places: Offsets = dict(cursor.fetchall())
    with closing(TopicTail(settings.kafka.bootstrap_servers, TOPIC)) as tail:
        tail.begin(places)
        late = [one for lot in tail.iter_to(ends) for one in _late(lot, ends, published_at)]
    with connect(settings.database, "batch", CONSUMER) as connection, connection.cursor() as cursor:
        if late:
            _mark(cursor, late)
        move_partitions(cursor, CONSUMER, TOPIC, topic_id, places, ends)
    log.info("%d versions of members are older than a publication that they came after", len(late))
    return len(late)


def _published(cursor: Cursor, earliest: Offsets) -> tuple[dt.datetime | None, Offsets]:
    """When a day was last published, and from where on members may be late for one of them."""
    cursor.execute(query("select_published_cuts"), {"topic": TOPIC})
    cuts = cursor.fetchall()
    start = dict(earliest)
    for partition in earliest:
        known = [int(cut[str(partition)]) for _, cut in cuts if str(partition) in cut]
        start[partition] = max(earliest[partition], min(known, default=0))
    return max((published_at for published_at, _ in cuts), default=None), start


def _late(messages: list[Message], ends: Offsets, published_at: dt.datetime) -> Iterator[LateMember]:
    for message in messages:
        key, partition, offset = message.key(), message.partition(), message.offset()
        member_id = record_id(key)
        if offset >= ends[partition] or member_id is None:
            continue
        at = _version_at(message)
        if at is not None and at <= published_at:
            yield LateMember(member_id, partition, offset, at)


def _version_at(message: Message) -> dt.datetime | None:
    """The version as the join has it; None for what breaks the contract: no board takes it."""
    if message.value() is None:
        text = accepted_at(next((value for name, value in message.headers() or () if name == ACCEPTED_AT), None))
        return parse_timestamp(text) if text is not None else instant_of(message.timestamp()[1] * 1000)
    return version_in(message.value())


def _mark(cursor: Cursor, late: list[LateMember]) -> None:
    cursor.execute(query("create_late_member"))
    execute_values(cursor, query("insert_late_member"), late, page_size=1000)
    cursor.execute(sql.SQL(query("mark_late_members")).format(member=sql.Identifier(JOIN_COLUMN)))
