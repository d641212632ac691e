"""The offset ledger: the next offset that a consumer takes of each partition of a topic. It decides where to begin."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from psycopg2.extensions import cursor as Cursor

from include.adapters.kafka.offsets import Offsets
from include.adapters.postgres.driver_lease import DriverLease
from include.adapters.postgres.sessions import KeptConnection
from include.errors import LedgerConflict
from include.settings import DatabaseSettings
from include.sql.named import query

REPLACED = "replaced"  # a consumer: before its place the output was made from a stream's topic that was replaced


class Entry(NamedTuple):
    """One partition's place, and when it was last moved. Another topic id is another topic of the same name."""

    topic_id: str
    partition: int
    next_offset: int
    updated_at: dt.datetime


class Move(NamedTuple):
    """An entry that a person moves. `from_offset` is None where there was none."""

    partition: int
    from_topic_id: str
    from_offset: int | None
    to_offset: int
    reason: str


class Output(NamedTuple):
    """The output topic, and where it ends."""

    topic: str
    topic_id: str
    ends: Offsets


class OffsetLedger:
    """Each call is one short transaction over a connection that is kept. Safe for several threads.

    Raises DatabaseUnavailable; a call repeated after that does no harm.
    """

    def __init__(self, database: DatabaseSettings) -> None:
        self._connection = KeptConnection(database, "stream", "ledger")

    def entries(self, consumer: str, topic: str) -> list[Entry]:
        """All entries of the consumer for topics of that name, those moved last first."""
        with self._connection.transaction() as cursor:
            return select_entries(cursor, consumer, topic)

    def open(self, consumer: str, topic: str, topic_id: str, start: Offsets, lease: DriverLease) -> Offsets:
        """The ledger of this topic; a partition that has no entry yet gets one at its `start`.

        Raises DriverSuperseded.
        """
        with self._connection.transaction() as cursor:
            lease.hold(cursor)
            open_partitions(cursor, consumer, topic, topic_id, start)
            return _places(cursor, consumer, topic_id)

    def advance(
        self, consumer: str, topic: str, topic_id: str, expected: Offsets, ends: Mapping[int, int], lease: DriverLease
    ) -> Offsets:
        """Move these partitions to `ends`, from `expected` (0 for one that was added since). Returns their new places.

        A place between the two is taken for an earlier advance of this driver whose commit was not answered: only
        the holder of the lease moves the ledger. Raises LedgerConflict for any other place, DriverSuperseded.
        """
        with self._connection.transaction() as cursor:
            lease.hold(cursor)
            open_partitions(cursor, consumer, topic, topic_id, {p: 0 for p in ends if p not in expected})
            places = _places(cursor, consumer, topic_id)
            for partition, end in ends.items():
                wanted, place = expected.get(partition, 0), places.get(partition)
                if place is None or not wanted <= place <= end:
                    raise LedgerConflict(consumer=consumer, topic=topic, partition=partition, ledger=place,
                                         expected=wanted, next_offset=end)  # fmt: skip
            move_partitions(cursor, consumer, topic, topic_id, places, ends)
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
        """Move entries as a person decided, and keep what was moved.

        Entries of a replaced topic go; pending boards and rejects that came from it are kept under its name and id.

        `send_pending_again`: boards that had waited and were sent count as not sent, for their details may be lost.
        `made_from_replaced`: all that the output topic has by now was made from the replaced one, served or not.
        Raises LedgerConflict when the ledger is not as it was seen, DriverSuperseded.
        """
        where = {"consumer": consumer, "topic": topic, "topic_id": topic_id}
        with self._connection.transaction() as cursor:
            lease.hold(cursor)
            if sorted(select_entries(cursor, consumer, topic)) != sorted(seen):
                raise LedgerConflict("The ledger moved since it was looked at; look again", **where)
            if send_pending_again:
                cursor.execute(query("forget_sent_pending", cursor))
            for replaced in {move.from_topic_id for move in moves} - {topic_id}:
                cursor.execute(query("set_aside_pending", cursor), where | {"from_topic_id": replaced})
                cursor.execute(query("set_aside_rejects", cursor), where | {"from_topic_id": replaced})
            for move in moves:  # the ledger last, as a batch takes it
                cursor.execute(query("set_ledger_entry", cursor), where | move._asdict())
                cursor.execute(
                    query("insert_ledger_repair", cursor), where | move._asdict() | {"repaired_by": repaired_by}
                )
            cursor.execute(query("delete_replaced_ledger", cursor), where)
            if made_from_replaced is not None:
                output = {"consumer": REPLACED, "topic": made_from_replaced.topic,
                          "topic_id": made_from_replaced.topic_id}  # fmt: skip
                for partition, end in made_from_replaced.ends.items():
                    cursor.execute(
                        query("set_ledger_entry", cursor), output | {"partition": partition, "to_offset": end}
                    )

    def close(self) -> None:
        """Let go of the connection. The next call opens another."""
        self._connection.close()


def open_partitions(cursor: Cursor, consumer: str, topic: str, topic_id: str, start: Mapping[int, int]) -> None:
    """Give partitions that have no entry one at their start; an entry that is there stays as it is."""
    for partition, offset in start.items():
        cursor.execute(query("open_ledger", cursor), {"consumer": consumer, "topic": topic, "topic_id": topic_id,
                                              "partition": partition, "next_offset": offset})  # fmt: skip


def move_partitions(
    cursor: Cursor, consumer: str, topic: str, topic_id: str, places: Mapping[int, int], ends: Mapping[int, int]
) -> None:
    """Compare and set, in one statement: partitions whose end is beyond their place. Raises LedgerConflict."""
    moved = [partition for partition, end in ends.items() if end > places[partition]]
    if not moved:
        return
    expected, next_offsets = [places[partition] for partition in moved], [ends[partition] for partition in moved]
    cursor.execute(query("advance_ledger", cursor), {"consumer": consumer, "topic_id": topic_id, "partitions": moved,
                                             "expected": expected, "next_offsets": next_offsets})  # fmt: skip
    if cursor.rowcount != len(moved):
        raise LedgerConflict(consumer=consumer, topic=topic, partitions=moved, expected=expected)


def select_entries(cursor: Cursor, consumer: str, topic: str) -> list[Entry]:
    """All entries of the consumer for topics of that name, those moved last first."""
    cursor.execute(query("select_ledger_entries", cursor), {"consumer": consumer, "topic": topic})
    return [Entry._make(row) for row in cursor.fetchall()]


def _places(cursor: Cursor, consumer: str, topic_id: str) -> Offsets:
    cursor.execute(query("select_ledger", cursor), {"consumer": consumer, "topic_id": topic_id})
    return dict(cursor.fetchall())
