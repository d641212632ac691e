"""Compares the responses with the topic's records. Pure."""

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.faults.journal import Entry


class Copy(NamedTuple):
    """One record of the topic. `serial` is in the value: copies of one event have the same, and nothing else has."""

    serial: str
    event_id: str
    key: int
    partition: int
    offset: int
    accepted_at: str = ""


@dataclass(frozen=True)
class Verdict:
    """The findings: lists of serials, each with its fault."""

    kept: int
    kept_in_fallback: int
    refused: int
    unknown: int
    copies: int
    duplicates: int
    counted: int
    lost: Sequence[str]
    foreign: Sequence[str]
    merged: Sequence[str]
    refused_found: Sequence[str]
    out_of_order: Sequence[str]
    odd: Sequence[str]
    rows: Sequence[str] = ()
    clock: Sequence[str] = ()

    @property
    def faults(self) -> dict[str, Sequence[str]]:
        """Each promise that was broken, and where."""
        promises = {
            "lost: answered 2xx, not in the topic": self.uncounted,
            "foreign: copies, or the answer, have different event ids": self.foreign,
            "merged: two events have one event id": self.merged,
            "refused: answered 4xx, and in the topic": self.refused_found,
            "out of order: an event before an earlier one of its key": self.out_of_order,
            "odd: an answer that must not be": self.odd,
            "rows: a member's version has two identities, or its newest one is not in the topic": self.rows,
            "clock: a wrong one was not told, held up an event, or is in a record": self.clock,
        }
        return {promise: found for promise, found in promises.items() if found}

    @property
    def uncounted(self) -> Sequence[str]:
        """The lost ones, if they are more than the gateway counts as set aside or lost itself."""
        return self.lost if len(self.lost) > self.counted else ()


def judge(
    entries: Iterable[Entry],
    copies: Iterable[Copy],
    counted: int = 0,
    rows: Sequence[str] = (),
    missing: Sequence[str] = (),
    clock: Sequence[str] = (),
) -> Verdict:
    """The verdict over the events of these entries and copies; entries in the order of the answers.

    `counted`: events that the gateway says it cannot send. `rows`: the broken promises about rows. `missing`: versions
    of rows that were answered 2xx and are not in their topic. `clock`: the broken promises about the gateway's clock.
    """
    by_outcome: dict[str, dict[str, Entry]] = defaultdict(dict)
    for entry in entries:
        by_outcome[entry.outcome][entry.serial] = entry
    kept, refused = by_outcome["kept"], by_outcome["refused"]
    by_serial: dict[str, list[Copy]] = defaultdict(list)
    for copy in sorted(copies, key=lambda copy: (copy.partition, copy.offset)):
        by_serial[copy.serial].append(copy)
    return Verdict(
        kept=len(kept),
        kept_in_fallback=sum(entry.kept_in == "fallback" for entry in kept.values()),
        refused=len(refused),
        unknown=len(by_outcome["unknown"]),
        copies=sum(map(len, by_serial.values())),
        duplicates=sum(len(found) - 1 for found in by_serial.values()),
        counted=counted,
        lost=[*(serial for serial in kept if serial not in by_serial), *missing],
        foreign=list(_foreign(kept, by_serial)),
        merged=list(_merged(by_serial)),
        refused_found=[serial for serial in refused if serial in by_serial],
        out_of_order=list(_out_of_order([by_serial[serial] for serial in kept if serial in by_serial])),
        odd=[f"{entry.serial}: {entry.problem}" for entry in by_outcome["odd"].values()],
        rows=rows,
        clock=clock,
    )


def of_another_time(copies: Iterable[Copy], began: dt.datetime, ended: dt.datetime) -> list[str]:
    """Return the records that were not accepted in this time, by what they say."""
    return [
        f"{copy.serial} was accepted at {copy.accepted_at}, it says"
        for copy in copies
        if not began <= dt.datetime.fromisoformat(copy.accepted_at) <= ended
    ]


def _foreign(kept: dict[str, Entry], by_serial: dict[str, list[Copy]]) -> Iterable[str]:
    for serial, found in by_serial.items():
        ids = {copy.event_id for copy in found}
        if serial in kept:
            ids.add(kept[serial].event_id)
        if len(ids) > 1:
            yield f"{serial}: {', '.join(sorted(ids))}"


def _merged(by_serial: dict[str, list[Copy]]) -> Iterable[str]:
    """Return events that a consumer that drops copies would take for copies of another."""
    first: dict[str, str] = {}
    for serial, found in by_serial.items():
        for event_id in {copy.event_id for copy in found}:
            other = first.setdefault(event_id, serial)
            if other != serial:
                yield f"{serial} and {other}: {event_id}"


def _out_of_order(events: Iterable[list[Copy]]) -> Iterable[str]:
    """Of the copies of each accepted event: the first ones, and the last ones, must follow each other as accepted.

    In between a copy of an older event may come again after a newer one: a replay cut short begins again, under the
    same event ids, and ends with the newest.
    """
    first: dict[int, Copy] = {}
    last: dict[int, Copy] = {}
    for copies in events:
        for newest, copy in ((first, copies[0]), (last, copies[-1])):
            before = newest.get(copy.key)
            if before is not None and (before.partition, before.offset) > (copy.partition, copy.offset):
                which = "first" if newest is first else "last"
                yield f"{copy.serial} of key {copy.key}: its {which} copy is before that of {before.serial}"
            newest[copy.key] = copy
