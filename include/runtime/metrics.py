"""Metrics: each is declared once, with how it is read, and a page in Prometheus' text format has all of a service's.

docs/metrics.md is written from the declarations, which are in `include.gateway.metrics`,
`spark_jobs.speed.health.report` and `include.integrity.pages.metrics`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

State = TypeVar("State")


@dataclass(frozen=True)
class Histogram:
    """Counts up to each bound, the last of which is +Inf, and the sum of the values."""

    counts: Sequence[tuple[str, int]]
    total: float


# A value; or values by that of the label, or by those of the labels in a tuple. None is left out: it is not known.
Samples = float | None | Mapping[Any, float | Histogram | None]

_FAMILIES: Mapping[str, Callable[..., Any]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


@dataclass(frozen=True)
class Metric(Generic[State]):
    """A metric: its name, kind, unit and help, how it is read from the service's state, and its labels."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    text: str
    read: Callable[[State], Samples]
    labels: tuple[str, ...] = ()

    @property
    def series(self) -> str:
        """The name in Prometheus: that of a counter ends in `_total`."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    def family(self, state: State) -> Family:
        """Return the metric with its samples in this state."""
        found: Any = _FAMILIES[self.kind](self.name, self.text, labels=self.labels)
        samples = self.read(state)
        for key, value in list((samples if isinstance(samples, Mapping) else {(): samples}).items()):
            labels = key if isinstance(key, tuple) else (key,)
            if isinstance(value, Histogram):
                found.add_metric(labels, value.counts, value.total)
            elif value is not None:
                found.add_metric(labels, float(value))
        return cast(Family, found)


def counter(name: str, unit: str, text: str, read: Callable[[State], Samples], *labels: str) -> Metric[State]:
    """Return a metric that only grows while the process runs. `name` is without `_total`."""
    return Metric(name, "counter", unit, text, read, labels)


def gauge(name: str, unit: str, text: str, read: Callable[[State], Samples], *labels: str) -> Metric[State]:
    """Return a metric of the present state."""
    return Metric(name, "gauge", unit, text, read, labels)


class _Families(Collector):
    def __init__(self, families: Sequence[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Family]:
        """See prometheus_client.registry.Collector."""
        return iter(self._families)


def metrics_page(service: str, metrics: Sequence[Metric[State]], state: State, with_process: bool = False) -> bytes:
    """Return the metrics of a service in this state; `with_process` adds those of the process by the library."""
    registry = CollectorRegistry(target_info={"service": service})
    registry.register(_Families([metric.family(state) for metric in metrics]))
    if with_process:
        registry.register(ProcessCollector(registry=None))
    return generate_latest(registry)
