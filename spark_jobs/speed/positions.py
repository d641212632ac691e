"""Starting offsets of a query, from the offset ledger. A ledger that does not match its topic raises an error.

Spark's checkpoint is not used: its folder is created anew at each start. A table's topic that was deleted and created
again is noticed, because cuts of generations hold the former topic's id.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from include.contracts.errors import LedgerBeyondEnd, PositionRefused, RangeExpired, TopicReplaced
from include.contracts.offsets import Offsets
from include.database.driver_lease import DriverLease
from include.database.named import query
from include.database.offset_ledger import Entry, OffsetLedger
from include.database.sessions import connect
from include.kafka.access import delivery_name
from include.kafka.committed import committed_of
from include.kafka.offsets import OffsetReader
from include.runtime.settings import EXACTLY_ONCE, DatabaseSettings, Settings

SEVEREST_FIRST = (TopicReplaced, LedgerBeyondEnd, RangeExpired)


@dataclass(frozen=True)
class OffsetMismatch:
    """A partition whose ledger entry does not match the topic. `first` and `end` are the topic's offsets.

    `topic_id` is the id in the ledger; `at` is the offset in the ledger, None if it has no entry.
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
        """The number of offsets that expired unread, including transaction markers; None if it is unknown."""
        return self.first - (self.at or 0) if self.error is RangeExpired else None

    @property
    def text(self) -> str:
        """The mismatch in one line, for an error."""
        ledger = "has no entry" if self.at is None else f"is at {self.at}"
        lost = "" if self.lost is None else f", {self.lost} records lost"
        return f"partition {self.partition}: the ledger {ledger}, the topic holds {self.first} to {self.end}{lost}"


@dataclass(frozen=True)
class Position:
    """The ledger's entries compared with the topic. `start` has the starting offset of each partition."""

    consumer: str
    topic: str
    topic_id: str
    entries: Sequence[Entry]
    start: Offsets
    mismatches: Sequence[OffsetMismatch]


def starting_position(
    ledger: OffsetLedger, offset_reader: OffsetReader, consumer: str, topic: str, lease: DriverLease, group: str = ""
) -> Position:
    """Return the position whose `start` has the ledger's offset of each partition, after saving missing ones there.

    A topic that the consumer never read starts at its first records, a partition that was added since at 0. They do so
    also if the group has committed offsets: the database was lost, and what it had has to be recovered. Raises
    TopicReplaced, LedgerBeyondEnd, RangeExpired with the partitions and the repair command; ContractMismatch for a
    topic that does not exist; DriverSuperseded, BrokerUnavailable, DatabaseUnavailable.
    """
    position = position_of(ledger, offset_reader, consumer, topic, group)
    raise_on_mismatch(position)
    next_offsets = ledger.open(consumer, topic, position.topic_id, position.start, lease)
    return replace(position, start={partition: next_offsets[partition] for partition in position.start})


def delivery_group(ledger: OffsetLedger, offset_reader: OffsetReader, settings: Settings) -> str:
    """Return the group whose offsets count beside the join's ledger; none if the delivery was never exactly once.

    A database that was restored or lost may not know that it was, so Kafka is asked too.
    """
    name, deliveries = delivery_name(settings.pipeline), (settings.stream.delivery, ledger.last_delivery())
    return name if EXACTLY_ONCE in deliveries or name in offset_reader.groups() else ""


def position_of(
    ledger: OffsetLedger, offset_reader: OffsetReader, consumer: str, topic: str, group: str = ""
) -> Position:
    """Compare the ledger with the topic, without changes. Raises as `starting_position`, except for mismatches.

    `group`: see `delivery_group`. The later one of its offset and the ledger's is compared.
    """
    offset_reader.partitions(topic)  # raises ContractMismatch if the topic does not exist
    topic_id = offset_reader.topic_id(topic)
    # The ledger between the two: a driver that runs may advance it at any time, and it never leaves the topic's range.
    first = offset_reader.earliest(topic)
    entries = ledger.entries(consumer, topic)
    committed: Offsets = {}
    if group:
        committed = committed_of(offset_reader.committed(group, topic), topic_id, ledger.repaired_at(consumer)).offsets
    ends = offset_reader.ends(topic)
    offset_reader.require_ids({topic: topic_id})
    return compared(consumer, topic, entries, topic_id, first, ends, committed)


def compared(
    consumer: str, topic: str, entries: Sequence[Entry], topic_id: str, first: Offsets, ends: Offsets,
    committed: Mapping[int, int] = MappingProxyType({}),
) -> Position:  # fmt: skip
    """Compare ledger entries with the topic. Entries of other topic ids count only if the present id has none.

    `committed`: offsets that a group has committed, which may be later.
    """
    current = {entry.partition: entry for entry in entries if entry.topic_id == topic_id}
    if current or not entries:
        known, is_same = current, True
    else:
        last_id = max(entries, key=lambda entry: entry.updated_at).topic_id
        known, is_same = {entry.partition: entry for entry in entries if entry.topic_id == last_id}, False
    start: Offsets = {}
    mismatches = []
    for partition in sorted(first.keys() | ends.keys() | known.keys()):
        entry = known.get(partition)
        low, end = first.get(partition, 0), ends.get(partition, 0)  # a partition that is gone counts as empty
        at = max((entry.next_offset, committed.get(partition, 0))) if entry else committed.get(partition)
        error = _mismatch_of(at, low, end, is_same, is_new_consumer=not entries and at is None)
        if error is not None:
            mismatches.append(OffsetMismatch(error, partition, entry.topic_id if entry else topic_id, at,
                                  entry.updated_at if entry else None, low, end))  # fmt: skip
        if partition in ends:
            start[partition] = low if at is None or entry is None else at
    return Position(consumer, topic, topic_id, entries, start, mismatches)


def raise_on_mismatch(position: Position) -> None:
    """Raise the error of the most severe mismatch, with all mismatched partitions and the repair command."""
    errors = {mismatch.error for mismatch in position.mismatches}
    for error in SEVEREST_FIRST:
        if error in errors:
            partitions = "; ".join(mismatch.text for mismatch in position.mismatches)
            raise error(f"{_summary(error)}: {partitions}. {remedy(position.consumer)}",
                        consumer=position.consumer, topic=position.topic)  # fmt: skip


def refuse_replaced(offset_reader: OffsetReader, consumer: str, topic: str, topic_id: str) -> None:
    """Raise TopicReplaced if the topic's id changed since the query started.

    For a running query: once the new topic has as many records as the old one, its offsets no longer show the change.
    Records that the query skipped meanwhile are not lost: the repair restarts at the new topic's first records.
    """
    present_id = offset_reader.topic_id(topic)
    if present_id != topic_id:
        raise TopicReplaced(f"{_summary(TopicReplaced)}. {remedy(consumer)}",
                            consumer=consumer, topic=topic, was=topic_id, present=present_id)  # fmt: skip


def remedy(consumer: str) -> str:
    """Return what to do, for an error."""
    command = f"pipeline stream repair --consumer {consumer}"
    return f"Stop the stream, check with `{command} --dry-run`, then repair with `{command}`"


def _summary(error: type[PositionRefused]) -> str:
    return (error.__doc__ or "").split("\n", 1)[0].rstrip(".")


def _mismatch_of(
    at: int | None, first: int, end: int, is_same: bool, is_new_consumer: bool
) -> type[PositionRefused] | None:
    if not is_same:
        return TopicReplaced
    if is_new_consumer:
        return None
    if (at or 0) < first:  # an added partition without an entry starts at 0
        return RangeExpired
    if at is not None and at > end:
        return LedgerBeyondEnd
    return None


@dataclass(frozen=True)
class ReplacedTable:
    """The present topic, and the days with generations that were built from a former topic of the same name."""

    topic: str
    topic_id: str
    days: Sequence[dt.date]

    @property
    def text(self) -> str:
        """The finding in one line."""
        days = f"{len(self.days)} days ({self.days[0]} to {self.days[-1]})"
        return f"topic {self.topic} was created again: generations of {days} have the former one in their cuts"


def replaced_table(database: DatabaseSettings, offset_reader: OffsetReader, topic: str) -> ReplacedTable | None:
    """Return the present topic of that name if generations were built from a former one; None otherwise.

    Raises ContractMismatch if the topic does not exist.
    """
    offset_reader.partitions(topic)  # raises ContractMismatch if the topic does not exist
    topic_id = offset_reader.topic_id(topic)
    with connect(database, "stream", "replaced table") as connection, connection.cursor() as cursor:
        cursor.execute(query("select_days_of_other_topic", cursor), {"topic": topic, "topic_id": topic_id})
        days = [day for (day,) in cursor.fetchall()]
    return ReplacedTable(topic, topic_id, days) if days else None


def refuse_replaced_table(database: DatabaseSettings, offset_reader: OffsetReader, topic: str) -> None:
    """Raise TopicReplaced, with the repair command, if the table's topic was replaced.

    A record that was pending at a cut is shown if its row of the table arrives beyond the cut. Offsets of a former
    topic can't be compared with those of the present one, so this could not be decided.
    """
    found = replaced_table(database, offset_reader, topic)
    if found is not None:
        raise TopicReplaced(f"{found.text}. {remedy('join')}", topic=found.topic, present=found.topic_id)
