"""The supervisor on a scratch stack: Kafka and PostgreSQL up, watched, killed, down, with nothing left."""

import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from stack import control, env_file, leftovers
from stack.control import up
from stack.down import clean, down
from stack.env_file import MARKER
from stack.layout import Layout, StackError
from stack.status import collect
from stack.supervisor import Supervisor
from tests.servers import wait_until

SERVICES = ("kafka", "postgres")


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layout]:
    # A folder closed to others, as /root is: PostgreSQL's user must get through all the same.
    folder = tmp_path_factory.mktemp("stack folder é 한 100%")
    folder.chmod(0o700)
    scratch = Layout.of(state=folder / "state", env_file=folder / ".env")
    yield scratch
    down(scratch)


@pytest.fixture
def running(layout: Layout) -> Layout:
    up(layout, only=SERVICES)
    return layout


def pid_of(name: str, layout: Layout) -> int:
    return Supervisor(layout).state(name).pid


def pids(layout: Layout) -> dict[str, int]:
    return {name: pid_of(name, layout) for name in SERVICES}


def wait_for_health(layout: Layout, services: Collection[str] = SERVICES) -> None:
    """Wait until these services are healthy and no others: a probe of a busy machine may end without an answer."""

    def healthy() -> set[str]:
        return {each.service.name for each in collect(layout) if each.unhealthy_reason is None}

    wait_until(lambda: healthy() == {*services}, 30, f"{', '.join(services)} are healthy")


def test_up_twice_leaves_what_runs_as_it_is(running: Layout) -> None:
    before = pids(running)
    up(running, only=SERVICES)
    assert pids(running) == before
    wait_for_health(running)


def test_up_after_a_change_starts_all_again_before_anything_else(
    running: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    before = pids(running)
    with running.env_file.open("a") as file:
        file.write("MINE=1\n")
    capsys.readouterr()
    up(running, only=("postgres",))
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "code or settings have changed since the start of kafka, postgres: all start again"
    assert said[1] == "down; no process is left"
    wait_for_health(running)
    assert not {*before.values()} & {*pids(running).values()}


def test_services_write_for_nobody_else(running: Layout) -> None:
    written = [path for folder in (running.kafka, running.logs, running.run) for path in folder.rglob("*")]
    assert running.log_file("kafka") in written
    open_to_others = [path for path in written if not path.is_symlink() and path.stat().st_mode & 0o077]
    assert open_to_others == []


def test_stopped_service_stays_stopped_until_started(running: Layout) -> None:
    control.stop_service("kafka", running)
    assert pid_of("kafka", running) == 0
    wait_for_health(running, ["postgres"])
    control.start_service("kafka", running)
    wait_for_health(running)


def test_service_that_is_slow_is_waited_for_and_left_to_start(
    running: Layout, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stack.control._SAY_AGAIN_S", 0.3)
    real = control._own_service
    monkeypatch.setattr(control, "_own_service", lambda name, layout: replace(real(name, layout), deadline_s=2.0))
    control.stop_service("kafka", running)
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(control.start_service, "kafka", running)
        wait_until(lambda: pid_of("kafka", running) != 0, 10, "kafka is started")
        pid = pid_of("kafka", running)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(StackError, match=r"kafka not healthy after 2 s .* goes on starting"):
                started.result(30)
        finally:
            os.kill(pid, signal.SIGCONT)
    assert "  waiting for kafka: " in capsys.readouterr().out
    monkeypatch.undo()
    control.start_service("kafka", running)
    assert pid_of("kafka", running) == pid
    wait_for_health(running)


def test_killed_service_comes_back(running: Layout) -> None:
    killed = control.kill_service("postgres", running)
    wait_until(lambda: pid_of("postgres", running) not in (0, killed), 30, "postgres started again")
    control.wait_until_healthy("postgres", running)


def test_airflows_command_line_has_the_stacks_database(running: Layout) -> None:
    command = [sys.executable, "-m", "stack", "--state", running.state, "--env-file", running.env_file, "airflow",
               "config", "get-value", "database", "sql_alchemy_conn"]  # fmt: skip
    said = subprocess.run(command, env={"PATH": os.defpath}, capture_output=True, text=True, check=True).stdout
    port = env_file.read(running.env_file)["DATABASE_PORT"]
    assert said.startswith("postgresql+psycopg2://")
    assert f"@127.0.0.1:{port}/airflow" in said
    assert not (running.airflow / "airflow.db").exists()


def test_second_stack_on_the_same_ports_is_told_which(running: Layout, tmp_path: Path) -> None:
    other, before = Layout.of(state=tmp_path / "state", env_file=running.env_file), pids(running)
    with pytest.raises(StackError, match=r"port \d+ of postgres is in use .* DATABASE_PORT in \.env"):
        up(other, only=("postgres",))
    wait_for_health(running)
    assert pids(running) == before


def test_second_stack_beside_it_takes_other_ports(running: Layout, tmp_path: Path) -> None:
    other, before = Layout.of(state=tmp_path / "state", env_file=tmp_path / ".env"), pids(running)
    try:
        up(other, only=("postgres",))
        wait_for_health(other, ["postgres"])
        wait_for_health(running)
    finally:
        down(other)
    wait_for_health(running)
    assert pids(running) == before


def test_service_that_dies_is_named_with_the_end_of_its_log(running: Layout) -> None:
    control.stop_service("kafka", running)
    before = running.env_file.read_text()
    running.env_file.write_text(before.replace("KAFKA_HEAP=768m", "KAFKA_HEAP=1m"))
    try:
        with pytest.raises(StackError, match="kafka died while starting") as caught:
            up(running, only=SERVICES)
    finally:
        running.env_file.write_text(before)
    assert "Too small maximum heap" in str(caught.value)
    up(running, only=SERVICES)
    wait_for_health(running)


def test_up_after_a_crash_of_the_supervisor(running: Layout) -> None:
    os.kill(int((running.run / "supervisord.pid").read_text()), signal.SIGKILL)
    wait_until(lambda: not Supervisor(running).is_running(), 10, "supervisor gone")
    shown = {each.service.name: each for each in collect(running)}
    for name in SERVICES:
        assert shown[name].state == "running"
        assert shown[name].unhealthy_reason == "no supervisor: run `make up`"
        assert shown[name].pid in {process.pid for process in leftovers.find(running.state)}
    up(running, only=SERVICES)
    wait_for_health(running)


def test_down_ends_processes_that_left_the_supervisors_family(
    running: Layout, capsys: pytest.CaptureFixture[str]
) -> None:
    stray = subprocess.Popen(
        [sys.executable, "-c", "import signal; signal.pause()"],
        env={MARKER: str(running.state)},
        start_new_session=True,
    )
    try:
        down(running)
        assert stray.wait(10) == -signal.SIGTERM
        assert f"pid {stray.pid}" in capsys.readouterr().out
        assert leftovers.find(running.state) == []
    finally:
        stray.kill()


def test_down_again_is_no_error(layout: Layout) -> None:
    down(layout)
    down(layout)
    assert leftovers.find(layout.state) == []


def test_clean_removes_data_and_keeps_secrets(running: Layout) -> None:
    secrets = running.env_file.read_bytes()
    clean(running)
    assert not running.kafka.exists()
    assert not running.postgres.exists()
    assert running.env_file.read_bytes() == secrets


def test_clean_refuses_while_another_program_uses_the_data(layout: Layout) -> None:
    layout.make_folders()
    user = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], cwd=layout.kafka)
    try:
        with pytest.raises(StackError, match=f"pid {user.pid}"):
            clean(layout)
        assert layout.kafka.exists()
    finally:
        user.kill()
        user.wait()
