"""The real driver beside a leading one: it checks the lease first, and stands by."""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from include.database.driver_lease import DriverLease
from stack.machine import unused
from tests.servers import wait_until
from tests.support.fenced import refuse_unfenced
from tests.support.pipeline import ROOT, environment, rows, with_topics

LEASE = "SELECT DISTINCT epoch, driver_id FROM stream_driver"
MISCONFIGURED = 78


@pytest.fixture
def settings(kafka, postgres, tmp_path):
    settings = with_topics(kafka, postgres, "takeover", tmp_path)
    refuse_unfenced(settings)
    return settings


@pytest.fixture
def leader(settings):
    """Another driver, which leads."""
    lease = DriverLease(settings.database, "leader")
    lease.take()
    return lease


@pytest.fixture
def variables(kafka, postgres, settings, tmp_path):
    return with_port({**os.environ, **environment(kafka, postgres, "takeover", tmp_path), "PYTHONPATH": str(ROOT)})


def with_port(variables):
    (port,) = unused(1)
    return {**variables, "STREAM_METRICS_PORT": str(port)}


def start(variables, log, *arguments):
    with log.open("ab") as opened:
        return subprocess.Popen(
            [sys.executable, "spark_jobs/stream.py", *arguments], cwd=ROOT, env=variables, stdout=opened, stderr=opened
        )


def health(variables):
    try:
        url = f"http://127.0.0.1:{variables['STREAM_METRICS_PORT']}/healthz"
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)["reason"]
    except urllib.error.HTTPError as exc:
        return json.load(exc)["reason"]
    except OSError:
        return "no answer"


@contextmanager
def wrong(what, variables, settings):
    """The environment of a driver that cannot run."""
    match what:
        case "jars":
            yield {**variables, "SPARK_KAFKA_JARS_DIR": "/nowhere"}
        case "topic":
            rows(settings, "INSERT INTO offset_ledger VALUES ('serve', 'board-detail', 'another id', 0, 7)")
            yield variables
        case "schema":
            rows(settings, "UPDATE alembic_version SET version_num = '0001'")
            yield variables
        case "port":
            with socket.socket() as other:
                other.bind(("127.0.0.1", int(variables["STREAM_METRICS_PORT"])))
                other.listen()
                yield variables
        case "memory":
            yield {**variables, "STREAM_DRIVER_MEMORY": "1m"}


@pytest.mark.parametrize("what", ["jars", "topic", "schema", "port", "memory"])
def test_a_driver_that_cannot_run_takes_the_lease_from_nobody(leader, settings, variables, tmp_path, what):
    log = tmp_path / "stream.log"
    with wrong(what, variables, settings) as broken:
        code = start(broken, log, "--take-over").wait(120)
    assert code == (1 if what == "memory" else MISCONFIGURED), log.read_text()[-2000:]
    assert rows(settings, LEASE) == [(1, "leader")]


@pytest.mark.timeout(120)
def test_a_driver_that_waits_for_a_server_ends_in_order_when_it_is_stopped(variables, tmp_path):
    log = tmp_path / "stream.log"
    driver = start({**variables, "DATABASE_PORT": "1"}, log)
    try:
        wait_until(lambda: "DatabaseUnavailable" in log.read_text(), 60, f"it waits, see {log}")
        driver.terminate()
        assert driver.wait(60) == 0, log
    finally:
        driver.kill()
        driver.wait()


@pytest.mark.timeout(180)
def test_a_driver_stands_by_and_takes_over_from_one_that_lets_go(leader, settings, variables, tmp_path):
    log = tmp_path / "stream.log"
    standby = start(variables, log)
    try:
        wait_until(lambda: health(variables).startswith("starting: standing by: driver leader on "), 60, "it stands by")
        assert rows(settings, LEASE) == [(1, "leader")]
        leader.release()
        wait_until(lambda: health(variables) is None, 120, f"it leads, see {log}")
        assert rows(settings, LEASE)[0][0] == 2
        standby.terminate()
        assert standby.wait(60) == 0
        assert rows(settings, "SELECT DISTINCT ended_at IS NOT NULL FROM stream_driver") == [(True,)]
    finally:
        standby.kill()
        standby.wait()


@pytest.mark.timeout(240)
def test_a_driver_stands_by_beside_one_that_runs_and_leads_when_that_is_killed(settings, variables, tmp_path):
    logs = [tmp_path / f"{number}.log" for number in range(2)]
    beside = with_port(variables)
    running = [start(variables, logs[0])]
    try:
        wait_until(lambda: health(variables) is None, 120, f"it leads, see {logs[0]}")
        ((epoch, driver_id),) = rows(settings, LEASE)
        running.append(start(beside, logs[1]))
        standing_by = f"starting: standing by: driver {driver_id} on "
        wait_until(lambda: str(health(beside)).startswith(standing_by), 60, f"it stands by, see {logs[1]}")
        wait_until(lambda: health(variables) is None, 30, "the leader answers")
        assert rows(settings, LEASE) == [(epoch, driver_id)]
        running[0].kill()
        wait_until(lambda: health(beside) is None, 120, f"the other one leads, see {logs[1]}")
        assert rows(settings, LEASE)[0][0] == epoch + 1
    finally:
        for each in running:
            each.kill()
            each.wait()
