"""Drains a fallback store without its gateway: `python -m include.gateway.replay [--store FOLDER]`.

For a machine or a gateway that died. Takes the store's lock, so it refuses while a gateway runs on it. Running it again
is safe. Exit codes: 0 nothing waits any more; 75 something does, or the store or the broker is not available; 78 a
setting is wrong.
"""

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from include.adapters.fallback_store import SqliteFallbackStore
from include.adapters.kafka_producer import KafkaProducer
from include.clock import SystemClock
from include.errors import BrokerUnavailable, ConfigurationError, Retryable
from include.gateway.circuit import Circuit, Supervisor
from include.gateway.drain import Drain, DrainReport
from include.gateway.metrics import Counters
from include.settings import Settings

log = logging.getLogger("include.gateway.replay")

_DELIVERY_S = 30.0  # nobody waits for an answer here


async def drain_store(store_dir: Path, bootstrap_servers: str, timeout_s: float, retry_refused: bool) -> DrainReport:
    """Send what waits in a store, in order. Raises BrokerUnavailable, StoreInUse, StoreUnavailable."""
    clock, counters, circuit = SystemClock(), Counters(), Circuit()
    store = SqliteFallbackStore(store_dir, clock)
    producer = KafkaProducer(bootstrap_servers, min(_DELIVERY_S, timeout_s))
    supervisor = Supervisor(producer, circuit, counters, stop=lambda kind: None)
    drain = Drain(producer, store, circuit, supervisor, clock, counters)
    store.open()
    try:
        if retry_refused:
            log.info("%d refused records wait again", await store.retry_refused())
        producer.start(lambda failure: None)
        if not await producer.is_reachable(timeout_s):
            raise BrokerUnavailable(bootstrap_servers=bootstrap_servers, waiting=store.backlog().waiting)
        return await drain.once()
    finally:
        await producer.close(1.0)
        await store.close()


def main() -> int:
    """Drain one store, and say what was done."""
    parser = argparse.ArgumentParser(description="Send what a fallback store holds to Kafka, without its gateway.")
    parser.add_argument("--store", type=Path, help="the store's folder (default: GATEWAY_FALLBACK_DIR)")
    parser.add_argument("--timeout-s", type=float, default=30.0, help="how long to wait for the broker (default 30)")
    parser.add_argument("--retry-refused", action="store_true", help="also send again what Kafka refused before")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        settings = Settings.from_environment()
        store_dir = arguments.store or settings.gateway.fallback_dir
        if not store_dir.is_dir():
            raise ConfigurationError(f"no fallback store in {store_dir}; name its folder with --store")
        servers = settings.kafka.bootstrap_servers
        report = asyncio.run(drain_store(store_dir, servers, arguments.timeout_s, arguments.retry_refused))
    except ConfigurationError as exc:
        log.error("%s", exc)
        return 78
    except Retryable as exc:
        log.error("%s", exc)
        return 75
    print(f"sent {report.sent}, refused {report.refused}, left {report.left}")
    return 0 if report.left == 0 else 75


if __name__ == "__main__":
    sys.exit(main())
