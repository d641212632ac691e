"""What the gateway needs of the world, as promises. Adapters keep them; tests/contracts hold both sides to them."""

import asyncio
import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from include.contracts.headers import EVENT_ID
from include.contracts.topics import Topic
from include.errors import PipelineError, Retryable


class StoreFull(Retryable):
    """The fallback store has reached its byte ceiling; nothing was kept."""


class StoreUnavailable(Retryable):
    """The fallback store could not write to its disk; nothing was kept."""


class StoreInUse(Retryable):
    """Another process holds this fallback store."""


@dataclass(frozen=True, slots=True)
class Record:
    """One Kafka record as it will be produced. A null value is a tombstone."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    timestamp_ms: int

    @property
    def event_id(self) -> str:
        """The identity that all copies of this event share; empty when the header is missing."""
        return next((value.decode() for name, value in self.headers if name == EVENT_ID), "")


@dataclass(frozen=True, slots=True)
class Failure:
    """A delivery failed. `kind` is librdkafka's name of the error or one of our own (see supervision).

    `generation` numbers the producer it came from: a failure of an earlier one must not restart its successor.
    """

    kind: str
    reason: str
    fatal: bool = False
    generation: int = 0


Partition = tuple[str, int]
"""A topic's name and the number of one of its partitions; -1 stands for a topic that is not there yet."""


class Producer(Protocol):
    """Sends records to Kafka, acknowledged by all in-sync replicas."""

    def start(
        self, on_failure: Callable[[Failure], None], on_cluster_change: Callable[[], None] = lambda: None
    ) -> None:
        """Begin, bound to the running event loop. Connects in the background; never raises for an absent broker.

        `on_failure` is called in the loop for failures that belong to no single record, such as no broker reachable.
        `on_cluster_change` is called there when a broker of another cluster answered than before: before the future of
        nearly any record settles that this cluster acknowledged, and within milliseconds of it at the latest. A client
        that is new, after the start or a restart, does not know which cluster was before, and tells nothing.
        """
        ...

    def send(self, record: Record) -> asyncio.Future[Failure | None]:
        """Queue a record; never blocks, never raises. The future always settles, with a value, within the deadline.

        None: acknowledged by all in-sync replicas. A Failure: it may be in Kafka all the same, as supervision tells
        by its kind. Records of one key that are acknowledged were appended in the order of the calls.
        """
        ...

    def partition_of(self, record: Record) -> Partition | None:
        """Where the record's key belongs; None without a key, or before a broker has told of its topics. Never blocks.

        As last heard from a broker: a topic made since then is still said to be missing.
        """
        ...

    def abandon(self) -> None:
        """Settle all that is in flight as failed now. Each may or may not reach Kafka afterwards."""
        ...

    def restart(self, generation: int) -> bool:
        """Replace the producer if it still is that generation; what was in flight fails. Tells whether it did."""
        ...

    async def cluster_id(self, timeout_s: float) -> str | None:
        """The id of the cluster that answers within the timeout; None when no broker does. Does not block the loop.

        An answer does not promise a delivery.
        """
        ...

    async def close(self, timeout_s: float) -> None:
        """Wait for what is in flight up to the timeout, fail the rest, end. Sending afterwards fails at once."""
        ...


@dataclass(frozen=True, slots=True)
class Waiting:
    """A kept record: `id` ascends in the order of acceptance. `damage` says why the record is not as it was kept."""

    id: int
    record: Record
    error: str
    may_be_in_kafka: bool
    kept_at_ms: int
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class SetAside:
    """A record that Kafka refuses for ever, and why."""

    id: int
    record: Record
    reason: str
    kept_at_ms: int


@dataclass(frozen=True, slots=True)
class Loss:
    """Accepted records that will not reach Kafka: unreadable after damage, or given up by a person.

    `reason` is that person's; None while nobody has said that it is known.
    """

    at_ms: int
    records: int
    what: str
    reason: str | None
    acknowledged_at_ms: int | None


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a fallback store holds. `bytes` counts waiting and refused records, `max_bytes` is the ceiling.

    `lost`: records that damage took, as well as it can be counted, until a person acknowledges them.
    """

    waiting: int
    ambiguous: int
    refused: int
    lost: int
    bytes: int
    max_bytes: int
    oldest_kept_at_ms: int | None


class FallbackStore(Protocol):
    """Keeps records durably while Kafka does not take them. One process at a time."""

    def open(self) -> None:
        """Take the store's lock and load its state; blocks.

        Raises StoreInUse, StoreUnavailable, or ConfigurationError for a folder that cannot be written to.
        Must be called in the event loop that will use it. Of a damaged file all that can be read is taken over into a
        new one, in the order of acceptance and as ambiguous; what cannot be read is counted as lost.
        """
        ...

    def put(self, record: Record, error: str, may_be_in_kafka: bool) -> asyncio.Future[int]:
        """Keep a record. The future settles with its id once it is on the disk, or with StoreFull or StoreUnavailable.

        From this call on, `is_waiting` is true of the record's key. Never blocks.
        """
        ...

    def is_waiting(self, record: Record) -> bool:
        """May an earlier record of the same topic and key still wait here? False is certain; true may be a false alarm.

        Sending a record of which this is true straight to Kafka could break the order of its key.
        """
        ...

    async def oldest(self, limit: int, after_id: int = 0, without_topics: Collection[str] = ()) -> list[Waiting]:
        """Waiting records in the order of acceptance, from beyond that id, but for those topics.

        Fewer than the limit when they are large; none only when no more wait. Raises StoreUnavailable.
        """
        ...

    async def settle(self, sent: Sequence[int], refused: Mapping[int, str]) -> None:
        """Forget what Kafka acknowledged; set aside, with its reason, what it refuses for ever. Durable on return.

        Raises StoreUnavailable; then nothing has changed.
        """
        ...

    async def set_aside(self, limit: int, after_id: int = 0) -> list[SetAside]:
        """Refused records in the order of their ids, from beyond that id. Raises StoreUnavailable."""
        ...

    async def retry_refused(self) -> int:
        """Let all refused records wait again, behind the others; tells how many."""
        ...

    async def give_up(self, reason: str, ids: Collection[int] | None = None) -> int:
        """Forget refused records, these or all; without ids, acknowledge what was lost too. Tells how many records.

        Each is noted with the reason. Raises StoreUnavailable; then nothing has changed.
        """
        ...

    async def losses(self) -> list[Loss]:
        """What was lost or given up, the oldest first. Raises StoreUnavailable."""
        ...

    async def check(self) -> bool:
        """Could a record be kept now? Writes to the disk to find out."""
        ...

    def backlog(self) -> Backlog:
        """What is held now; from memory."""
        ...

    async def close(self) -> None:
        """Finish what was put, and let go of the lock."""
        ...


@dataclass(frozen=True, slots=True)
class Saved:
    """A row of the system of record after a change: its id and times, and its value as the topic carries it.

    The value is None for a deleted row.
    """

    id: int
    created_at: dt.datetime | None
    modified_at: dt.datetime
    value: dict[str, object] | None


class KeyReused(PipelineError):
    """The key of this change was used for another one; nothing was changed."""


@dataclass(frozen=True, slots=True)
class ChangeKey:
    """The sender's key of a change: whose it is, the key, and what makes two calls the same."""

    scope: str
    key: str
    fingerprint: bytes


class SystemOfRecord(Protocol):
    """The tables that own members and boards. Every method raises DatabaseUnavailable, and then changed nothing.

    One exception: when the connection breaks during the commit, nobody knows, and the row may be saved. Then a retry
    with the same key finds it, and so does reconcile_sources.
    `fields` are the client's: those of the topic without its id and times, checked before. A modification time is
    greater than the one before it on the same row, in whole milliseconds, whichever gateway made the change.
    With a `key`, a change is made once: the key is saved in one transaction with the row, and within the window the
    same key returns what the first change saved. Raises KeyReused when its fingerprint differs.
    """

    async def create(self, topic: Topic, fields: Mapping[str, object], key: ChangeKey | None = None) -> Saved:
        """Save a new row under a new id."""
        ...

    async def update(
        self, topic: Topic, row_id: int, fields: Mapping[str, object], key: ChangeKey | None = None
    ) -> Saved | None:
        """Replace a row's fields. None when there is no such row, or it was deleted."""
        ...

    async def delete(self, topic: Topic, row_id: int, key: ChangeKey | None = None) -> Saved | None:
        """Mark a row as deleted. None when there is no such row, or it was deleted before."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class CallJournal(Protocol):
    """Remembers keys and values over a restart, in the order of their last write. Best effort: it never raises."""

    def open(self, limit: int) -> list[tuple[bytes, bytes]]:
        """The newest entries, oldest first; the others are forgotten. Blocks. Empty when it cannot be read."""
        ...

    def write(self, key: bytes, value: bytes | None) -> None:
        """Remember a value, or forget the key for None, soon. Never blocks."""
        ...

    def close(self) -> None:
        """Write what is not written yet. Blocks."""
        ...
