"""The gateway: `python -m include.gateway`. Settings from the environment, parts, uvicorn, exit code.

Exit codes: 0 ended as asked (SIGTERM, SIGINT); 70 stopped by supervision, see the log; 75 try again later (the store is
held by another process or cannot be written, the port is busy); 78 a setting is missing or wrong.
"""

import asyncio
import contextlib
import gc
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn
import uvloop

from include.adapters.fallback_store import SqliteFallbackStore
from include.adapters.kafka_producer import KafkaProducer
from include.adapters.system_of_record import PostgresSystemOfRecord
from include.clock import SystemClock
from include.errors import ConfigurationError, Retryable
from include.gateway.app import Gateway
from include.gateway.asgi import Tokens
from include.gateway.services import Services, join
from include.settings import GatewaySettings, Settings

log = logging.getLogger("include.gateway")

OK, STOPPED, TRY_LATER, MISCONFIGURED = 0, 70, 75, 78

_SHUTDOWN_MARGIN_S = 3.0  # beyond the deadline of a request: for the fsync of what Kafka did not take in time
_PROBE_S = 1.0


class _Server(uvicorn.Server):
    """Leaves the signals to us: uvicorn raises them again at its end, and the exit code would be the signal's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def main() -> int:
    """Run until told to end."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = Settings.from_environment()
        check_exposure(settings.gateway)
        listener = _listen(settings.gateway)
        return uvloop.run(serve(settings, listener))
    except ConfigurationError as exc:
        log.error("%s", exc)
        return MISCONFIGURED
    except Retryable as exc:
        log.error("%s", exc)
        return TRY_LATER


def check_exposure(gateway: GatewaySettings) -> None:
    """Raises ConfigurationError if others than this machine could reach the gateway without a token."""
    missing = [
        n for n, token in (("GATEWAY_TOKEN", gateway.token), ("GATEWAY_ADMIN_TOKEN", gateway.admin_token)) if not token
    ]
    if missing and not _is_loopback(gateway.host):
        raise ConfigurationError(
            f"GATEWAY_HOST={gateway.host} is reachable from elsewhere, but {' and '.join(missing)} is not set; "
            "set it, or listen on 127.0.0.1"
        )
    if gateway.token and gateway.token == gateway.admin_token:
        raise ConfigurationError("GATEWAY_TOKEN and GATEWAY_ADMIN_TOKEN are the same; give the admin calls their own")
    for name in missing:
        log.warning("%s is not set: its calls are open to everybody on this machine", name)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(gateway: GatewaySettings) -> socket.socket:
    try:
        listener = socket.create_server((gateway.host, gateway.port), backlog=2048, family=_family(gateway.host))
    except OSError as exc:
        where = f"{gateway.host}:{gateway.port}"
        raise Retryable(f"cannot listen on {where}: {exc.strerror}; free the port or change GATEWAY_PORT") from exc
    listener.setblocking(False)
    return listener


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


async def serve(settings: Settings, listener: socket.socket) -> int:
    """Open the parts, answer until told to end, close them in the order that loses nothing."""
    gateway, clock = settings.gateway, SystemClock()
    exit_codes: list[int] = []
    producer = KafkaProducer(settings.kafka.bootstrap_servers, gateway.deadline_s)
    store = SqliteFallbackStore(gateway.fallback_dir, clock)
    system_of_record = PostgresSystemOfRecord(settings.database, gateway.deadline_s)

    def end(exit_code: int) -> None:
        exit_codes.append(exit_code)
        server.should_exit = True

    tokens = Tokens(gateway.token, gateway.admin_token)
    services = join(producer, store, system_of_record, tokens, clock, stop=lambda kind: end(STOPPED))
    server = _Server(_uvicorn_config(services, gateway.deadline_s + _SHUTDOWN_MARGIN_S))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end, OK)

    store.open()
    producer.start(services.on_client_failure)
    if not await producer.is_reachable(_PROBE_S):
        services.circuit.open("no broker at the start")
    draining = asyncio.create_task(services.drain.run())
    gc.freeze()
    log.info("listening on %s:%d, %d events waiting", gateway.host, gateway.port, store.backlog().waiting)
    try:
        await server.serve(sockets=[listener])
    finally:
        # requests have ended or been cancelled; then who sends, then who is sent to, then where the rest is kept
        services.drain.end()
        await asyncio.wait({draining}, timeout=gateway.deadline_s + _PROBE_S)
        draining.cancel()
        await producer.close(gateway.deadline_s)
        await store.close()
        await system_of_record.close()
    log.info("ended, %d events waiting", store.backlog().waiting)
    return exit_codes[0] if exit_codes else STOPPED


def _uvicorn_config(services: Services, shutdown_s: float) -> uvicorn.Config:
    return uvicorn.Config(
        Gateway(services),
        loop="none",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=int(shutdown_s),
    )


if __name__ == "__main__":
    sys.exit(main())
