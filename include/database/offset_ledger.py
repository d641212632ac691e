"""The offset ledger: a consumer's next offset in each partition of a topic, at which the consumer starts."""

import datetime as dt
from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

from psycopg2.extensions import cursor as Cursor

from include.contracts.errors import LedgerConflict
from include.contracts.offsets import Offsets
from include.database.driver_lease import DriverLease
from include.database.named import query
from include.database.sessions import KeptConnection
from include.runtime.settings import DatabaseSettings

# Consumers: records of the output before their offsets come from a stream's topic since replaced, or, with its number,
# from a partition that lost its last records since.
REPLACED = "replaced"


class Entry(NamedTuple):
    """The next offset of a partition, and the time of its last change. Topics of one name have different ids."""

    topic_id: str
    partition: int
    next_offset: int
    updated_at: dt.datetime


class Move(NamedTuple):
    """A change of an entry by a person. `from_offset` is None if there was no entry.

    The partition lost its records from `lost_from` on, if that is given: later ones get their offsets.
    """

    partition: int
    from_topic_id: str
    from_offset: int | None
    to_offset: int
    reason: str
    lost_from: int | None = None


class Output(NamedTuple):
    """The output topic and its end offsets."""

    topic: str
    topic_id: str
    ends: Offsets


class OffsetLedger:
    """Each call is one short transaction over a kept connection. Thread-safe.

    Raises DatabaseUnavailable; the call can then be repeated.
    """

    def __init__(self, database: DatabaseSettings) -> None:
        self._connection = KeptConnection(database, "stream", "ledger")

    def entries(self, consumer: str, topic: str) -> list[Entry]:
        """Return the consumer's entries for all topics of that name, the last changed first."""
        with self._connection.transaction() as cursor:
            return select_entries(cursor, consumer, topic)

    def open(self, consumer: str, topic: str, topic_id: str, start: Offsets, lease: DriverLease) -> Offsets:
        """Return the topic's next offsets; a partition without an entry gets one at its `start`.

        Raises DriverSuperseded.
        """
        with self._connection.transaction() as cursor:
            lease.hold(cursor)
            open_partitions(cursor, consumer, topic, topic_id, start)
            return _next_offsets(cursor, consumer, topic_id)

    def advance(
        self, consumer: str, topic: str, topic_id: str, expected: Offsets, ends: Mapping[int, int], lease: DriverLease
    ) -> Offsets:
        """Advance these partitions from `expected` (0 for a partition added since) to `ends`, and return `ends`.

        An offset between the two is from an earlier advance of this driver whose commit was not answered: only the
        holder of the lease advances the ledger. Raises LedgerConflict for any other offset, DriverSuperseded.
        """
        with self._connection.transaction() as cursor:
            lease.hold(cursor)
            open_partitions(cursor, consumer, topic, topic_id, {p: 0 for p in ends if p not in expected})
            present = _next_offsets(cursor, consumer, topic_id)
            for partition, end in ends.items():
                start, offset = expected.get(partition, 0), present.get(partition)
                if offset is None or not start <= offset <= end:
                    raise LedgerConflict(consumer=consumer, topic=topic, partition=partition, ledger=offset,
                                         expected=start, next_offset=end)  # fmt: skip
            move_partitions(cursor, consumer, topic, topic_id, present, ends)
        return dict(ends)

    def repair(
        self,
        consumer: str,
        topic: str,
        topic_id: str,
        seen: Sequence[Entry],
        moves: Sequence[Move],
        repaired_by: str,
        lease: DriverLease,
        send_pending_again: bool = False,
        made_from_replaced: Output | None = None,
    ) -> None:
        """Change entries as a person decided, and record the changes.

        Entries of a replaced topic are deleted. Its pending records and rejects, and those of lost records, are kept
        under the topic's name and its id, or that and the repair's.

        `send_pending_again`: mark pending records that were sent as not sent, because their rows may be lost.
        `made_from_replaced`: the present records of the output topic, served or not, come from the replaced one, or
        those of a partition with lost records from what it had then.
        Raises LedgerConflict if the ledger differs from `seen`, DriverSuperseded.
        """
        where = {"consumer": consumer, "topic": topic, "topic_id": topic_id}
        with self._connection.transaction() as cursor:
            lease.hold(cursor)
            if sorted(select_entries(cursor, consumer, topic)) != sorted(seen):
                raise LedgerConflict("the ledger has changed since it was read; run the command again", **where)
            if send_pending_again:
                cursor.execute(query("forget_sent_pending", cursor))
            former: list[dict[str, object]] = [
                {"former": replaced, "lost_from": None, "partition": None}
                for replaced in {move.from_topic_id for move in moves} - {topic_id}
            ]
            marks = [REPLACED for _ in former[:1]]
            for move in moves:
                what = {**where, **move._asdict()}
                cursor.execute(query("insert_ledger_repair", cursor), what | {"repaired_by": repaired_by})
                if move.lost_from is not None:
                    former.append(what | {"former": f"{topic_id}.{cursor.fetchone()[0]}"})
                    marks.append(replaced_partition(move.partition))
            for name, each in product(("set_aside_pending", "set_aside_rejects"), former):
                cursor.execute(query(name, cursor), {**where, **each})
            for move in moves:  # the ledger's lock last, in the order of a batch
                cursor.execute(query("set_ledger_entry", cursor), where | move._asdict())
            cursor.execute(query("delete_replaced_ledger", cursor), where)
            if made_from_replaced is not None:
                output = {"topic": made_from_replaced.topic, "topic_id": made_from_replaced.topic_id}
                for consumer, (partition, end) in product(marks, made_from_replaced.ends.items()):
                    cursor.execute(
                        query("set_ledger_entry", cursor),
                        output | {"consumer": consumer, "partition": partition, "to_offset": end},
                    )

    def repaired_at(self, consumer: str) -> dict[int, int]:
        """Return when a person last moved the entry of each partition, in µs since 1970; a partition may be absent."""
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_repaired_at", cursor), {"consumer": consumer})
            return dict(cursor.fetchall())

    def note_delivery(self, delivery: str, lease: DriverLease) -> None:
        """Note how the stream delivers from now on: a value of STREAM_DELIVERY. Raises DriverSuperseded."""
        with self._connection.transaction() as cursor:
            lease.hold(cursor)
            cursor.execute(query("note_delivery", cursor), {"delivery": delivery})

    def last_delivery(self) -> str | None:
        """Return the value of STREAM_DELIVERY that was noted last; None if the stream never ran."""
        with self._connection.transaction() as cursor:
            cursor.execute(query("select_last_delivery", cursor))
            row = cursor.fetchone()
        return None if row is None else row[0]

    def close(self) -> None:
        """Close the connection. The next call opens another."""
        self._connection.close()


def replaced_partition(partition: int) -> str:
    """Return the consumer whose offsets end what the output has of a partition that lost its last records."""
    return f"{REPLACED} {partition}"


def open_partitions(cursor: Cursor, consumer: str, topic: str, topic_id: str, start: Mapping[int, int]) -> None:
    """Insert entries at their start for partitions that have none; existing entries stay unchanged."""
    for partition, offset in start.items():
        cursor.execute(query("open_ledger", cursor), {"consumer": consumer, "topic": topic, "topic_id": topic_id,
                                              "partition": partition, "next_offset": offset})  # fmt: skip


def move_partitions(
    cursor: Cursor, consumer: str, topic: str, topic_id: str, present: Mapping[int, int], ends: Mapping[int, int]
) -> None:
    """Advance the partitions whose end is beyond their present offset, by compare and set. Raises LedgerConflict."""
    moved = [partition for partition, end in ends.items() if end > present[partition]]
    if not moved:
        return
    expected, next_offsets = [present[partition] for partition in moved], [ends[partition] for partition in moved]
    cursor.execute(query("advance_ledger", cursor), {"consumer": consumer, "topic_id": topic_id, "partitions": moved,
                                             "expected": expected, "next_offsets": next_offsets})  # fmt: skip
    if cursor.rowcount != len(moved):
        raise LedgerConflict(consumer=consumer, topic=topic, partitions=moved, expected=expected)


def select_entries(cursor: Cursor, consumer: str, topic: str) -> list[Entry]:
    """Return the consumer's entries for all topics of that name, the last changed first."""
    cursor.execute(query("select_ledger_entries", cursor), {"consumer": consumer, "topic": topic})
    return [Entry._make(row) for row in cursor.fetchall()]


def _next_offsets(cursor: Cursor, consumer: str, topic_id: str) -> Offsets:
    cursor.execute(query("select_ledger", cursor), {"consumer": consumer, "topic_id": topic_id})
    return dict(cursor.fetchall())
