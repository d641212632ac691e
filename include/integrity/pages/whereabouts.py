"""Finds a key of the stream on its whole way: from a gateway's store to the row that readers see. Changes nothing.

In Kafka it finds records that the stream has not taken yet, and the origin of those that it has taken. A search may
take until its `Deadline`.
"""

import datetime as dt
import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from confluent_kafka import Message as Record
from psycopg2.extensions import cursor as Cursor

from include.contracts import headers
from include.contracts.clock import instant_of
from include.contracts.day import Day
from include.contracts.definition import Definition
from include.contracts.errors import ConfigurationError, ContractMismatch, MissingRange, Retryable, WrongArguments
from include.contracts.fields import record_id
from include.contracts.offsets import Offsets
from include.contracts.validation import parse_timestamp
from include.contracts.versions import headers_of
from include.database.named import query
from include.database.sessions import LONG, SessionLimits, connect
from include.integrity.days.catch_up import taken_offsets
from include.integrity.days.comparison import Sample, sample_of
from include.integrity.days.gateways import Unsent, missing_stores, unsent
from include.integrity.pages.texts import Message
from include.kafka import offsets as kafka_offsets
from include.kafka.offsets import OffsetReader
from include.kafka.reader import READ_TIMEOUT_S, RangeReader
from include.runtime.settings import Role, Settings

log = logging.getLogger(__name__)


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


def _iter_untaken(settings: Settings, consumer: str, topic: str, role: Role, deadline: Deadline) -> Iterator[Record]:
    offsets = OffsetReader(settings.kafka.connection, deadline.left_s(kafka_offsets.TIMEOUT_S))
    taken = taken_offsets(settings, consumer, offsets.topic_id(topic), role)
    ends = {partition: end for partition, end in offsets.ends(topic).items() if end > taken.get(partition, 0)}
    positions = {partition: taken.get(partition, 0) for partition in ends}
    with closing(RangeReader(settings.kafka.connection, skip_deleted=True)) as reader:
        reader.begin(topic, positions)
        for messages in reader.iter_to(ends, positions, deadline.left_s(READ_TIMEOUT_S)):
            deadline.left_s(READ_TIMEOUT_S)
            yield from messages


def _of_record(place: str, message: Record, stream: Coordinates | None, output: Coordinates | None) -> Trace:
    accepted, replayed = (_time(_header(message, name)) for name in (headers.ACCEPTED_AT, headers.REPLAYED_AT))
    notes = ["a deletion"] if message.value() is None else []
    if replayed is not None:
        notes.append(f"kept in a fallback store until {replayed.isoformat()}")
    event_id = headers.event_id(_header(message, headers.EVENT_ID))
    at = accepted or instant_of(message.timestamp()[1] * 1000)
    context = headers.parse(_header(message, headers.TRACEPARENT))
    trace_id = None if context is None else context.trace_id
    return Trace(place, None, None, event_id, at, None, stream, None, output, "; ".join(notes), trace_id=trace_id)


def _header(message: Record, name: str) -> bytes | None:
    return next((value for header, value in headers_of(message) if header == name), None)


def _time(value: bytes | None) -> dt.datetime | None:
    text = headers.accepted_at(value)
    return None if text is None else parse_timestamp(text)


Answer = TypeVar("Answer")
AskGateways = Callable[[Settings], Mapping[str, Unsent]]


class SearchLimits(NamedTuple):
    """The role that reads, the limits of its statements, and the seconds for Kafka and for the days; None: no limit."""

    role: Role = "batch"
    session: SessionLimits = LONG
    place_s: float | None = None


UNLIMITED = SearchLimits()


class NothingToFind(WrongArguments):
    """The command names neither a key nor an event, or both."""


@dataclass(frozen=True)
class Whereabouts:
    """The traces of a key, oldest stage first, and the verdict in one sentence.

    `corrections` are the differences that rebuilds of its days found, with personal values hidden. `unknown` names the
    places that did not answer, with the reason. `key` is None if no record of the event was found.
    """

    key: int | None
    verdict: Message
    traces: Sequence[Trace]
    corrections: Sequence[Sample]
    unknown: Sequence[str]


def find(
    settings: Settings,
    day: Day | None = None,
    key: int | None = None,
    event_id: str | None = None,
    ask_gateways: AskGateways = unsent,
    limits: SearchLimits = UNLIMITED,
) -> Whereabouts:
    """Find a key of the stream, or the event with that id.

    Of an event the key is looked up first: in the records that the stream has not taken, in its tables, then in the
    published days, the newest first; `day` restricts the search to one of them. Blocks, for minutes if the stream is
    far behind or many days are searched, unless `limits` has others. Gateways or a broker that do not answer in time
    are listed as `unknown`. Raises NothingToFind, DatabaseUnavailable, SearchTooLong.
    """
    if (key is None) == (event_id is None):
        raise NothingToFind(f"--key={key}, --event-id={event_id}: name one of the two")
    unknown: list[str] = []
    # in the order of the way: a record that moves on meanwhile is found twice, never missed
    held = _asked("gateways", unknown, lambda: ask_gateways(settings))
    deadline = Deadline(limits.place_s)
    untaken = _asked("Kafka", unknown, lambda: untaken_records(settings, key, event_id, limits.role, deadline))
    with connect(settings.database, limits.role, "find", limits.session) as connection, connection.cursor() as cursor:
        cursor.execute(query("begin_comparison", cursor))
        if key is None:
            key = next((found for found, _ in untaken or []), None)
        if key is None and event_id is not None:
            key = _key_of_event(cursor, event_id, day, Deadline(limits.place_s))
        # without an answer of the gateways, nothing says which stores are missing
        unknown += [f"{store}, is missing" for store in (missing_stores(cursor, held) if held is not None else [])]
        stored = [] if key is None else _stored(cursor, key)
        corrections = [] if key is None else _corrections(cursor, settings.pipeline, key, stored)
    records = {trace.stream for trace in stored if trace.stream is not None}
    # a broker that did not answer is not asked again
    accepted = (
        []
        if untaken is None
        else _asked("Kafka", unknown, lambda: origins(settings, records, Deadline(limits.place_s))) or []
    )
    traces = [*accepted, *(trace for _, trace in untaken or []), *stored]
    subject = f"event {event_id}" if key is None else f"{settings.pipeline.stream.name} {key}"
    verdict = _verdict(subject, settings.pipeline, traces, held or {}, unknown)
    return Whereabouts(key, verdict, traces, corrections, unknown)


def _asked(place: str, unknown: list[str], ask: Callable[[], Answer]) -> Answer | None:
    """Return the answer; None if the place does not answer, which is noted."""
    try:
        return ask()
    except (Retryable, ConfigurationError, ContractMismatch) as exc:
        unknown.append(f"{place}: {exc}")
        return None


def _key_of_event(cursor: Cursor, event_id: str, day: Day | None, deadline: Deadline) -> int | None:
    cursor.execute(query("select_keys_of_event", cursor), {"event_id": event_id})
    if row := cursor.fetchone():
        return int(row[0])
    cursor.execute(query("select_days_to_search", cursor), {"day": day.date if day else None})
    for shown_day, generation_id in cursor.fetchall():
        log.info("searching day %s", shown_day)
        deadline.left_s(0)
        params = {"event_id": event_id, "day": shown_day, "generation_id": generation_id}
        cursor.execute(query("select_final_keys_of_event", cursor), params)
        if row := cursor.fetchone():
            return int(row[0])
    return None


def _stored(cursor: Cursor, key: int) -> list[Trace]:
    """Return the traces in tables; those that the view shows are marked."""
    cursor.execute(query("select_traces", cursor), {"key": key})
    found = [_trace(row) for row in cursor.fetchall()]
    cursor.execute(query("select_generations_of_key", cursor), {"key": key})
    for generation_id, day in cursor.fetchall():
        params = {"key": key, "day": day, "generation_id": generation_id}
        cursor.execute(query("select_final_trace", cursor), params)
        found += [_trace(row) for row in cursor.fetchall()]
    days = sorted({trace.day for trace in found if trace.day is not None})
    cursor.execute(query("select_shown_traces", cursor), {"key": key, "days": days})
    shown = {(place, day, generation_id) for place, day, generation_id in cursor.fetchall()}
    return [replace(trace, is_shown=(trace.place, trace.day, trace.generation_id) in shown) for trace in found]


def _trace(row: Sequence[Any]) -> Trace:
    place, day, generation_id, event_id, at, version_at, *numbers, note = row
    stream, table, output = (
        None if part is None or offset is None else Coordinates(part, offset)
        for part, offset in zip(numbers[::2], numbers[1::2], strict=True)
    )
    return Trace(place, day, generation_id, event_id, at, version_at, stream, table, output, note or "")


def _corrections(cursor: Cursor, pipeline: Definition, key: int, traces: Sequence[Trace]) -> list[Sample]:
    generations = sorted({trace.generation_id for trace in traces if trace.generation_id is not None})
    cursor.execute(query("select_corrections_of_key", cursor), {"key": key, "generations": generations})
    return [sample_of(pipeline, *row) for row in cursor.fetchall()]


def _verdict(
    subject: str,
    pipeline: Definition,
    traces: Sequence[Trace],
    waiting: Mapping[str, Unsent],
    unknown: Sequence[str],
) -> Message:
    """Return how far the key is and, unless it is shown, what is to be done."""
    by_place = {trace.place: trace for trace in traces}
    shown = [trace for trace in traces if trace.is_shown]
    newer = by_place.get("untaken") or by_place.get("unserved")
    last = max((trace for trace in traces if _takes_out(trace)), key=_age, default=None)

    def said(name: str, **values: Any) -> Message:
        return Message(f"verdict_{name}", subject=subject, **values)

    if "forgotten" in by_place:
        return said("forgotten", note=by_place["forgotten"].note)
    if shown:
        name = "shown_live" if shown[0].generation_id is None else "shown_final"
        values = {"day": shown[0].day, "generation": shown[0].generation_id}
        return said(f"{name}_and_newer" if newer else name, **values)
    if newer:
        return said("untaken")
    if last is not None:
        return said("deleted") if _is_deletion(last) else said(last.place, note=last.note)
    if "live" in by_place or "final" in by_place:
        return said("stored")
    if events := sum(each.total for each in waiting.values()):
        return said("maybe_waiting", events=events)
    return said("not_known" if unknown else "no_trace")


def _takes_out(trace: Trace) -> bool:
    """True if it says why the view has no row."""
    return _is_deletion(trace) or trace.place in ("pending", "reject", "rejected")


def _is_deletion(trace: Trace) -> bool:
    return trace.place == "deleted" or (trace.place in ("live", "covered") and trace.note == "deleted")


def _age(trace: Trace) -> tuple[float, float]:
    """The order of what happened to a key: by its record, and what builds said of that, before what the stream says."""
    offset = -math.inf if trace.stream is None else trace.stream.offset
    return offset, math.inf if trace.generation_id is None else trace.generation_id
