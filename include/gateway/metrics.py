"""Counters and gauges of the gateway in Prometheus' format."""

import time
from collections.abc import Callable, Sequence

from include.contracts.clock import Clock
from include.gateway.auth.quotas import Quotas
from include.gateway.broker_clock import BrokerClock
from include.gateway.circuit import Circuit
from include.gateway.counters import Counters
from include.gateway.drain import Drain
from include.gateway.home_cluster import HomeCluster
from include.gateway.http.server import Server
from include.gateway.idempotency import Idempotency
from include.gateway.ports import Backlog
from include.runtime.metrics import Metric, Samples, counter, gauge, metrics_page

_PAGE_S = 0.1  # a page, which costs as much as ten events, is reused for so long


def age_s(backlog: Backlog, clock: Clock) -> float:
    """Return the seconds since the oldest waiting record was stored; 0 if none waits."""
    if backlog.oldest_kept_at_ms is None:
        return 0.0
    return max(0.0, clock.now().timestamp() - backlog.oldest_kept_at_ms / 1000)


class GatewayMetrics:
    """The counters and the state of server, store and circuit, of which a page of metrics is made."""

    def __init__(
        self,
        counters: Counters,
        backlog: Callable[[], Backlog],
        circuit: Circuit,
        idempotency: Idempotency,
        drain: Drain,
        home: HomeCluster,
        quotas: Quotas,
        clock: BrokerClock,
    ) -> None:
        self.counters = counters
        self.backlog = backlog
        self.circuit = circuit
        self.idempotency = idempotency
        self.drain = drain
        self.home = home
        self.quotas = quotas
        self.clock = clock
        self.server: Server | None = None
        self._page = b""
        self._page_ends_at = 0.0

    def watch(self, server: Server) -> None:
        """Include the metrics of this server."""
        self.server = server

    def page(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return metrics_page("gateway", METRICS, self, with_process=True)

    def recent_page(self) -> bytes:
        """Return a page that may be 0.1 s old: GET /metrics needs no token, so its cost per second is bounded."""
        now = time.monotonic()
        if now >= self._page_ends_at:
            self._page, self._page_ends_at = self.page(), now + _PAGE_S
        return self._page


def _of_server(value: Callable[[Server], float]) -> Callable[[GatewayMetrics], Samples]:
    return lambda of: None if of.server is None else value(of.server)


def _of_backlog(value: Callable[[Backlog], float]) -> Callable[[GatewayMetrics], Samples]:
    return lambda of: value(of.backlog())


def _cluster(of: GatewayMetrics) -> Samples:
    own, foreign = of.home.own, of.home.foreign
    return {(own or "", foreign or own or ""): foreign is not None}


METRICS: Sequence[Metric[GatewayMetrics]] = (
    counter("gateway_events_kept", "events", "Events accepted, by where they are kept.",
            lambda of: of.counters.kept, "topic", "where"),
    counter("gateway_faults", "events or requests", "Events and requests not accepted.",
            lambda of: {str(status): count for status, count in of.counters.answered_with_fault.items()}, "status"),
    Metric("gateway_request_duration_seconds", "histogram", "seconds",
           "Time from the first byte of a request to its answer, by call and client.",
           lambda of: of.counters.latencies.histograms(), ("call", "client")),
    counter("gateway_failures", "failures", "Failures, by kind and action.",
            lambda of: of.counters.failures, "kind", "action"),
    counter("gateway_replayed", "records", "Records replayed to Kafka.", lambda of: of.counters.replayed),
    counter("gateway_set_aside", "records", "Records Kafka refused.", lambda of: of.counters.set_aside),
    gauge("gateway_in_flight", "events", "Events not answered yet.", lambda of: of.counters.in_flight),
    gauge("gateway_circuit_open", "0 or 1", "1 while events bypass Kafka.", lambda of: of.circuit.is_open),
    counter("gateway_circuit_openings", "times", "How often the circuit opened.", lambda of: of.circuit.openings),
    gauge("gateway_partitions_out", "partitions", "Partitions whose events bypass Kafka.",
          lambda of: len(of.circuit.partitions_out)),
    counter("gateway_partition_openings", "times", "Openings of circuits of single partitions.",
            lambda of: of.circuit.partition_openings),
    gauge("gateway_idempotency_keys", "keys", "Idempotency-Keys remembered.", lambda of: len(of.idempotency)),
    gauge("gateway_idempotency_bytes", "bytes", "Bytes of the answers remembered for them.",
          lambda of: of.idempotency.size_bytes),
    gauge("gateway_connections", "connections", "Open connections.",
          _of_server(lambda server: server.open_connections)),
    gauge("gateway_bytes_in_flight", "bytes", "Bytes of requests not answered yet.",
          _of_server(lambda server: server.bytes_in_flight)),
    gauge("gateway_unsent_bytes", "bytes", "Bytes held for clients that do not read.",
          _of_server(lambda server: server.unsent_bytes)),
    counter("gateway_connections_evicted", "connections", "Connections closed for new ones.",
            _of_server(lambda server: server.evicted_connections)),
    counter("gateway_connections_refused", "connections", "Connections beyond the cap.",
            _of_server(lambda server: server.refused_connections)),
    gauge("gateway_quota", "requests or bytes per second", "A client's quota a second.",
          lambda of: of.quotas.limits, "limit"),
    gauge("gateway_quota_left", "requests or bytes", "Quota that a client has left.",
          lambda of: {(client, kind): of.quotas.left(client, kind) for client, kind in of.quotas.known},
          "client", "limit"),
    counter("gateway_quota_refusals", "requests", "Requests answered 429.",
            lambda of: of.quotas.refused, "client", "limit"),
    gauge("gateway_foreign_cluster", "0 or 1", "1 while another Kafka cluster answers.", _cluster, "own", "answering"),
    gauge("gateway_clock_ahead_seconds", "seconds",
          "Seconds by which the machine's clock is ahead of the brokers', at least.", lambda of: of.clock.ahead_s),
    gauge("gateway_fallback_degraded", "0 or 1", "1 while the store cannot be read.",
          lambda of: of.drain.waits_for_store),
    gauge("gateway_fallback_waiting", "records", "Records waiting in the fallback store.",
          _of_backlog(lambda backlog: backlog.waiting)),
    gauge("gateway_fallback_ambiguous", "records", "Waiting records that may be in Kafka already.",
          _of_backlog(lambda backlog: backlog.ambiguous)),
    gauge("gateway_fallback_refused", "records", "Records set aside because Kafka refuses them.",
          _of_backlog(lambda backlog: backlog.refused)),
    gauge("gateway_fallback_lost", "records", "Records lost to damage of the store, until they are acknowledged.",
          _of_backlog(lambda backlog: backlog.lost)),
    gauge("gateway_fallback_bytes", "bytes", "Bytes held in the fallback store.",
          _of_backlog(lambda backlog: backlog.bytes)),
    gauge("gateway_fallback_max_bytes", "bytes", "Limit of the fallback store, in bytes.",
          _of_backlog(lambda backlog: backlog.max_bytes)),
    gauge("gateway_fallback_oldest_age_seconds", "seconds", "Age of the oldest waiting record.",
          lambda of: age_s(of.backlog(), of.clock)),
)  # fmt: skip
