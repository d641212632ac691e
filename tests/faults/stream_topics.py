"""Reads and interprets the topics with a consumer that shares no code with Spark."""

import contextlib
import datetime as dt
import hashlib
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from include.contracts import headers as h
from include.contracts.definition import Definition, Side
from include.contracts.fields import record_id
from include.contracts.topics import Topic
from include.contracts.validation import parse_timestamp, violations
from tests.support.oracle import Version
from tests.support.records import content_of

KNOWN = "known-table-offset"  # on the load's records of the stream: the newest acknowledged record that they join
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
    """A record of the output: the record of the stream that it was made from, and the table's; null for a deletion."""

    place: Place
    key: int | None
    source: tuple[int, int]
    joined: tuple[int, int] | None
    event_id: str


@dataclass
class Log:
    """All that was read of a pipeline's topics: versions of the stream and of the table by key, in the log's order."""

    pipeline: Definition
    stream: dict[int, list[Version]] = field(default_factory=lambda: defaultdict(list))
    table: dict[int, list[Version]] = field(default_factory=lambda: defaultdict(list))
    known: dict[tuple[int, int, int], int] = field(default_factory=dict)  # by the stream's key, partition and offset
    bad: set[Place] = field(default_factory=set)
    refused: set[Place] = field(default_factory=set)  # that keep their contract, and cannot be taken
    details: list[Detail] = field(default_factory=list)

    def take(self, record: Record) -> None:
        """Add one record."""
        if record.place in self.refused:
            self.bad.add(record.place)
            return
        if record.place.topic == self.pipeline.output.name:
            self._take_detail(record)
            return
        version = understood(self.pipeline, record)
        if version is None:
            self.bad.add(record.place)
        elif record.place.topic == self.pipeline.table.name:
            self.table[version.key].append(version)
        else:
            self.stream[version.key].append(version)
            if KNOWN in record.headers:
                self.known[version.key, version.partition, version.offset] = int(record.headers[KNOWN])

    def replace_stream(self, topic_id: str) -> None:
        """The stream's topic of this id was made again: its places are no places of the one that is there.

        They are named as the tables name them, so that every version of the new topic is newer in the same instant.
        Two former topics can share a name, so places are told apart by their keys and events. The details of the later
        topic count, if an event of it has the place that it had before.
        """
        name = self.pipeline.stream.name
        renamed = [_detail_of_former(name, detail) for detail in self.details]
        again = {each[1:3] + each[4:] for each, of in zip(renamed, self.details, strict=True) if of.source[0] >= 0}
        self.details = [each for each, of in zip(renamed, self.details, strict=True)
                        if of.source[0] >= 0 or each[1:3] + each[4:] not in again]  # fmt: skip
        self.stream = defaultdict(list, {key: [*map(_of_former, versions)] for key, versions in self.stream.items()})
        self.known = {(key, *_replaced((at, offset))): known for (key, at, offset), known in self.known.items()}
        self.bad = {Place(f"{name}@{topic_id}", *place[1:]) if place.topic == name else place for place in self.bad}

    def _take_detail(self, record: Record) -> None:
        source = _coordinates(record, self.pipeline.stream)
        if source is None:
            self.bad.add(record.place)
            return
        joined = _coordinates(record, self.pipeline.table)
        event_id = record.headers.get(h.EVENT_ID) or _place_id(self.pipeline.stream.name, *source)
        self.details.append(Detail(record.place, record_id(record.key), source, joined, event_id))


def _coordinates(record: Record, of: Topic) -> tuple[int, int] | None:
    try:
        _, partition, offset = record.headers[of.source_header].split("/")
    except KeyError:
        return None
    return int(partition), int(offset)


def _replaced(at: tuple[int, int]) -> tuple[int, int]:
    partition, offset = at
    return at if partition < 0 else (-1 - partition, offset - REPLACED_BY)


def _of_former(version: Version) -> Version:
    at = version.partition, version.offset
    partition, offset = _replaced(at)
    event_id = _event_of_former(version.topic, at, version.event_id)
    return replace(version, partition=partition, offset=offset, event_id=event_id)


def _detail_of_former(topic: str, detail: Detail) -> Detail:
    event_id = _event_of_former(topic, detail.source, detail.event_id)
    return detail._replace(source=_replaced(detail.source), event_id=event_id)


def _event_of_former(topic: str, at: tuple[int, int], event_id: str) -> str:
    return _place_id(topic, *_replaced(at)) if event_id == _place_id(topic, *at) else event_id


def _place_id(topic: str, partition: int, offset: int) -> str:
    """Return the identity of a record without an event id."""
    return f"{topic}:{partition}:{offset}"


def understood(pipeline: Definition, record: Record) -> Version | None:
    """Return the record as a version of its key; None if it violates the contract."""
    name, partition, offset = record.place
    side: Side = "table" if name == pipeline.table.name else "stream"
    topic: Topic = getattr(pipeline, side)
    key = record_id(record.key)
    event_id = record.headers.get(h.EVENT_ID) or _place_id(name, partition, offset)
    assert topic.clock_tolerance is not None
    latest = record.timestamp + topic.clock_tolerance
    if record.value is None:
        if key is None:
            return None
        accepted = record.headers.get(h.ACCEPTED_AT)
        at = parse_timestamp(accepted) if accepted else record.timestamp
        if at > latest:
            return None
        return Version(name, key, offset, at, event_id, deleted=True, partition=partition)
    try:
        value = json.loads(record.value)
    except ValueError:
        return None
    if violations(topic, value) or key != value[topic.key_field]:
        return None
    if parse_timestamp(value[topic.version_field]) > latest:
        return None
    created = parse_timestamp(value[pipeline.day_field]) if side == "stream" else None
    member = value[pipeline.join_field] if side == "stream" else None
    return Version(
        name, value[topic.key_field], offset, parse_timestamp(value[topic.version_field]), event_id,
        created, member, shortened(content_of(pipeline, side, value)), partition=partition,
    )  # fmt: skip


def shortened(text: str) -> str:
    """Return the content of a record, or the hash of a large one."""
    return text if len(text) < _LARGE else hashlib.sha256(text.encode()).hexdigest()


def consumed(pipeline: Definition) -> dict[str, str]:
    """Return the topic of each query of the stream."""
    return {"join": pipeline.stream.name, "serve": pipeline.output.name}


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
                            self._next[place] = max(ends[place], self._next.get(place, 0))  # records came meanwhile
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
        "enable.partition.eof": True, "auto.offset.reset": "earliest",
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
