"""Drains a fallback store without its gateway, for one that died: `pipeline gateway replay`.

It takes the store's lock, so it fails while a gateway runs on it. It is safe to run again.
"""

import asyncio
import datetime as dt
import itertools
import logging
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from include.contracts.clock import SystemClock, rfc3339
from include.contracts.errors import BrokerUnavailable, ConfigurationError, ForeignCluster
from include.gateway.circuit import Circuit, Supervisor
from include.gateway.counters import Counters
from include.gateway.drain import Drain, DrainReport
from include.gateway.fallback.salvage import Salvage, waiting_of
from include.gateway.fallback.store import SqliteFallbackStore
from include.gateway.home_cluster import ClusterFile, HomeCluster
from include.gateway.kafka_producer import KafkaProducer
from include.gateway.ports import FallbackStore, SetAside, StoreUnavailable
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.tracing import Tracer

log = logging.getLogger("include.gateway.replay")

_DELIVERY_S = 30.0  # longer than the gateway's, since no client waits
_PAGE = 1000


async def drain_store(
    store_dir: Path,
    kafka: KafkaConnection,
    timeout_s: float,
    max_rate: float,
    retry_refused: bool = False,
    damaged: Path | None = None,
    tracer: Tracer | None = None,
) -> DrainReport:
    """Send the waiting records of a store, in order. Returns also when an outage ended it; see `left`.

    `refused` counts all records that the store has set aside.

    Raises BrokerUnavailable, ForeignCluster, StoreInUse, StoreUnavailable, StoreFull.
    """
    counters, circuit = Counters(), Circuit()
    producer = KafkaProducer(kafka, min(_DELIVERY_S, timeout_s))
    supervisor = Supervisor(producer, circuit, counters, stop=lambda kind: None)
    async with _opened(store_dir) as store:
        home = HomeCluster(producer, circuit, supervisor)
        home.remember_in(ClusterFile(store_dir))
        drain = Drain(producer, store, circuit, supervisor, SystemClock(), counters, home, max_rate, tracer=tracer)
        try:
            if retry_refused:
                log.info("%d refused records wait again", await store.retry_refused())
            if damaged is not None:
                await _salvage(damaged, store, store_dir)
            producer.start(lambda failure: None, home.changed)
            if not await home.confirm(timeout_s):
                if home.problem is not None:
                    raise ForeignCluster(home.problem)
                raise BrokerUnavailable(bootstrap_servers=kafka.bootstrap_servers, waiting=store.backlog().waiting)
            log.info("%d records wait in %s", store.backlog().waiting, store_dir)
            report = await drain.once()
            while report.left and not circuit.is_open and (report.sent or report.refused or drain.is_midway):
                report = await drain.once()
            return DrainReport(counters.replayed, store.backlog().refused, report.left)
        finally:
            await producer.close(1.0)


async def move_to_cluster(store_dir: Path, cluster_id: str) -> str | None:
    """Assign the store's events to that cluster. Return the id of the former one, None if there was none.

    Raises StoreInUse, StoreUnavailable.
    """
    async with _opened(store_dir):  # takes the lock: a running gateway would not notice the change
        file = ClusterFile(store_dir)
        try:
            former = file.read()
        except ConfigurationError as exc:
            log.warning("%s", exc)
            former = None
        try:
            file.write(cluster_id)
        except OSError as exc:
            raise StoreUnavailable(path=store_dir, reason=exc.strerror) from exc
        return former


async def give_up(store_dir: Path, reason: str, ids: list[int] | None) -> int:
    """Give up refused records, see FallbackStore.give_up; return their number. Raises StoreInUse, StoreUnavailable."""
    async with _opened(store_dir) as store:
        return await store.give_up(reason, ids)


async def list_refused(store_dir: Path) -> int:
    """Print one line per record set aside and per loss, without payloads. Return the number of records set aside.

    Raises StoreInUse, StoreUnavailable.
    """
    async with _opened(store_dir) as store:
        count = last_id = 0
        while page := await store.set_aside(_PAGE, last_id):
            for one in page:
                print(_line(one))
            last_id, count = page[-1].id, count + len(page)
        for loss in await store.losses():
            known = "not acknowledged" if loss.reason is None else f"given up: {loss.reason}"
            print("\t".join((f"{loss.records} lost", loss.what, _time(loss.at_ms), known)))
        return count


async def _salvage(damaged: Path, store: FallbackStore, store_dir: Path) -> None:
    """Store the readable records of a damaged file under their event ids. Raises ConfigurationError without any."""
    with tempfile.TemporaryDirectory(dir=store_dir) as scratch:
        salvage, saved = Salvage(damaged, Path(scratch) / "pages"), 0
        rows = salvage.iter_in_order()
        while page := list(itertools.islice(rows, _PAGE)):
            records = [waiting_of(row[:11]).record for row in page]
            await asyncio.gather(*[store.put(record, "salvaged", may_be_in_kafka=True) for record in records])
            saved += len(page)
    if saved == 0:
        raise ConfigurationError(f"no record of {damaged} can be read; try sqlite3's .recover")
    log.info("%d records of %s wait again, %d cannot be read", saved, damaged, salvage.unreadable)


@asynccontextmanager
async def _opened(store_dir: Path) -> AsyncIterator[FallbackStore]:
    store = SqliteFallbackStore(store_dir, SystemClock())
    store.open()
    try:
        yield store
    finally:
        await store.close()


def _line(one: SetAside) -> str:
    return "\t".join((str(one.id), one.record.topic, one.record.event_id or "-", _time(one.kept_at_ms), one.reason))


def _time(at_ms: int) -> str:
    return rfc3339(dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC))
