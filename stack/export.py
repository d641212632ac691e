"""Writes the contracts for clients and catalogues, settings and metrics: `python -m stack.export [--check]`.

Contracts are a JSON Schema per topic, an AsyncAPI document and an Open Data Contract per pipeline, and the gateway's
OpenAPI document with the default limits. Settings are written into docker-compose.yaml,
deploy/kubernetes/settings.env and docs/settings.md, and metrics into docs/metrics.md.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from include.contracts.documents import asyncapi, data_contract
from include.runtime.command import as_command
from include.runtime.metrics import Metric
from include.runtime.settings import GatewayLimits
from stack import settings_table
from stack.layout import PROJECT_ROOT

CONTRACTS = Path("docs/contracts")
_METRICS_PAGE = """# Metrics

Written by `python -m stack.export` from the declarations: `METRICS` in `include/gateway/metrics.py`,
`spark_jobs/speed/health/report.py` and `include/integrity/pages/metrics.py`. The addresses are in [Prometheus and
Grafana](operators.md#prometheus-and-grafana), and the rules in the [runbook](runbooks/alerts.md#rules-for-prometheus).

A value that is not known has no sample. Gateway and stream also serve `process_` metrics of Python's client library:
CPU time, memory and open files. Each has `target_info` with its `service`.
"""


def contract_files() -> dict[str, str]:
    """Return file name → content, of the folder CONTRACTS. Raises ContractMismatch for a wrong definition."""
    # these read the definitions
    from include.contracts.pipelines import PIPELINES, TOPICS
    from include.gateway.calls.routes import ROUTES, document

    documents = {f"{topic.name}.schema.json": topic.json_schema() for topic in TOPICS.values()}
    for definition in PIPELINES.values():
        documents[f"{definition.name}.asyncapi.json"] = asyncapi(definition)
        documents[f"{definition.name}.odcs.json"] = data_contract(definition)
    documents["gateway.openapi.json"] = document(ROUTES, GatewayLimits())
    return {name: json.dumps(each, indent=2, ensure_ascii=False) + "\n" for name, each in documents.items()}


def written_files() -> dict[Path, str]:
    """Return path → content of each file that is written, or of which a part is. Raises ContractMismatch."""
    compose, kubernetes, docs = map(Path, ("docker-compose.yaml", "deploy/kubernetes/settings.env", "docs/settings.md"))
    of_compose, of_kubernetes, of_docs = (
        (PROJECT_ROOT / path).read_text(encoding="utf-8") for path in (compose, kubernetes, docs)
    )
    return {
        **{CONTRACTS / name: text for name, text in contract_files().items()},
        compose: settings_table.with_settings(of_compose, settings_table.of_compose),
        kubernetes: settings_table.with_settings(of_kubernetes, settings_table.of_kubernetes),
        docs: settings_table.page(of_docs, of_compose),
        Path("docs/metrics.md"): metrics_page(),
    }


def drifted(root: Path = PROJECT_ROOT) -> list[str]:
    """Return the files that are missing or differ from what would be written."""
    return [
        str(path)
        for path, text in written_files().items()
        if not (root / path).exists() or (root / path).read_text(encoding="utf-8") != text
    ]


def metrics() -> Mapping[str, Sequence[Metric[Any]]]:
    """Return the metrics by the service that serves them."""
    from include.gateway.metrics import METRICS as GATEWAY
    from include.integrity.pages.metrics import METRICS as BATCH
    from spark_jobs.speed.health.report import METRICS as STREAM

    return {"Gateway": GATEWAY, "Stream": STREAM, "Batch layer": BATCH}


def metrics_page() -> str:
    """Return docs/metrics.md, made of the metrics that gateway, stream and batch layer declare."""
    return _METRICS_PAGE + "".join(_metrics_section(title, found) for title, found in metrics().items())


def _metrics_section(title: str, found: Sequence[Metric[Any]]) -> str:
    lines = [f"\n## {title}\n", "| metric | kind | unit | labels | meaning |", "|---|---|---|---|---|"]
    for each in found:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        lines.append(f"| `{each.series}` | {each.kind} | {each.unit} | {labels} | {each.text} |")
    return "\n".join([*lines, ""])


@as_command
def main() -> int:
    """Write the files. With --check, write nothing and return 1 if a file is out of date."""
    parser = argparse.ArgumentParser(description="Write the contracts, and the tables of settings and metrics.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is out of date")
    if parser.parse_args().check:
        stale = drifted()
        if stale:
            print(f"out of date: {', '.join(stale)}; run: python -m stack.export", file=sys.stderr)
        return 1 if stale else 0
    (PROJECT_ROOT / CONTRACTS).mkdir(parents=True, exist_ok=True)
    for path, text in written_files().items():
        (PROJECT_ROOT / path).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
