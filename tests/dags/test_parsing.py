"""Reading a DAG file must be cheap and without side effects: the DAG processor does it every half minute."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Airflow itself is imported before the watch begins: what it opens is not ours.
PROBE = """
import json, runpy, sys
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, CronPartitionTimetable, Param, task, task_group
from airflow.utils.types import DagRunType
with DAG("warm", schedule=CronPartitionTimetable("0 2 * * *", timezone="Asia/Seoul")):
    task(lambda: None)

before, events = set(sys.modules), []
WATCHED = ("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "sqlite3.", "urllib.", "glob.")
CODE = (".py", ".pyc", ".so")

def watch(event, arguments):
    if event.startswith(WATCHED):
        events.append(event)
    elif event == "open" and not str(arguments[0]).endswith(CODE) and "zoneinfo" not in str(arguments[0]):
        events.append(f"open {arguments[0]}")

sys.addaudithook(watch)
runpy.run_path(sys.argv[1])
print(json.dumps({"events": list(events), "modules": sorted(set(sys.modules) - before)}))
"""

PIPELINES = "board_detail,order_detail"
DRIVERS = {"pyspark", "psycopg2", "confluent_kafka", "asyncpg", "httpx", "fastapi", "sqlalchemy", "jinja2"}


def parse(path: Path, home: Path) -> dict[str, list[str]]:
    environment = {**os.environ, "AIRFLOW_HOME": str(home), "PYTHONPATH": str(ROOT), "PIPELINES": PIPELINES}
    result = subprocess.run(
        [sys.executable, "-c", PROBE, str(path)], env=environment, cwd=home, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["nightly_rebuild", "reprocess_days", "undo_day"])
def test_reading_a_dag_opens_nothing_and_brings_no_driver(name, tmp_path):
    seen = parse(ROOT / "dags" / f"{name}.py", tmp_path)

    assert seen["events"] == []
    assert DRIVERS.isdisjoint(module.split(".")[0] for module in seen["modules"])
    assert "include.airflow_support.defaults" in seen["modules"]


def test_the_probe_sees_a_dag_that_opens_something(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("import socket\nsocket.socket()\nopen('/etc/hostname').close()\nimport psycopg2\n")

    seen = parse(bad, tmp_path)

    assert any(event.startswith("socket.") for event in seen["events"])
    assert "open /etc/hostname" in seen["events"]
    assert "psycopg2" in seen["modules"]
