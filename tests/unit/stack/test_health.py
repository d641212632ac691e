"""The owner of a port, and services whose supervisor is gone: real sockets and processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stack import env_file
from stack.env_file import MARKER
from stack.health import unhealthy_reason
from stack.layout import Layout
from stack.leftovers import SERVICE_MARKER
from stack.machine import LOOPBACK, holder, unused
from stack.services import HttpHealth, Service
from stack.status import collect
from tests.servers import wait_until


@contextmanager
def process(*command: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        command, env={**os.environ, **variables}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as started:  # fmt: skip
        try:
            yield started
        finally:
            os.killpg(started.pid, signal.SIGKILL)


@contextmanager
def web_server(port: int, *before: str) -> Iterator[subprocess.Popen[bytes]]:
    with process(*before, sys.executable, "-m", "http.server", str(port), "--bind", LOOPBACK) as started:
        wait_until(lambda: holder(port) is not None, 20, "the server listens")
        yield started


def service(port: int) -> Service:
    return Service("gateway", HttpHealth(f"http://{LOOPBACK}:{port}/"), address="", ports={"GATEWAY_PORT": port})


@pytest.fixture
def port() -> int:
    (found,) = unused(1)
    return found


def test_service_is_healthy_only_when_its_own_process_answers(port):
    with web_server(port) as server, process("sleep", "60") as other:
        assert unhealthy_reason(service(port), server.pid) is None
        assert unhealthy_reason(service(port), other.pid) == f"pid {server.pid} has its port {port}"


def test_process_below_the_services_own_answers_for_it(port):
    with web_server(port, "/bin/sh", "-c", '"$@"; true', "sh") as shell:
        assert holder(port) != shell.pid
        assert unhealthy_reason(service(port), shell.pid) is None


def test_whoever_answers_will_do_for_a_service_of_yours(port):
    with web_server(port):
        assert unhealthy_reason(service(port)) is None


def test_port_that_nobody_listens_at_has_no_holder(port):
    assert holder(port) is None
    assert unhealthy_reason(service(port), os.getpid()) == "Connection refused"


def test_service_that_outlived_its_supervisor_is_shown_running_and_not_healthy(tmp_path: Path):
    layout = Layout.of(state=tmp_path / "state", env_file=tmp_path / ".env")
    env_file.ensure(layout.env_file)
    marks = {MARKER: str(layout.state), SERVICE_MARKER: "stream"}
    with process("/bin/sh", "-c", "sleep 60; true", **marks) as orphan:
        shown = {each.service.name: each for each in collect(layout)}
    assert (shown["stream"].state, shown["stream"].pid) == ("running", orphan.pid)
    assert shown["stream"].unhealthy_reason == "no supervisor: run `make up`"
    assert (shown["gateway"].state, shown["gateway"].pid) == ("stopped", 0)
