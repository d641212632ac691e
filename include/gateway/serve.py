"""Runs the gateway: binds the port, builds its parts, and ends them in the order that loses no accepted event."""

import asyncio
import gc
import ipaddress
import logging
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress

import uvloop

from include.contracts.clock import SystemClock
from include.contracts.errors import OK, STOPPED, BrokerUnavailable, ConfigurationError, PipelineError, Retryable
from include.contracts.offsets import Partition
from include.contracts.pipelines import RAW_TOPICS
from include.contracts.topics import MAX_MESSAGE_BYTES
from include.gateway.app import Gateway, server_limits
from include.gateway.auth.issuer_keys import HttpIssuer, IssuerKeys
from include.gateway.auth.tokens import AccessTokens, Tokens
from include.gateway.broker_clock import BrokerClock
from include.gateway.fallback.store import SqliteFallbackStore
from include.gateway.home_cluster import ClusterFile
from include.gateway.http.server import Server
from include.gateway.idempotency import SqliteCallJournal
from include.gateway.kafka_producer import KafkaProducer
from include.gateway.services import Services, build_services
from include.gateway.system_of_record import PostgresSystemOfRecord
from include.kafka.admin import topics_below
from include.kafka.offsets import OffsetReader
from include.runtime.command import collect_garbage_rarely
from include.runtime.settings import GatewaySettings, Settings
from include.runtime.tracing import tracer_of

log = logging.getLogger("include.gateway")

_SHUTDOWN_MARGIN_S = 3.0  # for the fsync of records that Kafka did not acknowledge in time
_PROBE_S = 1.0
_TOPICS_S = 60.0
_LOOK_UP_S = 5.0
_GARBAGE_OBJECTS = 200_000  # 64 arrays of 500 events have more in flight than other commands: see docs/adr/0073


def run() -> int:
    """Run until a signal or supervision ends the process; return the exit code."""
    settings = Settings.from_environment()
    check_exposure(settings.gateway)
    listener = _listen(settings.gateway)
    return uvloop.run(serve(settings, listener))


def check_exposure(gateway: GatewaySettings) -> None:
    """Raise ConfigurationError if other machines could reach the gateway without a token."""
    if gateway.tokens_file is not None or gateway.oidc is not None:
        return
    if not _is_loopback(gateway.host):
        raise ConfigurationError(
            f"GATEWAY_HOST={gateway.host} is reachable from elsewhere, but GATEWAY_TOKENS_FILE is not set; set it to a "
            "file made with `pipeline gateway tokens add`, set GATEWAY_OIDC_ISSUER, or listen on "
            "127.0.0.1"
        )
    log.warning("GATEWAY_TOKENS_FILE is not set: every call is open to everybody on this machine")


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
    """Serve until a signal or supervision ends the process; return the exit code.

    The shutdown order loses no accepted event: requests, drain, producer, then the stores.
    """
    gateway, clock = settings.gateway, BrokerClock(SystemClock())
    exit_codes: list[int] = []
    end_requested = asyncio.Event()
    producer = KafkaProducer(settings.kafka.connection, gateway.delivery_timeout_s)
    store = SqliteFallbackStore(gateway.fallback_dir, clock, gateway.fallback_max_bytes)
    system_of_record = PostgresSystemOfRecord(
        settings.database, clock, gateway.delivery_timeout_s, gateway.idempotency_window_s
    )
    keys = None if gateway.oidc is None else IssuerKeys(HttpIssuer(gateway.oidc), gateway.oidc.refresh_s)
    access_tokens = None if gateway.oidc is None or keys is None else AccessTokens(gateway.oidc, keys)
    tokens = Tokens.of(gateway.tokens_file, access_tokens)
    tracer = tracer_of(settings.tracing, "gateway")

    def end(exit_code: int) -> None:
        exit_codes.append(exit_code)
        end_requested.set()

    journal = SqliteCallJournal(gateway.fallback_dir)

    services = build_services(
        producer, store, system_of_record, tokens, clock, gateway, lambda kind: end(STOPPED), journal, tracer
    )
    server = Server(Gateway(services, gateway.logs_access), server_limits(gateway.limits))
    services.metrics.watch(server)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, OK)
    tls = gateway.tls
    context = tls.context() if tls else None

    def reload() -> None:
        tokens.reload()
        if keys is not None:
            keys.refresh()
        if tls and context:
            try:
                tls.load(context)
            except ConfigurationError as exc:
                log.error("the former certificate is kept: %s", exc)

    loop.add_signal_handler(signal.SIGHUP, reload)

    store.open()  # first: only the process that holds the store's lock may decide which cluster its events belong to
    try:
        services.home.remember_in(ClusterFile(gateway.fallback_dir))
        producer.start(services.on_client_failure, services.home.changed, clock.appended)
        if not await services.home.confirm(_PROBE_S):
            services.circuit.open("no broker of the gateway's cluster answered at the start")
        elif faults := await _topic_faults(settings):
            raise ConfigurationError("; ".join(faults))
        else:
            clock.not_before(await _newest_times_ms(settings))
    except PipelineError:
        await producer.close(0)
        await store.close()
        raise
    services.idempotency.open()
    draining = asyncio.create_task(services.drain.run())
    watching = [asyncio.create_task(_watch_topics(settings, services)), asyncio.create_task(services.home.run())]
    if keys is not None:
        watching.append(asyncio.create_task(keys.run()))
    gc.collect()
    gc.freeze()
    collect_garbage_rarely(_GARBAGE_OBJECTS)
    await server.start(listener, context)
    log.info("listening on %s:%d, %d events waiting", gateway.host, gateway.port, store.backlog().waiting)
    try:
        await end_requested.wait()
        services.ending.set()
        if exit_codes == [OK]:  # a balancer stops sending requests meanwhile; a second signal ends the wait
            end_requested.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(end_requested.wait(), gateway.drain_delay_s)
        if not await server.quiesce(gateway.delivery_timeout_s):
            log.warning(
                "requests are still open after %g s; events that Kafka has not acknowledged go to the fallback store",
                gateway.delivery_timeout_s,
            )
    finally:
        # Senders close before the producer. Closing the producer fails the records that are not acknowledged in time,
        # and their requests then write them to the fallback store, so that store closes after it.
        for task in watching:
            task.cancel()
        services.drain.end()
        await asyncio.wait({draining}, timeout=gateway.delivery_timeout_s + _PROBE_S)
        draining.cancel()
        await producer.close(gateway.delivery_timeout_s)
        await server.quiesce(_SHUTDOWN_MARGIN_S)
        await services.idempotency.close(_SHUTDOWN_MARGIN_S)
        server.close()
        await store.close()
        await system_of_record.close()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)
    log.info("ended, %d events waiting", store.backlog().waiting)
    return exit_codes[0]


async def _topic_faults(settings: Settings) -> list[str]:
    """Return one message per raw topic whose settings are wrong; empty while no broker answers."""
    try:
        return await asyncio.to_thread(topics_below, settings.kafka.connection, list(RAW_TOPICS), MAX_MESSAGE_BYTES)
    except BrokerUnavailable as exc:
        log.debug("the topics' settings are not known: %s", exc)
        return []


async def _newest_times_ms(settings: Settings) -> Mapping[Partition, int]:
    """Return the newest record's timestamp of each partition of the raw topics; empty if they are not known."""

    def look_up() -> Mapping[Partition, int]:
        reader = OffsetReader(settings.kafka.connection, _LOOK_UP_S)
        times = {topic: reader.newest_times_ms(topic) for topic in RAW_TOPICS}
        return {(topic, partition): ms for topic, found in times.items() for partition, ms in found.items()}

    try:
        return await asyncio.to_thread(look_up)
    except PipelineError as exc:
        log.debug("the times of the newest records are not known: %s", exc)
        return {}


async def _watch_topics(settings: Settings, services: Services) -> None:
    """Check the topics' size limits every minute until cancelled: they may shrink while the gateway runs."""
    while True:
        await asyncio.sleep(_TOPICS_S)
        if services.circuit.is_open:
            continue
        faults = await _topic_faults(settings)
        for fault in faults:
            if fault not in services.topic_faults:
                log.critical("%s", fault)
        services.topic_faults[:] = faults
