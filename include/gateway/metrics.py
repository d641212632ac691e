"""Counters and gauges of the gateway in Prometheus' format."""

import time
from collections.abc import Callable, Iterator

from prometheus_client import ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

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
from include.runtime.metrics_page import metrics_page

_PAGE_S = 0.1  # a page, which costs as much as ten events, is reused for so long


def age_s(backlog: Backlog, clock: Clock) -> float:
    """Return the seconds since the oldest waiting record was stored; 0 if none waits."""
    if backlog.oldest_kept_at_ms is None:
        return 0.0
    return max(0.0, clock.now().timestamp() - backlog.oldest_kept_at_ms / 1000)


class GatewayMetrics(Collector):
    """Collects the counters and the state of server, store and circuit at each scrape."""

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
        self._counters = counters
        self._backlog = backlog
        self._circuit = circuit
        self._idempotency = idempotency
        self._drain = drain
        self._home = home
        self._quotas = quotas
        self._clock = clock
        self._server: Server | None = None
        self._page = b""
        self._page_ends_at = 0.0

    def watch(self, server: Server) -> None:
        """Include the metrics of this server."""
        self._server = server

    def page(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return metrics_page("gateway", self, ProcessCollector(registry=None))

    def recent_page(self) -> bytes:
        """Return a page that may be 0.1 s old: GET /metrics needs no token, so its cost per second is bounded."""
        now = time.monotonic()
        if now >= self._page_ends_at:
            self._page, self._page_ends_at = self.page(), now + _PAGE_S
        return self._page

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client.registry.Collector."""
        kept = CounterMetricFamily(
            "gateway_events_kept", "Events accepted, by where they are kept.", labels=("topic", "where")
        )
        for (topic, where), count in list(self._counters.kept.items()):
            kept.add_metric((topic, where), count)
        yield kept
        faults = CounterMetricFamily("gateway_faults", "Events and requests not accepted.", labels=("status",))
        for status, count in list(self._counters.answered_with_fault.items()):
            faults.add_metric((str(status),), count)
        yield faults
        yield self._counters.latencies.metric()
        failures = CounterMetricFamily("gateway_failures", "Failures, by kind and action.", labels=("kind", "action"))
        for (kind, action), count in list(self._counters.failures.items()):
            failures.add_metric((kind, action), count)
        yield failures
        yield CounterMetricFamily("gateway_replayed", "Records replayed to Kafka.", value=self._counters.replayed)
        yield CounterMetricFamily("gateway_set_aside", "Records Kafka refused.", value=self._counters.set_aside)
        yield GaugeMetricFamily("gateway_in_flight", "Events not answered yet.", value=self._counters.in_flight)
        circuit = self._circuit
        yield GaugeMetricFamily("gateway_circuit_open", "1 while events bypass Kafka.", value=circuit.is_open)
        yield CounterMetricFamily("gateway_circuit_openings", "How often the circuit opened.", value=circuit.openings)
        out = len(circuit.partitions_out)
        yield GaugeMetricFamily("gateway_partitions_out", "Partitions whose events bypass Kafka.", value=out)
        openings = circuit.partition_openings
        yield CounterMetricFamily(
            "gateway_partition_openings", "Openings of circuits of single partitions.", value=openings
        )
        keys, size = len(self._idempotency), self._idempotency.size_bytes
        yield GaugeMetricFamily("gateway_idempotency_keys", "Idempotency-Keys remembered.", value=keys)
        yield GaugeMetricFamily("gateway_idempotency_bytes", "Bytes of the answers remembered for them.", value=size)
        if self._server is not None:
            yield GaugeMetricFamily("gateway_connections", "Open connections.", value=self._server.open_connections)
            size = self._server.bytes_in_flight
            yield GaugeMetricFamily("gateway_bytes_in_flight", "Bytes of requests not answered yet.", value=size)
            size = self._server.unsent_bytes
            yield GaugeMetricFamily("gateway_unsent_bytes", "Bytes held for clients that do not read.", value=size)
            evicted = self._server.evicted_connections
            yield CounterMetricFamily("gateway_connections_evicted", "Connections closed for new ones.", value=evicted)
            refused = self._server.refused_connections
            yield CounterMetricFamily("gateway_connections_refused", "Connections beyond the cap.", value=refused)
        limit = GaugeMetricFamily("gateway_quota", "A client's quota a second.", labels=("limit",))
        for kind, per_second in self._quotas.limits.items():
            limit.add_metric((kind,), per_second)
        yield limit
        left = GaugeMetricFamily("gateway_quota_left", "Quota that a client has left.", labels=("client", "limit"))
        for client, kind in self._quotas.known:
            left.add_metric((client, kind), self._quotas.left(client, kind))
        yield left
        text = "Requests answered 429."
        over = CounterMetricFamily("gateway_quota_refusals", text, labels=("client", "limit"))
        for (client, kind), count in list(self._quotas.refused.items()):
            over.add_metric((client, kind), count)
        yield over
        own, foreign = self._home.own, self._home.foreign
        labels = ("own", "answering")
        text = "1 while another Kafka cluster answers."
        cluster = GaugeMetricFamily("gateway_foreign_cluster", text, labels=labels)
        cluster.add_metric((own or "", foreign or own or ""), foreign is not None)
        yield cluster
        text = "Seconds by which the machine's clock is ahead of the brokers', at least."
        ahead = GaugeMetricFamily("gateway_clock_ahead_seconds", text)
        if (ahead_s := self._clock.ahead_s) is not None:
            ahead.add_metric((), ahead_s)
        yield ahead
        degraded = self._drain.waits_for_store
        yield GaugeMetricFamily("gateway_fallback_degraded", "1 while the store cannot be read.", value=degraded)
        backlog = self._backlog()
        for name, text, value in (
            ("waiting", "Records waiting in the fallback store.", backlog.waiting),
            ("ambiguous", "Waiting records that may be in Kafka already.", backlog.ambiguous),
            ("refused", "Records set aside because Kafka refuses them.", backlog.refused),
            ("lost", "Records lost to damage of the store, until they are acknowledged.", backlog.lost),
            ("bytes", "Bytes held in the fallback store.", backlog.bytes),
            ("max_bytes", "Limit of the fallback store, in bytes.", backlog.max_bytes),
            ("oldest_age_seconds", "Age of the oldest waiting record.", age_s(backlog, self._clock)),
        ):
            yield GaugeMetricFamily(f"gateway_fallback_{name}", text, value=value)
