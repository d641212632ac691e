"""Traces of a key in Kafka: records that the stream has not taken yet, and the origin of those that it has taken.

A search may take until its `Deadline`.
"""

import datetime as dt
import time
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import Message

from include.contracts import headers
from include.contracts.clock import instant_of
from include.contracts.errors import MissingRange, Retryable
from include.contracts.fields import record_id
from include.contracts.offsets import Offsets
from include.contracts.validation import parse_timestamp
from include.integrity.days.stream_lag import taken_offsets
from include.kafka import offsets as kafka_offsets
from include.kafka.offsets import OffsetReader
from include.kafka.reader import READ_TIMEOUT_S, RangeReader
from include.runtime.settings import Role, Settings


class SearchTooLong(Retryable):
    """The search did not end within its time."""


@dataclass(frozen=True)
class Deadline:
    """A time limit that begins now; None: no limit."""

    seconds: float | None = None
    _began: float = field(default_factory=time.monotonic)

    def left_s(self, at_most: float) -> float:
        """Return the seconds that are left, `at_most` of them. Raises SearchTooLong if none are."""
        if self.seconds is None:
            return at_most
        left = self.seconds - (time.monotonic() - self._began)
        if left <= 0:
            raise SearchTooLong(f"the search took longer than {self.seconds:.0f} s")
        return min(left, at_most)


class Coordinates(NamedTuple):
    """Partition and offset of a record."""

    partition: int
    offset: int


@dataclass(frozen=True)
class Trace:
    """One place that has a version of the key.

    Coordinates are of the stream's record, of the table's record that it was joined with, and of the output's record.
    `is_shown`: the view shows this row. `note` says why the version is there, or how it came there. `trace_id` is that
    of the request, of records that still are in a topic.
    """

    place: str
    day: dt.date | None = None
    generation_id: int | None = None
    event_id: str | None = None
    at: dt.datetime | None = None
    version_at: dt.datetime | None = None
    stream: Coordinates | None = None
    table: Coordinates | None = None
    output: Coordinates | None = None
    note: str = ""
    is_shown: bool = False
    trace_id: str | None = None


def untaken_records(
    settings: Settings, key: int | None, event_id: str | None, role: Role = "batch", deadline: Deadline | None = None
) -> list[tuple[int | None, Trace]]:
    """Return the records of the key, or of the event, between the stream's offsets and the ends of its two topics.

    Place `untaken` is the stream's topic, `unserved` the output's. Blocks as long as the stream is behind, at most
    until the deadline. Raises SearchTooLong, BrokerUnavailable, DatabaseUnavailable, ContractMismatch if a topic does
    not exist.
    """
    pipeline, found = settings.pipeline, []
    for consumer, topic, place in (
        ("join", pipeline.stream.name, "untaken"),
        ("serve", pipeline.output.name, "unserved"),
    ):
        for message in _iter_untaken(settings, consumer, topic, role, deadline or Deadline()):
            of_event, of_key = _header(message, headers.EVENT_ID), record_id(message.key())
            if (of_key == key) if key is not None else (headers.event_id(of_event) == event_id):
                at = Coordinates(message.partition(), message.offset())
                stream, output = (at, None) if place == "untaken" else (None, at)
                found.append((of_key, _of_record(place, message, stream, output)))
    return found


def origins(settings: Settings, records: Collection[Coordinates], deadline: Deadline | None = None) -> list[Trace]:
    """Return when the gateway accepted these records of the stream, and whether they waited in a fallback store.

    Skips records that the topic no longer has. Raises BrokerUnavailable, and SearchTooLong at the deadline.
    """
    topic, found, deadline = settings.pipeline.stream.name, [], deadline or Deadline()
    with closing(RangeReader(settings.kafka.connection)) as reader:
        for at in sorted(records):
            if at.partition < 0:  # of a topic that was replaced since
                continue
            positions: Offsets = {at.partition: at.offset}
            reader.begin(topic, positions)
            try:
                for messages in reader.iter_to(
                    {at.partition: at.offset + 1}, positions, deadline.left_s(READ_TIMEOUT_S)
                ):
                    found += [_of_record("accepted", message, at, None) for message in messages]
            except MissingRange:
                continue
    return found


def _iter_untaken(settings: Settings, consumer: str, topic: str, role: Role, deadline: Deadline) -> Iterator[Message]:
    offsets = OffsetReader(settings.kafka.connection, deadline.left_s(kafka_offsets.TIMEOUT_S))
    taken = taken_offsets(settings, consumer, offsets.topic_id(topic), role)
    ends = {partition: end for partition, end in offsets.ends(topic).items() if end > taken.get(partition, 0)}
    positions = {partition: taken.get(partition, 0) for partition in ends}
    with closing(RangeReader(settings.kafka.connection, skip_deleted=True)) as reader:
        reader.begin(topic, positions)
        for messages in reader.iter_to(ends, positions, deadline.left_s(READ_TIMEOUT_S)):
            deadline.left_s(READ_TIMEOUT_S)
            yield from messages


def _of_record(place: str, message: Message, stream: Coordinates | None, output: Coordinates | None) -> Trace:
    accepted, replayed = (_time(_header(message, name)) for name in (headers.ACCEPTED_AT, headers.REPLAYED_AT))
    notes = ["a deletion"] if message.value() is None else []
    if replayed is not None:
        notes.append(f"kept in a fallback store until {replayed.isoformat()}")
    event_id = headers.event_id(_header(message, headers.EVENT_ID))
    at = accepted or instant_of(message.timestamp()[1] * 1000)
    context = headers.parse(_header(message, headers.TRACEPARENT))
    trace_id = None if context is None else context.trace_id
    return Trace(place, None, None, event_id, at, None, stream, None, output, "; ".join(notes), trace_id=trace_id)


def _header(message: Message, name: str) -> bytes | None:
    return next((value for header, value in message.headers() or () if header == name), None)


def _time(value: bytes | None) -> dt.datetime | None:
    text = headers.accepted_at(value)
    return None if text is None else parse_timestamp(text)
