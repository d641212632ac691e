"""In-memory stand-ins for the gateway's ports. tests/agreement holds them to the same suites as the real ones."""

import asyncio
import datetime as dt
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from include.contracts.clock import epoch_ms, rfc3339
from include.contracts.errors import DatabaseUnavailable
from include.contracts.offsets import Partition, known_partition
from include.contracts.pipelines import SITE_PIPELINE
from include.contracts.topics import Topic
from include.gateway.ports import (
    Backlog,
    ChangeKey,
    Failure,
    GatewayClock,
    KeyReused,
    Loss,
    OnAppend,
    Record,
    Saved,
    SetAside,
    StoreFull,
    StoreInUse,
    StoreUnavailable,
    Waiting,
)
from include.gateway.supervision import CLOSED, DEADLINE
from include.gateway.system_of_record import require_not_ahead

ROW_BYTES = 100
OWN_CLUSTER = "own"


class FixedClock:
    """A clock that stands until it is moved. Implements `GatewayClock`."""

    def __init__(self, instant: dt.datetime = dt.datetime(2026, 11, 20, 9, 30, tzinfo=dt.UTC)) -> None:
        self.instant = instant

    def now(self) -> dt.datetime:
        return self.instant

    def latest(self) -> dt.datetime:
        return self.instant

    def advance(self, seconds: float) -> None:
        self.instant += dt.timedelta(seconds=seconds)


class MemoryProducer:
    """A broker in a list. `is_up` is the broker's, `topics` are its topics with their partitions.

    `is_cut_off`: the client does not reach the broker any more, until it is restarted.
    `refuses` may answer a record with a failure of any kind, `is_silent` leave it without an answer. With a `clock`,
    the broker says when it appended each record.
    """

    def __init__(self, deadline_s: float = 0.05) -> None:
        self.is_up = True
        self.is_cut_off = False
        self.cluster = OWN_CLUSTER
        self.refuses: Callable[[Record], Failure | None] = lambda record: None
        self.is_silent: Callable[[Record], bool] = lambda record: False
        self.topics: dict[str, int] = {}
        self.records: list[Record] = []
        self.elsewhere: list[Record] = []  # what another cluster acknowledged
        self.generation = 0
        self.clock: FixedClock | None = None
        self._deadline_s = deadline_s
        self._is_closed = False
        self._known_topics: dict[str, int] = {}
        self._in_flight: list[asyncio.Future[Failure | None]] = []
        self._on_failure: Callable[[Failure], None] = lambda failure: None
        self._on_cluster_change: Callable[[], None] = lambda: None

    def start(
        self,
        on_failure: Callable[[Failure], None],
        on_cluster_change: Callable[[], None] = lambda: None,
        on_append: OnAppend = lambda *_: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_failure = on_failure
        self._on_cluster_change = on_cluster_change
        self._on_append = on_append

    def move_to(self, cluster: str, is_told: bool = True) -> None:
        """Another cluster answers from now on, on a new connection; `is_told`: the client warns of it."""
        self.cluster = cluster
        if is_told:
            self._on_cluster_change()

    def report(self, failure: Failure) -> None:
        """As if the client had met a failure that belongs to no record."""
        self._on_failure(failure)

    def send(self, record: Record) -> asyncio.Future[Failure | None]:
        future: asyncio.Future[Failure | None] = self._loop.create_future()
        if self._is_closed:
            future.set_result(Failure(CLOSED, "closed"))
            return future
        if not self.is_up or self.is_cut_off or self.is_silent(record):
            self._in_flight.append(future)
            self._loop.call_later(self._deadline_s, self._end, future, DEADLINE)
            return future
        failure = self.refuses(record)
        if failure is None:
            (self.records if self.cluster == OWN_CLUSTER else self.elsewhere).append(record)
            if self.clock is not None:
                partition = known_partition(self.topics, record.topic, record.key) or (record.topic, 0)
                self._on_append(partition, 0, epoch_ms(self.clock.now()))
        else:
            failure = replace(failure, generation=self.generation)
        self._loop.call_soon(lambda: None if future.done() else future.set_result(failure))
        return future

    def partition_of(self, record: Record) -> Partition | None:
        return known_partition(self._known_topics, record.topic, record.key)

    def abandon(self) -> None:
        for future in self._in_flight:
            self._end(future, "_PURGE_INFLIGHT")
        self._in_flight.clear()

    def restart(self, generation: int) -> bool:
        if generation != self.generation:
            return False
        self.generation += 1
        self.is_cut_off = False
        self.abandon()
        return True

    async def cluster_id(self, timeout_s: float) -> str | None:
        if not self.is_up or self.is_cut_off or self._is_closed:
            return None
        self._known_topics = dict(self.topics)
        return self.cluster

    async def close(self, timeout_s: float) -> None:
        self._is_closed = True
        self.abandon()

    def event_ids(self) -> list[str]:
        return [record.event_id for record in self.records]

    def _end(self, future: asyncio.Future[Failure | None], kind: str) -> None:
        if not future.done():
            future.set_result(Failure(kind, "the broker is down", generation=self.generation))


class MemoryFallbackStore:
    """A store in a list. `is_writable` and `is_readable` are its disk's.

    `shelf` may be shared, to stand for one folder.
    """

    def __init__(self, clock: FixedClock, max_bytes: int = 1 << 20, shelf: dict[str, object] | None = None) -> None:
        self.is_writable = True
        self.is_readable = True
        self._clock = clock
        self._max_bytes = max_bytes
        self._shelf = {} if shelf is None else shelf
        self._is_open = False

    def open(self) -> None:
        if self._shelf.get("held"):
            raise StoreInUse(process="another")
        self._shelf["held"] = True
        self.rows: list[Waiting] = self._shelf.setdefault("rows", [])  # type: ignore[assignment]
        self.refused: dict[int, tuple[Waiting, str]] = self._shelf.setdefault("refused", {})  # type: ignore[assignment]
        self._shelf.setdefault("last_id", 0)
        self.lost: list[Loss] = self._shelf.setdefault("lost", [])  # type: ignore[assignment]
        self._loop = asyncio.get_running_loop()
        self._is_open = True

    @property
    def store_id(self) -> str:
        return str(self._shelf.setdefault("store_id", str(uuid.uuid4())))

    def put(self, record: Record, error: str, may_be_in_kafka: bool) -> asyncio.Future[int]:
        future: asyncio.Future[int] = self._loop.create_future()
        if not self._is_open or not self.is_writable:
            future.set_exception(StoreUnavailable(reason="the test says so"))
        elif self._bytes() + _size(record) > self._max_bytes:
            future.set_exception(StoreFull(max_bytes=self._max_bytes))
        else:
            self._shelf["last_id"] += 1  # type: ignore[operator]
            row_id: int = self._shelf["last_id"]  # type: ignore[assignment]
            self.rows.append(Waiting(row_id, record, error, may_be_in_kafka, epoch_ms(self._clock.now())))
            self._loop.call_soon(lambda: None if future.done() else future.set_result(row_id))
        return future

    def is_waiting(self, record: Record) -> bool:
        return any((row.record.topic, row.record.key) == (record.topic, record.key) for row in self.rows)

    async def oldest(self, limit: int, after_id: int = 0, without_topics: Collection[str] = ()) -> list[Waiting]:
        if not self.is_readable:
            raise StoreUnavailable(reason="the test says so")
        found = [row for row in self.rows if row.id > after_id and row.record.topic not in without_topics]
        return found[:limit]

    async def ack(self, sent: Sequence[int], refused: Mapping[int, str]) -> None:
        if not self.is_writable:
            raise StoreUnavailable(reason="the test says so")
        self.refused.update({row.id: (row, refused[row.id]) for row in self.rows if row.id in refused})
        self.rows[:] = [row for row in self.rows if row.id not in refused and row.id not in set(sent)]

    async def set_aside(self, limit: int, after_id: int = 0) -> list[SetAside]:
        found = sorted((row_id, row, why) for row_id, (row, why) in self.refused.items() if row_id > after_id)
        return [SetAside(row_id, row.record, why, row.kept_at_ms) for row_id, row, why in found[:limit]]

    async def retry_refused(self) -> int:
        count = len(self.refused)
        for row, _ in self.refused.values():
            self._shelf["last_id"] += 1  # type: ignore[operator]
            self.rows.append(replace(row, id=self._shelf["last_id"]))  # type: ignore[arg-type]
        self.refused.clear()
        return count

    async def give_up(self, reason: str, ids: Collection[int] | None = None) -> int:
        if not self.is_writable:
            raise StoreUnavailable(reason="the test says so")
        now_ms = epoch_ms(self._clock.now())
        given_up = [row_id for row_id in list(self.refused) if ids is None or row_id in ids]
        known = [] if ids is not None else [one for one in self.lost if one.reason is None]
        for one in known:
            self.lost[self.lost.index(one)] = replace(one, reason=reason, acknowledged_at_ms=now_ms)
        for row_id in given_up:
            row, why = self.refused.pop(row_id)
            what = f"{row.record.topic}, event {row.record.event_id or '-'}: {why}"
            self.lost.append(Loss(now_ms, 1, what, reason, now_ms))
        return len(given_up) + sum(one.records for one in known)

    async def losses(self) -> list[Loss]:
        return list(self.lost)

    async def check(self) -> bool:
        return self.is_writable and self._bytes() < self._max_bytes

    def backlog(self) -> Backlog:
        return Backlog(
            waiting=len(self.rows),
            ambiguous=sum(row.may_be_in_kafka for row in self.rows),
            refused=len(self.refused),
            lost=sum(one.records for one in self.lost if one.reason is None),
            bytes=self._bytes(),
            max_bytes=self._max_bytes,
            oldest_kept_at_ms=self.rows[0].kept_at_ms if self.rows else None,
        )

    async def close(self) -> None:
        self._is_open = False
        self._shelf["held"] = False

    def _bytes(self) -> int:
        return sum(_size(row.record) for row in (*self.rows, *(row for row, _ in self.refused.values())))


class MemorySystemOfRecord:
    """Rows in a dictionary. `is_up` is the database's, `ahead` by how much its clock is ahead of `clock`."""

    def __init__(
        self, clock: FixedClock, key_window_s: float = 86_400.0, gateway_clock: GatewayClock | None = None
    ) -> None:
        self.is_up = True
        self.ahead = dt.timedelta(0)
        self.rows: dict[tuple[str, int], dict[str, object] | None] = {}
        self._keys: dict[tuple[str, str], tuple[bytes, Saved, dt.datetime]] = {}
        self._key_window_s = key_window_s
        self._modified: dict[tuple[str, int], dt.datetime] = {}
        self._clock = clock
        self._gateway_clock = gateway_clock or clock

    async def create(self, topic: Topic, fields: Mapping[str, object], key: ChangeKey | None = None) -> Saved:
        def change() -> Saved:
            row_id = 1 + max((known for name, known in self.rows if name == topic.name), default=0)
            return self._save(topic, row_id, fields, self._clock.now() + self.ahead)

        saved = self._once(key, change)
        assert saved is not None
        return saved

    async def update(
        self, topic: Topic, row_id: int, fields: Mapping[str, object], key: ChangeKey | None = None
    ) -> Saved | None:
        def change() -> Saved | None:
            current = self.rows.get((topic.name, row_id))
            if current is None:
                return None
            created = dt.datetime.fromisoformat(str(current[SITE_PIPELINE.day_field]))
            return self._save(topic, row_id, fields, created)

        return self._once(key, change)

    async def delete(self, topic: Topic, row_id: int, key: ChangeKey | None = None) -> Saved | None:
        def change() -> Saved | None:
            if self.rows.get((topic.name, row_id)) is None:
                return None
            modified = self._next_version(topic, row_id)
            self.rows[topic.name, row_id] = None
            return Saved(row_id, None, modified, None)

        return self._once(key, change)

    def _once(self, key: ChangeKey | None, change: Callable[[], Saved | None]) -> Saved | None:
        self._require_up()
        known = self._keys.get((key.scope, key.key)) if key else None
        if key is not None and known is not None:
            fingerprint, saved, made_at = known
            if made_at > self._clock.now() - dt.timedelta(seconds=self._key_window_s):
                if fingerprint != key.fingerprint:
                    raise KeyReused(table="memory")
                return saved
        made = change()
        if key is not None and made is not None:
            self._keys[key.scope, key.key] = (key.fingerprint, made, self._clock.now())
        return made

    async def close(self) -> None:
        return None

    def _save(self, topic: Topic, row_id: int, fields: Mapping[str, object], created: dt.datetime) -> Saved:
        modified = self._next_version(topic, row_id)
        made = {
            topic.key_field: row_id,
            SITE_PIPELINE.day_field: rfc3339(created),
            topic.version_field: rfc3339(modified),
        }
        value = {field.name: made.get(field.name, fields.get(field.name)) for field in topic.fields}
        self.rows[topic.name, row_id] = value
        return Saved(row_id, created, modified, value)

    def _next_version(self, topic: Topic, row_id: int) -> dt.datetime:
        key = topic.name, row_id
        now, before = self._clock.now() + self.ahead, self._modified.get(key)
        modified = now if before is None or now > before else before + dt.timedelta(milliseconds=1)
        require_not_ahead(topic, modified, self._gateway_clock.latest())
        self._modified[key] = modified
        return modified

    def _require_up(self) -> None:
        if not self.is_up:
            raise DatabaseUnavailable(reason="the test says so")


def _size(record: Record) -> int:
    return ROW_BYTES + len(record.key or b"") + len(record.value or b"")
