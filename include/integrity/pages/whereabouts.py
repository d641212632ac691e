"""Finds a key of the stream on its whole way: from a gateway's store to the row that readers see. Changes nothing."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from psycopg2.extensions import cursor as Cursor

from include.contracts.day import Day
from include.contracts.definition import Definition
from include.contracts.errors import ConfigurationError, ContractMismatch, Retryable, WrongArguments
from include.database.named import query
from include.database.sessions import LONG, SessionLimits, connect
from include.integrity.days.comparison import Sample, sample_of
from include.integrity.days.gateways import Unsent, missing_stores, unsent
from include.integrity.pages.texts import Message
from include.integrity.pages.topic_traces import Coordinates, Deadline, Trace, origins, untaken_records
from include.runtime.settings import Role, Settings

log = logging.getLogger(__name__)

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
