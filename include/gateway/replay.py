"""Drains a fallback store without its gateway: `python -m include.gateway.replay [--store FOLDER]`.

For the store of a gateway or machine that died. Takes the store's lock, so it fails while a gateway runs on it. Logs
its progress; safe to run again.

--list-refused        list the records that Kafka refused, with reasons, and the records lost to damage; change nothing
--retry-refused       also send the refused records again
--give-up REASON      delete the refused records for good, and acknowledge the lost ones; with --id only these refused
                      records; the reason is stored
--salvage FILE        also send the readable records of a damaged file, which is not changed
--move-to-cluster ID  assign the events to another Kafka cluster; otherwise they are sent to their own cluster only,
                      which is that of the first contact

Exit codes: 0 the store is empty; 3 no records wait any more, but Kafka refused some, see --list-refused; 75 some wait,
or the store or the broker is not available; 78 a setting is wrong, or another cluster answers.
"""

import argparse
import asyncio
import datetime as dt
import itertools
import logging
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from include.contracts.clock import SystemClock, rfc3339
from include.contracts.errors import LOOK, OK, TRY_LATER, BrokerUnavailable, ConfigurationError, ForeignCluster
from include.gateway.circuit import Circuit, Supervisor
from include.gateway.counters import Counters
from include.gateway.drain import Drain, DrainReport
from include.gateway.fallback.cluster_file import ClusterFile
from include.gateway.fallback.salvage import Salvage, waiting_of
from include.gateway.fallback.store import SqliteFallbackStore, require_store
from include.gateway.home_cluster import HomeCluster
from include.gateway.kafka_producer import KafkaProducer
from include.gateway.ports import FallbackStore, SetAside, StoreUnavailable
from include.runtime.command import as_command
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.settings import Settings
from include.runtime.spans import Tracer
from include.runtime.tracing import tracer_of

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


@as_command
def main() -> int:
    """Drain one store, or do what an option says instead, and report the counts."""
    arguments = _arguments()
    settings = Settings.from_environment()
    store_dir = arguments.store or settings.gateway.fallback_dir
    require_store(store_dir)
    if arguments.list_refused:
        log.info("%d records set aside: id, topic, event id, kept at, reason", asyncio.run(list_refused(store_dir)))
        return OK
    if arguments.give_up is not None:
        count = asyncio.run(give_up(store_dir, arguments.give_up, arguments.id))
        log.info("%d records are given up: %s", count, arguments.give_up)
        return OK
    if arguments.move_to_cluster is not None:
        former = asyncio.run(move_to_cluster(store_dir, arguments.move_to_cluster))
        log.info("the events belong to Kafka cluster %s, before to %s", arguments.move_to_cluster, former or "none")
        return OK
    max_rate = arguments.max_rate or settings.gateway.replay_max_rate
    servers = settings.kafka.connection
    wanted = {"retry_refused": arguments.retry_refused, "damaged": arguments.salvage}
    tracer = tracer_of(settings.tracing, "replay")
    try:
        report = asyncio.run(drain_store(store_dir, servers, arguments.timeout_s, max_rate, **wanted, tracer=tracer))
    finally:
        if tracer is not None:
            tracer.close()
    print(f"sent {report.sent}, refused {report.refused}, left {report.left}")
    if report.left:
        return TRY_LATER
    return LOOK if report.refused else OK


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Send the records of a fallback store to Kafka, without its gateway.")
    parser.add_argument("--store", type=Path, help="the store's folder (default: GATEWAY_FALLBACK_DIR)")
    parser.add_argument("--timeout-s", type=float, default=30.0, help="how long to wait for the broker (default 30)")
    parser.add_argument(
        "--max-rate", type=_rate, help="records a second at most (default: GATEWAY_REPLAY_MAX_RATE)", metavar="N"
    )
    more = parser.add_mutually_exclusive_group()
    more.add_argument("--salvage", type=Path, metavar="FILE", help="first store the readable records of a damaged file")
    more.add_argument(
        "--list-refused", action="store_true", help="list the records that Kafka refused, and the reasons; send nothing"
    )
    more.add_argument("--retry-refused", action="store_true", help="also send records that Kafka refused before")
    more.add_argument(
        "--give-up",
        metavar="REASON",
        type=_reason,
        help="give up refused records and acknowledge lost ones; send nothing",
    )
    more.add_argument(
        "--move-to-cluster", metavar="ID", type=_cluster_id,
        help="move the store's events to the Kafka cluster with this id; send nothing",
    )  # fmt: skip
    parser.add_argument("--id", type=int, action="append", metavar="N", help="with --give-up: only this record")
    arguments = parser.parse_args()
    if arguments.id and arguments.give_up is None:
        parser.error("argument --id: only with --give-up")
    return arguments


def _reason(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("empty; say why the records are given up")
    return text


def _rate(text: str) -> int:
    rate = int(text)
    if rate < 1:
        raise argparse.ArgumentTypeError("not at least 1")
    return rate


def _cluster_id(text: str) -> str:
    if not text.isascii() or len(text.split()) != 1 or text != text.strip():
        raise argparse.ArgumentTypeError("not the id of a Kafka cluster; the gateway's log and /readyz show it")
    return text


if __name__ == "__main__":
    sys.exit(main())
