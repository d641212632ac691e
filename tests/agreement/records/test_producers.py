"""Every producer of the project has the settings of the contract."""

import ast
from pathlib import Path

import pytest

from include.contracts.topics import PYTHON_PRODUCER_SETTINGS
from include.integrity.watch.audit import PRODUCERS
from include.kafka.admin import producer_drifts

ROOT = Path(__file__).resolve().parents[3]
CALLS = [
    (path.relative_to(ROOT), call)
    for folder in ("include", "spark_jobs", "pipeline", "dags", "stack", "demo", "deploy")
    for path in sorted((ROOT / folder).rglob("*.py"))
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(call, ast.Call) and ast.unparse(call.func) in {"Producer", "LibrdkafkaProducer"}
]


@pytest.mark.parametrize("producer", PRODUCERS)
def test_the_pipelines_producers_have_no_drift(producer):
    assert producer_drifts(producer, *PRODUCERS[producer]) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("acks", "1"),
        ("enable.idempotence", False),
        ("compression.type", "none"),
        ("partitioner", "consistent_random"),
        ("partitioner", None),
    ],
)
def test_each_setting_that_differs_is_a_drift_with_its_remedy(name, value):
    contract, settings, place = PRODUCERS["gateway"]
    other = {**settings, name: value} if value is not None else {k: v for k, v in settings.items() if k != name}

    (drift,) = producer_drifts("gateway", contract, other, place)

    assert (drift.kind, drift.subject) == ("producer_drift", f"gateway {name}")
    state = "its default" if value is None else value
    assert drift.state == (
        f"the producer of the gateway has {name}={state}, the contract says {PYTHON_PRODUCER_SETTINGS[name]}"
    )
    assert drift.remedy == "set it in producer_config in include/gateway/kafka_producer.py, then restart the gateway"


def test_a_value_may_be_no_text():
    contract, settings, place = PRODUCERS["gateway"]
    assert producer_drifts("gateway", contract, {**settings, "enable.idempotence": True}, place) == []


def test_there_are_five_places_that_make_one():
    assert {str(path) for path, _ in CALLS} == {
        "include/gateway/kafka_producer.py",
        "demo/load.py",
        "demo/story.py",
        "spark_jobs/speed/delivery.py",
        "spark_jobs/speed/record_sender.py",
    }


@pytest.mark.parametrize("call", [pytest.param(call, id=str(p)) for p, call in CALLS if p.parts[0] == "demo"])
def test_tools_send_as_the_gateway_does(call):
    assert "**PYTHON_PRODUCER_SETTINGS" in ast.unparse(call.args[0])
    own = {key.value for key in call.args[0].keys if key is not None}
    assert not own & PYTHON_PRODUCER_SETTINGS.keys()
