"""Ports of the gateway: the protocols of its adapters. tests/agreement runs one suite per port on all of them."""

import asyncio
import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from include.contracts.clock import Clock
from include.contracts.errors import PipelineError, Retryable
from include.contracts.headers import EVENT_ID
from include.contracts.offsets import Partition
from include.contracts.topics import Topic


class StoreFull(Retryable):
    """The fallback store has reached its byte ceiling; nothing was kept."""


class StoreUnavailable(Retryable):
    """The fallback store could not write to its disk; nothing was kept."""


class StoreInUse(Retryable):
    """Another process holds this fallback store."""


@dataclass(slots=True)  # not frozen: that would cost each event half a microsecond
class Record:
    """One Kafka record to produce. A null value is a tombstone.

    `accepted_at_ms` is the time of acceptance, in ms since 1970: of an event by the gateway's clock, of a row by the
    database's. Kafka's timestamp is another one, the time at which a broker appended the record.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    accepted_at_ms: int

    @property
    def event_id(self) -> str:
        """The event id, which all copies of this event share; empty if the header is missing."""
        if self.headers and self.headers[0][0] == EVENT_ID:  # as the intake makes them
            return self.headers[0][1].decode()
        return (self.header(EVENT_ID) or b"").decode()

    def header(self, wanted: str) -> bytes | None:
        """Return the first header of that name; None if there is none."""
        return next((value for name, value in self.headers if name == wanted), None)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed delivery. `kind` is librdkafka's name of the error, or one of our own (see supervision).

    `generation` is the number of the producer that failed: a failure of a replaced producer must not restart its
    successor.
    """

    kind: str
    reason: str
    fatal: bool = False
    generation: int = 0


OnAppend = Callable[[Partition, int, int], None]
"""Takes the partition of a record, for how long it has been with the producer, and the time of its append, in ms."""


class Producer(Protocol):
    """Sends records to Kafka, acknowledged by all in-sync replicas."""

    def start(
        self,
        on_failure: Callable[[Failure], None],
        on_cluster_change: Callable[[], None] = lambda: None,
        on_append: OnAppend = lambda *_: None,
    ) -> None:
        """Start, bound to the running event loop. Connects in the background; an unreachable broker raises nothing.

        `on_failure` is called in the loop for failures that belong to no record, such as no broker being reachable.
        `on_cluster_change` is called in the loop when the brokers that answer belong to another cluster than before.
        It is called before the futures of nearly all records that this cluster acknowledges get their result, and
        otherwise within milliseconds. A new client, after the start or a restart, does not know the cluster before it
        and does not call it. `on_append` is called in the loop for a few of the acknowledged records, several times a
        second, if the record's topic has the times of the brokers.
        """
        ...

    def send(self, record: Record) -> asyncio.Future[Failure | None]:
        """Queue a record. Never blocks, never raises. The future has its result within the delivery timeout.

        None means acknowledged by all in-sync replicas. After a Failure the record may still be in Kafka; supervision
        tells by the kind. A failure that refuses the record for good is about this record alone, whatever it was sent
        together with. Acknowledged records of one key were appended in the order of the calls; if one had to be sent
        again alone, later ones may be appended both before it and after it.
        """
        ...

    def partition_of(self, record: Record) -> Partition | None:
        """Return the partition of the record's key; None without a key or before the first metadata. Never blocks.

        Uses the last metadata received: a topic created since then still counts as missing, partition -1.
        """
        ...

    def abandon(self) -> None:
        """Fail all records in flight at once. Each may still reach Kafka."""
        ...

    @property
    def generation(self) -> int:
        """The number of restarts so far."""
        ...

    def restart(self, generation: int) -> bool:
        """Replace the producer if it is still that generation. True if it was replaced; records in flight fail then."""
        ...

    async def cluster_id(self, timeout_s: float) -> str | None:
        """Return the id of the answering cluster; None if no broker answers in time. Does not block the loop.

        Returns within a few seconds of the timeout, even if the client never does. An answer does not mean that records
        will be delivered.
        """
        ...

    async def close(self, timeout_s: float) -> None:
        """Wait for records in flight up to the timeout, fail the rest and close. Later sends fail at once."""
        ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting record. Ids ascend in the order of acceptance. `damage` tells why it is not intact, None if it is."""

    id: int
    record: Record
    error: str
    may_be_in_kafka: bool
    kept_at_ms: int
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class SetAside:
    """A record that Kafka refuses for good, with the reason."""

    id: int
    record: Record
    reason: str
    kept_at_ms: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Accepted records that will not reach Kafka: unreadable after damage, or given up by a person.

    `reason` is that person's text; None while nobody has acknowledged the loss.
    """

    at_ms: int
    records: int
    what: str
    reason: str | None
    acknowledged_at_ms: int | None


@dataclass(frozen=True, slots=True)
class Backlog:
    """Counts of a fallback store. `bytes` counts waiting and refused records; `max_bytes` is its limit.

    `lost` is the number of records lost to damage, as far as it can be determined, until a person acknowledges them.
    """

    waiting: int
    ambiguous: int
    refused: int
    lost: int
    bytes: int
    max_bytes: int
    oldest_kept_at_ms: int | None


class FallbackStore(Protocol):
    """Stores records durably while Kafka does not accept them. One process at a time."""

    def open(self) -> None:
        """Take the store's lock and load its state. Blocks.

        Raises StoreInUse, StoreUnavailable, or ConfigurationError if the folder cannot be written to.
        Must be called in the event loop that will use the store. The readable records of a damaged file are copied to
        a new one, in the order of acceptance and marked as ambiguous; the others are counted as lost.
        """
        ...

    @property
    def store_id(self) -> str:
        """The UUID of the opened store. It stays the same as long as the store's folder exists."""
        ...

    def put(self, record: Record, error: str, may_be_in_kafka: bool) -> asyncio.Future[int]:
        """Store a record. Never blocks. From this call on, `is_waiting` is True for the record's key.

        The future's result is the record's id, once it is on disk. It raises StoreFull or StoreUnavailable.
        """
        ...

    def is_waiting(self, record: Record) -> bool:
        """True if an earlier record of the same topic and key may still wait here. May be a false alarm; False is not.

        Sending such a record straight to Kafka could break the order of its key.
        """
        ...

    async def oldest(self, limit: int, after_id: int = 0, without_topics: Collection[str] = ()) -> list[Waiting]:
        """Return waiting records with larger ids, in the order of acceptance, without those of the given topics.

        Returns fewer than `limit` if they are large, and none only if no more wait. Raises StoreUnavailable.
        """
        ...

    async def ack(self, sent: Sequence[int], refused: Mapping[int, str]) -> None:
        """Delete records that Kafka acknowledged; set aside, with the reason, those it refuses. Durable on return.

        Raises StoreUnavailable; nothing has changed then.
        """
        ...

    async def set_aside(self, limit: int, after_id: int = 0) -> list[SetAside]:
        """Return refused records with larger ids, in the order of their ids. Raises StoreUnavailable."""
        ...

    async def retry_refused(self) -> int:
        """Queue all refused records again, behind the waiting ones. Return their number."""
        ...

    async def give_up(self, reason: str, ids: Collection[int] | None = None) -> int:
        """Delete refused records, all or those with the given ids; without ids, also acknowledge lost ones.

        Returns the number of records. Each is noted with the reason. Raises StoreUnavailable; nothing has changed then.
        """
        ...

    async def losses(self) -> list[Loss]:
        """Return the lost and given-up records, oldest first. Raises StoreUnavailable."""
        ...

    async def check(self) -> bool:
        """True if a record could be stored now. Tests it with a write to the disk."""
        ...

    def backlog(self) -> Backlog:
        """Return the current counts, from memory."""
        ...

    async def close(self) -> None:
        """Finish pending puts and release the lock."""
        ...


@dataclass(frozen=True, slots=True)
class Saved:
    """A row of the system of record after a change: its id, its times, and its value in the form of the topic.

    The value of a deleted row is None.
    """

    id: int
    created_at: dt.datetime | None
    modified_at: dt.datetime
    value: dict[str, object] | None


class KeyReused(PipelineError):
    """The key of this change was used for another one; nothing was changed."""


@dataclass(frozen=True, slots=True)
class ChangeKey:
    """The sender's key of a change. `scope` is the sender; `fingerprint` is equal for equal calls."""

    scope: str
    key: str
    fingerprint: bytes


class GatewayClock(Clock, Protocol):
    """The clock of acceptance, by which the gateway judges versions. Implemented by `broker_clock.BrokerClock`."""

    def latest(self) -> dt.datetime:
        """Return the latest time that it may be. Versions are compared with it. For use in the event loop."""
        ...


class SystemOfRecord(Protocol):
    """The tables that own members and boards. Every method may raise DatabaseUnavailable; nothing was changed then.

    There is one exception: if the connection breaks during the commit, its result is unknown and the row may be saved.
    A retry with the same key finds it, and so does reconcile_sources.
    `fields` are the client's: those of the topic without its id and times, validated before. Each modification of a row
    has a greater time than the previous one, in whole milliseconds, whichever gateway makes it. Raises
    DatabaseClockAhead, with nothing changed, if that time is later than `GatewayClock.latest` by more than the topic's
    tolerance: readers would reject the record.
    With a `key`, a change is made once: the key is saved in one transaction with the row, and within the window the
    same key returns what the first change saved. Raises KeyReused if the fingerprint differs.
    """

    async def create(self, topic: Topic, fields: Mapping[str, object], key: ChangeKey | None = None) -> Saved:
        """Save a new row under a new id."""
        ...

    async def update(
        self, topic: Topic, row_id: int, fields: Mapping[str, object], key: ChangeKey | None = None
    ) -> Saved | None:
        """Replace a row's fields. Returns None if there is no such row, or it was deleted."""
        ...

    async def delete(self, topic: Topic, row_id: int, key: ChangeKey | None = None) -> Saved | None:
        """Mark a row as deleted. Returns None if there is no such row, or it was deleted before."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class CallJournal(Protocol):
    """Stores keys and values across restarts, in the order of their last write. Best effort: never raises."""

    def open(self, limit: int) -> list[tuple[bytes, bytes]]:
        """Return the newest `limit` entries, oldest first, and delete the others. Blocks. Empty if unreadable."""
        ...

    def write(self, key: bytes, value: bytes | None) -> None:
        """Queue a write of the value, or a deletion of the key if it is None. Never blocks."""
        ...

    def close(self) -> None:
        """Write all queued entries. Blocks."""
        ...
