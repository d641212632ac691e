"""Reads and interprets the topics with a consumer that shares no code with Spark."""

import contextlib
import datetime as dt
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from include.contracts import headers as h
from include.contracts.fields import record_id
from include.contracts.pipelines import RAW_TOPICS
from include.contracts.validation import parse_timestamp, violations
from tests.support.oracle import Version

KNOWN = "known-member-offset"  # on boards of the load: the newest record of their member that Kafka had acknowledged
REPLACED_BY = 10**17  # what the tables take from the offsets of a topic that was made again
_BATCH = 5_000
_LARGE = 10_000
_DEADLINE_S = 120.0


class Place(NamedTuple):
    """The coordinates of a record."""

    topic: str
    partition: int
    offset: int


class Record(NamedTuple):
    """A record as the log has it."""

    place: Place
    key: bytes | None
    value: bytes | None
    headers: dict[str, str]
    timestamp: dt.datetime
    sent_headers: list[tuple[str, bytes | None]] = []  # noqa: RUF012  (of a tuple: never changed)


class Detail(NamedTuple):
    """A record of board-detail: the board record it was made from, and the member's; null for a deletion."""

    place: Place
    key: int | None
    board: tuple[int, int]
    member: tuple[int, int] | None


@dataclass
class Log:
    """All that was read: versions by topic and key, in the log's order."""

    boards: dict[int, list[Version]] = field(default_factory=lambda: defaultdict(list))
    members: dict[int, list[Version]] = field(default_factory=lambda: defaultdict(list))
    known: dict[tuple[int, int, int], int] = field(default_factory=dict)  # by board, partition and offset
    bad: set[Place] = field(default_factory=set)
    refused: set[Place] = field(default_factory=set)  # that keep their contract, and cannot be taken
    details: list[Detail] = field(default_factory=list)

    def take(self, record: Record) -> None:
        """Add one record."""
        if record.place in self.refused:
            self.bad.add(record.place)
            return
        if record.place.topic not in RAW_TOPICS:
            self._take_detail(record)
            return
        version = understood(record)
        if version is None:
            self.bad.add(record.place)
        elif record.place.topic == "member":
            self.members[version.key].append(version)
        else:
            self.boards[version.key].append(version)
            if KNOWN in record.headers:
                self.known[version.key, version.partition, version.offset] = int(record.headers[KNOWN])

    def replace_boards(self, topic_id: str) -> None:
        """Topic `board` of this id was made again: its places are no places of the one that is there.

        They are named as the tables name them, so that every version of the new topic is newer in the same instant.
        Two former topics can share a name, so places are told apart by their boards; and the details of the later
        topic count, as it was sent the same records again.
        """
        renamed = {(detail.key, _replaced(detail.board)) for detail in self.details if detail.board[0] >= 0}
        self.details = [detail for detail in self.details if (detail.key, detail.board) not in renamed]
        for key, versions in self.boards.items():
            places = [_replaced((one.partition, one.offset)) for one in versions]
            self.boards[key] = [replace(one, partition=partition, offset=offset)
                                for one, (partition, offset) in zip(versions, places, strict=True)]  # fmt: skip
        self.known = {(key, *_replaced((at, offset))): known for (key, at, offset), known in self.known.items()}
        self.details = [detail._replace(board=_replaced(detail.board)) for detail in self.details]
        self.bad = {Place(f"board@{topic_id}", *place[1:]) if place.topic == "board" else place for place in self.bad}

    def _take_detail(self, record: Record) -> None:
        try:
            board = (
                int(record.headers["board-partition"]),
                int(record.headers["board-offset"]),
            )
        except KeyError:
            self.bad.add(record.place)
            return
        member = None
        if "member-offset" in record.headers:
            member = (
                int(record.headers["member-partition"]),
                int(record.headers["member-offset"]),
            )
        self.details.append(Detail(record.place, record_id(record.key), board, member))


def _replaced(at: tuple[int, int]) -> tuple[int, int]:
    partition, offset = at
    return at if partition < 0 else (-1 - partition, offset - REPLACED_BY)


def understood(record: Record) -> Version | None:
    """Return the record as a version of its member or board; None if it violates the contract."""
    topic, partition, offset = record.place
    key = record_id(record.key)
    event_id = record.headers.get(h.EVENT_ID) or f"{topic}:{partition}:{offset}"
    if record.value is None:
        if key is None:
            return None
        accepted = record.headers.get(h.ACCEPTED_AT)
        at = parse_timestamp(accepted) if accepted else record.timestamp
        return Version(topic, key, offset, at, event_id, deleted=True, partition=partition)
    try:
        value = json.loads(record.value)
    except ValueError:
        return None
    if violations(RAW_TOPICS[topic], value) or key != value["id"]:
        return None
    return Version(
        topic, value["id"], offset, parse_timestamp(value["modifiedAt"]), event_id,
        parse_timestamp(value["createdAt"]), value.get("memberId"), content(topic, value), partition=partition,
    )  # fmt: skip


def content(topic: str, value: dict[str, Any]) -> str:
    """The view's part of a member or a board, apart from its ids; of a large post its hash."""
    names = ("nickname", "city", "phone") if topic == "member" else ("title", "body")
    text = json.dumps([value.get(name) for name in names], ensure_ascii=False)
    return text if len(text) < _LARGE else hashlib.sha256(text.encode()).hexdigest()


class TopicReader:
    """Reads topics from their beginning, and on from where the last reading ended."""

    def __init__(self, bootstrap_servers: str, partitions: int) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._partitions = partitions
        self._next: dict[tuple[str, int], int] = {}

    def begin_again(self, topic: str) -> None:
        """Let the next call read the topic from its beginning, since it was created again."""
        for place in [place for place in self._next if place[0] == topic]:
            del self._next[place]

    def ends(self, topic: str) -> dict[int, int]:
        """Return the offset after the last record of each partition. Raises AssertionError without a response."""
        with _consumer(self._bootstrap_servers) as consumer:
            return _ends(consumer, topic, self._partitions)

    def read_on(self, *topics: str) -> Iterator[Record]:
        """Return the records since the last call. Raises AssertionError if they cannot all be read."""
        with _consumer(self._bootstrap_servers) as consumer:
            ends = {(topic, p): end for topic in topics for p, end in _ends(consumer, topic, self._partitions).items()}
            waiting = {place: end for place, end in ends.items() if end > self._next.get(place, 0)}
            consumer.assign([TopicPartition(*place, self._next.get(place, 0)) for place in waiting])
            deadline = time.monotonic() + _DEADLINE_S
            while waiting:
                assert time.monotonic() < deadline, f"the topics could not be read to their end {waiting}"
                for message in consumer.consume(_BATCH, timeout=0.2):
                    if message.error() is not None:  # the end, behind markers of transactions perhaps
                        assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                        place = (message.topic(), message.partition())
                        if message.offset() >= ends[place]:
                            self._next[place] = ends[place]
                            waiting.pop(place, None)
                        continue
                    record = _record(message)
                    place = record.place[:2]
                    self._next[place] = record.place.offset + 1
                    if self._next[place] >= ends[place]:
                        waiting.pop(place, None)
                    yield record


@contextlib.contextmanager
def _consumer(bootstrap_servers: str) -> Iterator[Consumer]:
    consumer = Consumer({
        "bootstrap.servers": bootstrap_servers, "group.id": "faults", "enable.auto.commit": False, "log_level": 2,
        "enable.partition.eof": True,
    })  # fmt: skip
    try:
        yield consumer
    finally:
        consumer.close()


def _ends(consumer: Consumer, topic: str, partitions: int) -> dict[int, int]:
    return {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1] for p in range(partitions)}


def _record(message: Message) -> Record:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    headers: dict[str, str] = {}
    seen: set[str] = set()
    for name, value in message.headers() or []:  # the first of a name counts, if it is what the name says
        read = {h.EVENT_ID: h.event_id, h.ACCEPTED_AT: h.accepted_at}.get(name, _text)
        if name not in seen:
            seen.add(name)
            if (text := read(value)) is not None:
                headers[name] = text
    timestamp = dt.datetime.fromtimestamp(message.timestamp()[1] / 1000, dt.UTC)
    sent = [(name, value) for name, value in message.headers() or []]
    return Record(Place(topic, partition, offset), message.key(), message.value(), headers, timestamp, sent)


def _text(value: bytes | None) -> str:
    return (value or b"").decode()
