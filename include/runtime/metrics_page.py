"""Metrics as a page in Prometheus' text format."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector


def metrics_page(service: str, *collectors: Collector) -> bytes:
    """Return the metrics of a service, collected now."""
    registry = CollectorRegistry(target_info={"service": service})
    for each in collectors:
        registry.register(each)
    return generate_latest(registry)
