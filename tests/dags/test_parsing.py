"""Reading a DAG file must be cheap and without side effects: the DAG processor does it every half minute."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DAGS = ("nightly_rebuild", "rebuild_day", "reprocess_days", "undo_day", "reconcile_sources", "forget_member")

# Airflow itself is imported before the watch begins: what it opens is not ours.
PROBE = """
import json, os, runpy, sys
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG, Asset, CronPartitionTimetable, CronTriggerTimetable, Param, PartitionedAssetTimetable
from airflow.sdk import StartOfDayMapper, task, task_group
from airflow.utils.types import DagRunType
with DAG("warm", schedule=CronPartitionTimetable("0 2 * * *", timezone="Asia/Seoul")):
    task(lambda: None)

before, events = set(sys.modules), []
WATCHED = ("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "sqlite3.", "urllib.", "glob.")
CODE = (".py", ".pyc", ".so")
AIRFLOWS = ("zoneinfo", "cron_descriptor")  # each of its timetables reads its zone, and the words of its description

def watch(event, arguments):
    if event.startswith(WATCHED):
        events.append(event)
    elif event == "open" and not str(arguments[0]).endswith(CODE) and not any(
        part in str(arguments[0]) for part in AIRFLOWS
    ):
        events.append(f"open {arguments[0]}")

for path in sys.argv[1:]:
    child = os.fork()  # each file is read by a process that has imported Airflow alone
    if child == 0:
        sys.addaudithook(watch)
        runpy.run_path(path)
        print(json.dumps({"events": list(events), "modules": sorted(set(sys.modules) - before)}), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, path
"""

PIPELINES = "board_detail,order_detail"
DRIVERS = {"pyspark", "psycopg2", "confluent_kafka", "asyncpg", "httpx", "fastapi", "sqlalchemy", "jinja2"}


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[str]]]:
    """The files and sockets that each DAG file opens, and the modules that it imports."""
    home = tmp_path_factory.mktemp("parsing")
    bad = home / "bad.py"
    bad.write_text("import socket\nsocket.socket()\nopen('/etc/hostname').close()\nimport psycopg2\n")
    paths = [*(ROOT / "dags" / f"{name}.py" for name in DAGS), bad]
    environment = {**os.environ, "AIRFLOW_HOME": str(home), "PYTHONPATH": str(ROOT), "PIPELINES": PIPELINES}
    command = [sys.executable, "-c", PROBE, *map(str, paths)]
    result = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = [line for line in result.stdout.splitlines() if line.startswith('{"events"')]
    return dict(zip([path.stem for path in paths], map(json.loads, found), strict=True))


@pytest.mark.parametrize("name", DAGS)
def test_reading_a_dag_opens_nothing_and_brings_no_driver(name, parsed):
    seen = parsed[name]

    assert seen["events"] == []
    assert DRIVERS.isdisjoint(module.split(".")[0] for module in seen["modules"])
    assert "include.airflow_support.defaults" in seen["modules"]


def test_the_probe_sees_a_dag_that_opens_something(parsed):
    seen = parsed["bad"]

    assert any(event.startswith("socket.") for event in seen["events"])
    assert "open /etc/hostname" in seen["events"]
    assert "psycopg2" in seen["modules"]
