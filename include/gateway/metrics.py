"""Counters and gauges of the gateway, and their Prometheus exposition.

Counters are plain integers, so the hot path takes no lock.
"""

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from include.clock import Clock
from include.gateway.ports import Backlog


class Counters:
    """Counts since the start of the process."""

    def __init__(self) -> None:
        self.kept: Tally[tuple[str, str]] = Tally()  # topic, where
        self.answered_with_fault: Tally[int] = Tally()  # by status; one per event of an array, else one per request
        self.failures: Tally[tuple[str, str]] = Tally()  # kind, action
        self.in_flight = 0
        self.replayed = 0
        self.set_aside = 0

    def count_failure(self, kind: str, action: str) -> None:
        """Count one failure and the action that supervision decided on."""
        self.failures[kind, str(action)] += 1


def age_s(backlog: Backlog, clock: Clock) -> float:
    """Return the seconds since the oldest waiting record was stored; 0 if none waits."""
    if backlog.oldest_kept_at_ms is None:
        return 0.0
    return max(0.0, clock.now().timestamp() - backlog.oldest_kept_at_ms / 1000)


class CircuitState(Protocol):
    """The state of the circuit that metrics show."""

    is_open: bool

    @property
    def openings(self) -> int:
        """Number of times it opened."""
        ...

    @property
    def partition_openings(self) -> int:
        """Number of times the breaker of a partition or topic opened."""
        ...

    @property
    def partitions_out(self) -> Sequence[object]:
        """Partitions whose own breaker is not closed."""
        ...


class Remembered(Protocol):
    """The state of the idempotency window that metrics show."""

    @property
    def size_bytes(self) -> int:
        """Size of the stored answers."""
        ...

    def __len__(self) -> int:
        """Number of stored keys."""
        ...


class Load(Protocol):
    """The state of the HTTP server that metrics show."""

    bytes_in_flight: int
    refused_connections: int
    evicted_connections: int

    @property
    def open_connections(self) -> int:
        """Number of open connections."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """Bytes buffered for clients that do not read their answers."""
        ...


class GatewayMetrics(Collector):
    """Collects the counters and the state of server, store and circuit at each scrape."""

    def __init__(
        self,
        counters: Counters,
        backlog: Callable[[], Backlog],
        circuit: CircuitState,
        idempotency: Remembered,
        clock: Clock,
    ) -> None:
        self._counters = counters
        self._backlog = backlog
        self._circuit = circuit
        self._idempotency = idempotency
        self._clock = clock
        self._registry = CollectorRegistry()
        self._load: Load | None = None
        self._is_degraded: Callable[[], bool] = lambda: False
        self._clusters: Callable[[], tuple[str | None, str | None]] = lambda: (None, None)

    def watch(self, load: Load) -> None:
        """Include the metrics of this server."""
        self._load = load

    def watch_store(self, is_degraded: Callable[[], bool]) -> None:
        """Include whether the fallback store is degraded."""
        self._is_degraded = is_degraded

    def watch_cluster(self, clusters: Callable[[], tuple[str | None, str | None]]) -> None:
        """Include the ids of the own cluster and of a foreign one that answers instead."""
        self._clusters = clusters

    def page(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        if not self._registry.get_target_info():
            self._registry.set_target_info({"service": "gateway"})
            self._registry.register(self)
            ProcessCollector(registry=self._registry)
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client.registry.Collector."""
        kept = CounterMetricFamily(
            "gateway_events_kept", "Events accepted, by where they are kept.", labels=("topic", "where")
        )
        for (topic, where), count in list(self._counters.kept.items()):
            kept.add_metric((topic, where), count)
        yield kept
        faults = CounterMetricFamily("gateway_faults", "Events and requests answered otherwise.", labels=("status",))
        for status, count in list(self._counters.answered_with_fault.items()):
            faults.add_metric((str(status),), count)
        yield faults
        failures = CounterMetricFamily("gateway_failures", "Failures and what was decided.", labels=("kind", "action"))
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
        yield CounterMetricFamily("gateway_partition_openings", "How often one partition's opened.", value=openings)
        keys, size = len(self._idempotency), self._idempotency.size_bytes
        yield GaugeMetricFamily("gateway_idempotency_keys", "Idempotency-Keys remembered.", value=keys)
        yield GaugeMetricFamily("gateway_idempotency_bytes", "Bytes of the answers remembered for them.", value=size)
        if self._load is not None:
            yield GaugeMetricFamily("gateway_connections", "Open connections.", value=self._load.open_connections)
            size = self._load.bytes_in_flight
            yield GaugeMetricFamily("gateway_bytes_in_flight", "Bytes of requests not answered yet.", value=size)
            size = self._load.unsent_bytes
            yield GaugeMetricFamily("gateway_unsent_bytes", "Bytes held for clients that do not read.", value=size)
            evicted = self._load.evicted_connections
            yield CounterMetricFamily("gateway_connections_evicted", "Connections closed for others.", value=evicted)
            refused = self._load.refused_connections
            yield CounterMetricFamily("gateway_connections_refused", "Connections beyond the cap.", value=refused)
        own, foreign = self._clusters()
        labels = ("own", "answering")
        text = "1 while another Kafka cluster answers."
        cluster = GaugeMetricFamily("gateway_foreign_cluster", text, labels=labels)
        cluster.add_metric((own or "", foreign or own or ""), foreign is not None)
        yield cluster
        degraded = self._is_degraded()
        yield GaugeMetricFamily("gateway_fallback_degraded", "1 while the store cannot be read.", value=degraded)
        backlog = self._backlog()
        for name, text, value in (
            ("waiting", "Records waiting in the fallback store.", backlog.waiting),
            ("ambiguous", "Waiting records that may be in Kafka already.", backlog.ambiguous),
            ("refused", "Records set aside because Kafka refuses them.", backlog.refused),
            ("lost", "Records that damage took, until they are acknowledged.", backlog.lost),
            ("bytes", "Bytes held in the fallback store.", backlog.bytes),
            ("max_bytes", "Ceiling of the fallback store.", backlog.max_bytes),
            ("oldest_age_seconds", "Age of the oldest waiting record.", age_s(backlog, self._clock)),
        ):
            yield GaugeMetricFamily(f"gateway_fallback_{name}", text, value=value)
