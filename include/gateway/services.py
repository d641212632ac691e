"""Builds the gateway's services once, at startup; every call uses them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from include.gateway.auth.quotas import Quotas
from include.gateway.auth.tokens import Tokens
from include.gateway.broker_clock import BrokerClock
from include.gateway.circuit import Circuit, Supervisor
from include.gateway.counters import Counters
from include.gateway.drain import Drain
from include.gateway.home_cluster import HomeCluster
from include.gateway.http.message import unavailable
from include.gateway.idempotency import Idempotency
from include.gateway.intake import Intake
from include.gateway.metrics import GatewayMetrics
from include.gateway.ports import CallJournal, Failure, FallbackStore, Producer, SystemOfRecord
from include.gateway.supervision import client_rule_for
from include.runtime.settings import GatewayLimits, GatewaySettings
from include.runtime.tracing import Tracer

_READINESS_S = 1.0  # a check of the store, which costs an fsync, is reused for so long: /readyz needs no token
_CHECK_S = 2.0  # timeout of a check: a disk that hangs cannot store events
_TURN_S = 10.0


class StoreCheck:
    """Tells if the fallback store can take an event. Concurrent callers share one check, which may be a second old."""

    def __init__(self, store: FallbackStore) -> None:
        self._store = store
        self._latest: asyncio.Future[bool] | None = None
        self._checked_at = 0.0

    async def is_writable(self) -> bool:
        """True if the store took a row and deleted it, within the timeout."""
        now = asyncio.get_running_loop().time()
        if self._latest is None or (self._latest.done() and now >= self._checked_at + _READINESS_S):
            self._checked_at = now
            self._latest = asyncio.ensure_future(self._store.check())
        try:
            async with asyncio.timeout(_CHECK_S):
                return await asyncio.shield(self._latest)
        except TimeoutError:
            return False


class RowLocks:
    """Serializes the changes of each row, so that its records are sent in the order of its versions."""

    def __init__(self, timeout_s: float = _TURN_S) -> None:
        self._timeout_s = timeout_s
        self._locks: dict[tuple[str, int], tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def of(self, table: str, row_id: int) -> AsyncIterator[None]:
        """Hold the lock of a row. Raises Fault 503 if it is not free within the timeout."""
        key = (table, row_id)
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            await self._take(lock)
            try:
                yield
            finally:
                lock.release()
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)

    async def _take(self, lock: asyncio.Lock) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await lock.acquire()
        except TimeoutError as exc:
            raise unavailable("earlier changes of this row take too long") from exc


@dataclass(frozen=True)
class Services:
    """The services that calls use."""

    intake: Intake
    drain: Drain
    home: HomeCluster
    producer: Producer
    store: FallbackStore
    system_of_record: SystemOfRecord
    idempotency: Idempotency
    circuit: Circuit
    supervisor: Supervisor
    counters: Counters
    metrics: GatewayMetrics
    tokens: Tokens
    allowed_origins: Sequence[str]
    quotas: Quotas
    clock: BrokerClock
    limits: GatewayLimits
    store_check: StoreCheck
    row_locks: RowLocks = field(default_factory=RowLocks)
    tracer: Tracer | None = None
    topic_faults: list[str] = field(default_factory=list)
    ending: asyncio.Event = field(default_factory=asyncio.Event)

    def degraded(self, is_store_writable: bool = True) -> list[str]:
        """Return one message per restriction under which the gateway works; empty if there are none."""
        held = self.store.backlog()
        reasons = {
            "the gateway ends": self.ending.is_set(),
            "Kafka does not acknowledge": self.circuit.is_open,
            "the fallback store cannot be read": self.drain.waits_for_store,
            "the fallback store takes nothing": not is_store_writable,
            f"{held.refused} events are set aside": held.refused > 0,
            f"{held.lost} events were lost to damage of the fallback store": held.lost > 0,
        }
        problems = [each for each in (self.home.problem, self.tokens.problem, self.clock.problem) if each]
        return problems + [reason for reason, holds in reasons.items() if holds] + self.topic_faults

    def on_client_failure(self, failure: Failure) -> None:
        """Handle a failure of the producer that belongs to no record."""
        rule = client_rule_for(failure)
        if rule is not None:
            self.supervisor.act(failure, rule)


def build_services(
    producer: Producer,
    store: FallbackStore,
    system_of_record: SystemOfRecord,
    tokens: Tokens,
    clock: BrokerClock,
    settings: GatewaySettings,
    stop: Callable[[str], None],
    journal: CallJournal | None = None,
    tracer: Tracer | None = None,
) -> Services:
    """Build the gateway on its ports. `stop` is called if supervision decides that the gateway must stop.

    Without a tracer, tracing is off.
    """
    counters, circuit = Counters(), Circuit(settings.circuit_failures)
    supervisor = Supervisor(producer, circuit, counters, stop)
    idempotency = Idempotency(clock, settings.idempotency_window_s, settings.idempotency_max_keys, journal)
    home = HomeCluster(producer, circuit, supervisor)
    quotas = Quotas(settings.client_requests_per_s, settings.client_bytes_per_s, time.monotonic)
    drain = Drain(producer, store, circuit, supervisor, clock, counters, home, settings.replay_max_rate, tracer=tracer)
    return Services(
        intake=Intake(producer, store, circuit, supervisor, clock, counters, home),
        drain=drain,
        home=home,
        producer=producer,
        store=store,
        system_of_record=system_of_record,
        idempotency=idempotency,
        circuit=circuit,
        supervisor=supervisor,
        counters=counters,
        metrics=GatewayMetrics(counters, store.backlog, circuit, idempotency, drain, home, quotas, clock),
        tokens=tokens,
        allowed_origins=settings.allowed_origins,
        quotas=quotas,
        clock=clock,
        limits=settings.limits,
        store_check=StoreCheck(store),
        tracer=tracer,
    )
