"""Health checks of services."""

import datetime as dt
import http.client
import json
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from include.contracts.errors import DatabaseUnavailable
from include.database.sessions import SessionLimits, open_session
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.tls import ClientTls
from stack.kafka import cluster_id
from stack.leftovers import find_family
from stack.machine import holder
from stack.services import AirflowHealth, Health, HttpHealth, KafkaHealth, PostgresHealth, Service

TIMEOUT_S = 4.0


def unhealthy_reason(service: Service, pid: int = 0, started_at: float = 0.0) -> str | None:
    """Return why the service is unhealthy; None if it is healthy and its own process listens. Blocks as `probe` does.

    `pid` is the service's process; 0 for an external service, for which the listening process is not checked.
    """
    return probe(service.health, started_at) or (_stranger(service, pid) if pid else None)


def _stranger(service: Service, pid: int) -> str | None:
    for port in service.ports.values():
        found = holder(port)
        # a server of another user may be invisible to us, so no holder found is no error
        if found is not None and found not in find_family(pid):
            return f"pid {found} has its port {port}"
    return None


def probe(health: Health, started_at: float = 0.0) -> str | None:
    """Return the reason in a few words why the check fails; None if it is healthy. Blocks for up to TIMEOUT_S.

    `started_at` is the process's start (Unix time): an older heartbeat is from an earlier process.
    """
    match health:
        case KafkaHealth(kafka, data):
            return _probe_kafka(kafka, data)
        case PostgresHealth(host, port, role, password, libpq):
            return _probe_postgres(host, port, role, password, libpq)
        case HttpHealth(url, tls):
            return _probe_http(url, tls)
        case AirflowHealth(url, component):
            return _probe_airflow(url, component, started_at)


def _probe_kafka(kafka: KafkaConnection, data: Path | None) -> str | None:
    host, _, port = kafka.bootstrap_servers.split(",")[0].rpartition(":")
    try:  # fails faster than librdkafka, which silently retries a refused connection until the timeout
        socket.create_connection((host, int(port)), timeout=TIMEOUT_S).close()
    except OSError as exc:
        return exc.strerror or str(exc)
    client = AdminClient({**kafka.librdkafka(), "log_level": 0, "socket.timeout.ms": 3000})
    try:
        found = client.list_topics(timeout=TIMEOUT_S)
    except KafkaException as exc:
        return str(exc.args[0].str()) if exc.args else "no answer"
    own = cluster_id(data) if data else None
    if own not in (None, found.cluster_id):
        return f"another Kafka cluster answers, {found.cluster_id} in place of {own}"
    return None if found.brokers else "no broker has joined"


def _probe_postgres(host: str, port: int, role: str, password: str, libpq: Mapping[str, str]) -> str | None:
    try:
        if not password:
            socket.create_connection((host.split(",")[0], port), timeout=TIMEOUT_S).close()
            return None
        limits = SessionLimits(connect_s=int(TIMEOUT_S))
        open_session(
            host=host,
            port=port,
            database="postgres",
            user=role,
            password=password,
            application="stack",
            limits=limits,
            libpq=libpq,
        ).close()
    except OSError as exc:
        return str(exc)
    except DatabaseUnavailable as exc:
        return str(exc.where["reason"]).splitlines()[0]
    return None


def _probe_http(url: str, tls: ClientTls) -> str | None:
    answer = _get(url, tls)
    return answer if isinstance(answer, str) else None


def _probe_airflow(url: str, component: str, started_at: float) -> str | None:
    answer = _get(url)
    if isinstance(answer, str):
        return f"API server: {answer}"
    try:
        state = json.loads(answer)[component]
        heartbeat = state[f"latest_{component}_heartbeat"]
        seen_at = dt.datetime.fromisoformat(heartbeat).timestamp() if heartbeat else 0.0
    except (ValueError, KeyError, TypeError):
        return "API server: an answer without its state"
    if state["status"] != "healthy":
        return f"Airflow says {state['status']}"
    return None if seen_at >= started_at else "no heartbeat since it started"


def _get(url: str, tls: ClientTls | None = None) -> bytes | str:
    """Return the body of a response with status 200 (bytes), else the reason of the failure (str)."""
    # without the proxy of the caller's shell, because all addresses are local
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if tls and urllib.parse.urlsplit(url).scheme == "https":
        handlers.append(urllib.request.HTTPSHandler(context=tls.context()))
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=TIMEOUT_S) as response:
            return bytes(response.read()) if response.status == 200 else f"HTTP {response.status}"
    except urllib.error.HTTPError as exc:
        return f"HTTP {exc.code}"
    except urllib.error.URLError as exc:
        return str(getattr(exc.reason, "strerror", None) or exc.reason)
    except (OSError, http.client.HTTPException) as exc:
        return str(exc) or type(exc).__name__
