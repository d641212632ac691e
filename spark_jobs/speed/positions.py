"""Where a query begins: at the offset ledger, if that still fits its topic. If not, it is refused, with the repair.

Spark's checkpoint has no say: its folder is made anew at each start.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from include.adapters.driver_lease import DriverLease
from include.adapters.kafka_offsets import OffsetReader, Offsets
from include.adapters.offset_ledger import Entry, OffsetLedger
from include.errors import LedgerBeyondEnd, PositionRefused, RangeExpired, TopicReplaced

SEVEREST_FIRST = (TopicReplaced, LedgerBeyondEnd, RangeExpired)


@dataclass(frozen=True)
class OffsetMismatch:
    """A partition where ledger and topic do not fit together. `first` and `end` are the topic's offsets.

    `topic_id` is the one that the ledger knows; `at` is its offset, None where it has no entry.
    """

    error: type[PositionRefused]
    partition: int
    topic_id: str
    at: int | None
    advanced_at: dt.datetime | None
    first: int
    end: int

    @property
    def lost(self) -> int | None:
        """How many offsets are gone that were never taken, markers of transactions among them; None: nobody knows."""
        return self.first - (self.at or 0) if self.error is RangeExpired else None

    @property
    def text(self) -> str:
        """One line for an error."""
        ledger = "has no entry" if self.at is None else f"is at {self.at}"
        lost = "" if self.lost is None else f", {self.lost} records lost"
        return f"partition {self.partition}: the ledger {ledger}, the topic holds {self.first} to {self.end}{lost}"


@dataclass(frozen=True)
class Position:
    """What the ledger and the topic say. `start` is where each partition of the topic would begin."""

    consumer: str
    topic: str
    topic_id: str
    entries: Sequence[Entry]
    start: Offsets
    mismatches: Sequence[OffsetMismatch]


def starting_position(
    ledger: OffsetLedger, offset_reader: OffsetReader, consumer: str, topic: str, lease: DriverLease
) -> Offsets:
    """The next offset to take of each partition, in the ledger by then.

    A topic that the consumer never read begins at its first records, a partition that was added since at 0. Raises
    TopicReplaced, LedgerBeyondEnd, RangeExpired with the partitions and the repair; ContractMismatch for a topic
    that does not exist; DriverSuperseded, BrokerUnavailable, DatabaseUnavailable.
    """
    position = position_of(ledger, offset_reader, consumer, topic)
    raise_on_mismatch(position)
    places = ledger.open(consumer, topic, position.topic_id, position.start, lease)
    return {partition: places[partition] for partition in position.start}


def position_of(ledger: OffsetLedger, offset_reader: OffsetReader, consumer: str, topic: str) -> Position:
    """Look, and change nothing. Raises as `starting_position`, but for mismatches."""
    offset_reader.partitions(topic)  # this one says so when the topic does not exist
    topic_id = offset_reader.topic_id(topic)
    first, ends = offset_reader.earliest(topic), offset_reader.ends(topic)
    offset_reader.require_ids({topic: topic_id})
    return compared(consumer, topic, ledger.entries(consumer, topic), topic_id, first, ends)


def compared(
    consumer: str, topic: str, entries: Sequence[Entry], topic_id: str, first: Offsets, ends: Offsets
) -> Position:
    """Hold the ledger against the topic as it is now. Entries of other topic ids count only while this one has none."""
    current = {entry.partition: entry for entry in entries if entry.topic_id == topic_id}
    if current or not entries:
        known, is_same = current, True
    else:
        last_id = max(entries, key=lambda entry: entry.updated_at).topic_id
        known, is_same = {entry.partition: entry for entry in entries if entry.topic_id == last_id}, False
    start: Offsets = {}
    mismatches = []
    for partition in sorted(first.keys() | known.keys()):
        entry = known.get(partition)
        low, end = first.get(partition, 0), ends.get(partition, 0)  # a partition that is gone holds nothing
        at = entry.next_offset if entry else None
        error = _misfit(at, low, end, is_same, is_new_consumer=not entries)
        if error is not None:
            mismatches.append(OffsetMismatch(error, partition, entry.topic_id if entry else topic_id, at,
                                  entry.updated_at if entry else None, low, end))  # fmt: skip
        if partition in first:
            start[partition] = low if at is None else at
    return Position(consumer, topic, topic_id, entries, start, mismatches)


def raise_on_mismatch(position: Position) -> None:
    """Raise for the severest mismatch, naming every partition that does not fit, and the command that repairs it."""
    errors = {mismatch.error for mismatch in position.mismatches}
    for error in SEVEREST_FIRST:
        if error in errors:
            places = "; ".join(mismatch.text for mismatch in position.mismatches)
            raise error(f"{_summary(error)}: {places}. {_remedy(position.consumer)}",
                        consumer=position.consumer, topic=position.topic)  # fmt: skip


def refuse_replaced(offset_reader: OffsetReader, consumer: str, topic: str, topic_id: str) -> None:
    """Raise TopicReplaced when the topic is another one than the query began with.

    For a query that runs: the new topic may soon hold more records than the old one did, and then its offsets show
    nothing. What was passed over meanwhile is not lost: the repair begins at the new topic's first records.
    """
    present_id = offset_reader.topic_id(topic)
    if present_id != topic_id:
        raise TopicReplaced(f"{_summary(TopicReplaced)}. {_remedy(consumer)}",
                            consumer=consumer, topic=topic, was=topic_id, present=present_id)  # fmt: skip


def _summary(error: type[PositionRefused]) -> str:
    return (error.__doc__ or "").split("\n", 1)[0].rstrip(".")


def _remedy(consumer: str) -> str:
    command = f"python -m spark_jobs.repair --consumer {consumer}"
    return f"Stop the stream, look with `{command} --dry-run`, then repair with `{command}`"


def _misfit(at: int | None, first: int, end: int, is_same: bool, is_new_consumer: bool) -> type[PositionRefused] | None:
    if not is_same:
        return TopicReplaced
    if is_new_consumer:
        return None
    if (at or 0) < first:  # an added partition without an entry begins at 0
        return RangeExpired
    if at is not None and at > end:
        return LedgerBeyondEnd
    return None
