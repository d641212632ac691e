"""docs/metrics.md, written from the metrics that gateway, stream and batch layer declare."""

from collections.abc import Mapping, Sequence
from typing import Any

from include.runtime.metrics import Metric

_PAGE = """# Metrics

Written by `python -m stack.export` from the declarations: `METRICS` in `include/gateway/metrics.py`,
`spark_jobs/speed/health/metrics.py` and `include/integrity/pages/metrics.py`. The addresses are in [Prometheus and
Grafana](operators.md#prometheus-and-grafana), and the rules in the [runbook](runbooks/alerts.md#rules-for-prometheus).

A value that is not known has no sample. Gateway and stream also serve `process_` metrics of Python's client library:
CPU time, memory and open files. Each has `target_info` with its `service`.
"""


def metrics() -> Mapping[str, Sequence[Metric[Any]]]:
    """Return the metrics by the service that serves them."""
    from include.gateway.metrics import METRICS as GATEWAY
    from include.integrity.pages.metrics import METRICS as BATCH
    from spark_jobs.speed.health.metrics import METRICS as STREAM

    return {"Gateway": GATEWAY, "Stream": STREAM, "Batch layer": BATCH}


def page() -> str:
    """Return the page."""
    return _PAGE + "".join(_section(title, found) for title, found in metrics().items())


def _section(title: str, found: Sequence[Metric[Any]]) -> str:
    lines = [f"\n## {title}\n", "| metric | kind | unit | labels | meaning |", "|---|---|---|---|---|"]
    for each in found:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        lines.append(f"| `{each.series}` | {each.kind} | {each.unit} | {labels} | {each.text} |")
    return "\n".join([*lines, ""])
