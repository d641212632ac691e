"""Endpoints serve the metrics that are declared, rules and dashboard name these, and each rule has its runbook."""

import asyncio
import dataclasses
import datetime as dt
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from include.database.stream_progress import Pending
from include.gateway.ports import Failure
from include.integrity.days.day_status import DayStatus
from include.integrity.days.due_days import Window
from include.integrity.pages.metrics import BatchMetrics, BatchState, create_metrics_app
from include.runtime.metrics import metrics_page
from include.runtime.settings import AlertSettings
from spark_jobs.speed.health.lag import Lag, SparkBatch
from spark_jobs.speed.health.report import METRICS as STREAM
from spark_jobs.speed.health.report import DriverView, QueryView
from spark_jobs.speed.health.state import Batch, Done, TableSize
from stack.export import metrics
from tests.fakes.events import board
from tests.fakes.harness import SETTINGS, FakeGateway
from tests.support.promql import grouped_by, matchers_in, metrics_in

ROOT = Path(__file__).resolve().parents[3]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = [rule for group in yaml.safe_load((PROMETHEUS / "rules.yaml").read_text())["groups"] for rule in group["rules"]]
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
RUNBOOK = (ROOT / "docs" / "runbooks" / "alerts.md").read_text(encoding="utf-8")
PROMETHEUS_OWN = {"up": [{"job": "gateway"}, {"job": "stream"}, {"job": "batch"}]}
TARGET_LABELS = {"job", "instance"}  # Prometheus adds them to every sample
NOW = dt.datetime(2026, 11, 21, 3, tzinfo=dt.UTC)


def gateway_page() -> str:
    async def scenario() -> str:
        limited = dataclasses.replace(SETTINGS, client_requests_per_s=3)
        gateway = FakeGateway(settings=limited).start()
        gateway.producer.clock = gateway.clock
        gateway.services.metrics.watch(gateway.server)
        async with gateway.client() as client:
            for event in (board(), {"id": "no number"}):
                await client.post("/topics/board/events", json=event)
            gateway.producer.refuses = lambda record: Failure("_TRANSPORT", "no")
            for _ in range(5):
                answer = await client.post("/topics/board/events", json=board())
            assert answer.status_code == 429
            return (await client.get("/metrics")).text

    return asyncio.run(scenario())


def stream_page() -> str:
    spark = SparkBatch(7, 400, 0.25, {"addBatch": 0.2})
    query = QueryView(
        query="join", topic="board", is_active=True, spark_batch=spark, batch=Batch(7, 400, {"send": 0.1}, NOW),
        done=Done(3, 900, NOW), position={0: 5}, input_rate=1.0, processed_rate=1.0, lag=Lag(5, 0.5), ends_seen_at=NOW,
    )  # fmt: skip
    view = DriverView(
        driver_id="d", epoch=4, at=NOW, started_at=NOW, last_loop_at=NOW, starting=None, queries=(query,),
        table_topic="member", table=TableSize(1, 1, 1, 1), table_lag=Lag(2, 1.5), pending=Pending(3, 60.0), counts={},
    )  # fmt: skip
    return metrics_page("stream", STREAM, view, with_process=True).decode()


def batch_page() -> str:
    day = DayStatus(
        dt.date(2026, 11, 20), "certified", 9, 1, 2, 3, 1, 7, NOW, NOW, {"late": 2}, {"late board": 1}, None, None, 4
    )
    window = Window(NOW, "Asia/Seoul", 14)
    state = BatchState(AlertSettings(), window, [day], {"published": 1}, {}, 5, NOW - dt.timedelta(hours=2))
    metrics = BatchMetrics(["board_detail"], lambda _: None, lambda: {"scheduler": NOW}, lambda _: state)
    client = TestClient(create_metrics_app(lambda: "secret", metrics.page))
    return client.get("/metrics", headers={"Authorization": "Bearer secret"}).text


PAGES = {"Gateway": gateway_page, "Stream": stream_page, "Batch layer": batch_page}


@pytest.mark.parametrize("service", PAGES)
def test_an_endpoint_serves_the_metrics_that_are_declared_and_no_others(service):
    found = {family.name: family for family in text_string_to_metric_families(PAGES[service]())}
    declared = {metric.name: metric for metric in metrics()[service]}
    assert len(declared) == len(metrics()[service])
    assert {name for name in found if not name.startswith(("process_", "target"))} == declared.keys()
    for name, metric in declared.items():
        assert (found[name].type, found[name].documentation) == (metric.kind, metric.text)
        assert found[name].samples, f"{name} has no value"
        assert all(set(sample.labels) - {"le"} == set(metric.labels) for sample in found[name].samples), name


def test_each_service_that_declares_metrics_is_looked_at():
    assert PAGES.keys() == metrics().keys()


@pytest.fixture(scope="module")
def exposed() -> Mapping[str, list[dict[str, str]]]:
    """The labels of the samples of each metric, by its name."""
    found: dict[str, list[dict[str, str]]] = {**PROMETHEUS_OWN}
    for page in PAGES.values():
        for family in text_string_to_metric_families(page()):
            # a counter that counted nothing yet has no sample
            found.setdefault(f"{family.name}_total" if family.type == "counter" else family.name, [])
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample.labels)
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Every expression, by where it stands."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text())
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                yield f"{path.name}: {panel['title']}", target["expr"]
        for metric, label in re.findall(r"label_values\((\w+), (\w+)\)", json.dumps(dashboard["templating"])):
            yield f"{path.name}: label {label}", f"count by ({label}) ({metric})"


def test_there_are_rules_and_a_panel_for_each_endpoint():
    named = [metrics_in(expression) for _, expression in expressions()]
    prefixes = {name.split("_")[0] for names in named for name in names}
    assert prefixes == {"gateway", "stream", "batch", "up"}
    assert len(DASHBOARDS) == 1


@pytest.mark.parametrize(("where", "expression"), [*expressions()], ids=[where for where, _ in expressions()])
def test_an_expression_names_metrics_and_labels_that_an_endpoint_gives(exposed, where, expression):
    names = metrics_in(expression)
    assert names
    assert names <= exposed.keys()
    for metric, label, operator, value in matchers_in(expression):
        samples = exposed[metric]
        assert all(label in labels for labels in samples), f"{metric} has no label {label}"
        if not value.startswith("$"):
            wanted = value.split("|") if operator == "=~" else [value]
            assert {*wanted} <= {labels[label] for labels in samples} or not samples, (metric, label)
    for metric in names:
        for labels in exposed[metric]:
            assert grouped_by(expression) <= {*labels, *TARGET_LABELS}, metric


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_summary_names_labels_of_its_metrics(exposed, rule):
    named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    for metric in metrics_in(rule["expr"]):
        for labels in exposed[metric]:
            assert named <= {*labels, *TARGET_LABELS}, metric


def documented() -> dict[str, tuple[str, str]]:
    """Severity and runbook of each rule, as the table says."""
    section = RUNBOOK.partition("## Rules for Prometheus\n")[2].partition("\n## ")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "| `" in line]
    found = {}
    for name, severity, _, action in lines:
        link = re.search(r"\]\(([\w-]+)\.md(?:#[\w-]+)?\)", action)
        found[name.strip("`")] = (severity, link[1] if link else "alerts")
    return found


def test_each_rule_is_in_the_runbook_with_its_severity_and_its_runbook_exists():
    rules = {}
    for rule in RULES:
        path = Path(rule["annotations"]["runbook"])
        assert (ROOT / path).is_file(), rule["alert"]
        assert path.parent == Path("docs/runbooks")
        rules[rule["alert"]] = (rule["labels"]["severity"], path.stem)
    assert list(documented().items()) == list(rules.items())


def test_each_rule_has_a_test_for_promtool():
    text = (PROMETHEUS / "rules_test.yaml").read_text()
    tested = set(re.findall(r'alertname="(\w+)", alertstate="firing"}\'\n', text))
    assert tested == {rule["alert"] for rule in RULES}


def test_the_example_scrapes_the_jobs_that_the_rules_name():
    config = yaml.safe_load((PROMETHEUS / "prometheus.yaml").read_text())
    jobs = {one["job_name"] for one in config["scrape_configs"]}
    named = {value for rule in RULES for _, label, _, value in matchers_in(rule["expr"]) if label == "job"}
    assert jobs == named
    assert config["rule_files"] == ["rules.yaml"]


@pytest.mark.parametrize(
    "arguments", [("check", "rules", "rules.yaml"), ("test", "rules", "rules_test.yaml"),
                  ("check", "config", "--syntax-only", "prometheus.yaml")],
    ids=["rules", "their test", "the example"],
)  # fmt: skip
def test_promtool_accepts(arguments):
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not on PATH")
    done = subprocess.run([promtool, *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class TestPromql:
    """The names that are looked for are found: a reader that finds none would let every rule pass."""

    def test_metrics(self):
        expression = 'sum by (a, b) (rate(x_total{c="d", e=~"f|g"}[5m])) / on (h) y > 0.8 or time() - z{i="j{k}"} > 1e3'
        assert metrics_in(expression) == {"x_total", "y", "z"}
        assert grouped_by(expression) == {"a", "b", "h"}
        assert matchers_in('x{c="d", e=~"f|g,h"} + y{}') == [("x", "c", "=", "d"), ("x", "e", "=~", "f|g,h")]

    @pytest.mark.parametrize("broken", ["sum(x", "x{a=b}", "rate(x[5m)"])
    def test_refuses_what_it_cannot_read(self, broken):
        with pytest.raises(ValueError, match=r"do not match|is no matcher"):
            matchers_in(broken) or metrics_in(broken)
