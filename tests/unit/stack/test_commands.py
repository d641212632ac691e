"""Commands in situations in which a person needs one line: no environment, another user, Ctrl-C."""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from include.contracts.errors import LOOK
from stack import env_file
from stack.env_file import MARKER
from stack.layout import DATA_FOLDERS, PROJECT_ROOT, Layout
from stack.leftovers import SERVICE_MARKER
from tests.servers import wait_until

NOBODY = 65534
# as that user on Linux that is root, else as oneself with the file closed
AS_ANOTHER = f"""
import os, sys
import stack.status, stack.control
from stack.__main__ import main
if os.geteuid() == 0:
    os.seteuid({NOBODY})
sys.exit(main())
"""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout.of(state=tmp_path / "state", env_file=tmp_path / ".env")
    env_file.ensure(made.env_file)
    made.make_folders()
    return made


@pytest.fixture
def service(layout: Layout) -> Iterator[subprocess.Popen[bytes]]:
    marks = {MARKER: str(layout.state), SERVICE_MARKER: "stream"}
    with subprocess.Popen(["sleep", "60"], env={**os.environ, **marks}, start_new_session=True) as started:
        yield started
        started.kill()


def run(layout: Layout, *arguments: str, python: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, "--state", str(layout.state), "--env-file", str(layout.env_file), *arguments]
    return subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, check=False, timeout=60)


def without_environment(layout: Layout, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(layout, *arguments, python=("-S", "-m", "stack"))  # no site-packages


def test_status_names_what_runs_without_the_environment(layout, service):
    shown = without_environment(layout, "status")
    assert (shown.returncode, shown.stderr) == (LOOK, "")
    assert "there is no environment, so health is not known (`make setup` makes one)" in shown.stdout
    assert shown.stdout.splitlines()[1:] == [f"  {'stream':<24} pid {service.pid}"]


def test_status_says_that_nothing_runs_without_the_environment(layout):
    shown = without_environment(layout, "status")
    assert (shown.returncode, shown.stderr) == (LOOK, "")
    assert shown.stdout == (
        "there is no environment, so health is not known (`make setup` makes one); no service runs\n"
    )


def test_env_makes_the_file_of_this_stack_without_the_environment(layout):
    layout.env_file.unlink()
    made = without_environment(layout, "env")
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout.splitlines()[-1] == f"{layout.env_file} is complete"
    assert env_file.read(layout.env_file)["GATEWAY_FALLBACK_DIR"] == str(layout.state / "fallback")


@pytest.mark.parametrize("command", ["up", "down", "clean", "status"])
@pytest.mark.parametrize("folder", ["", *DATA_FOLDERS])
def test_file_where_a_folder_must_be_is_named(layout, command, folder):
    path = layout.state / folder
    if path.exists():
        shutil.rmtree(path)
    path.write_text("a file")
    ran = run(layout, command, python=("-m", "stack"))
    named = f"{command}: {path}: a file stands where a folder must be: move it away\n"
    if command == "up" or ran.stderr:  # the others may do without the folder
        assert (ran.returncode, ran.stderr) == (1, named)


@pytest.mark.parametrize("command", ["down", "clean"])
def test_what_runs_is_ended_without_the_environment(layout, service, command):
    ended = without_environment(layout, command)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "there is no environment: services are ended without their order" in ended.stdout
    assert service.wait(20) == -signal.SIGTERM
    assert layout.kafka.exists() == (command == "down")


def test_logs_are_shown_without_the_environment(layout):
    layout.log_file("stream").write_text("the last line\n")
    assert "the last line" in without_environment(layout, "logs", "stream").stdout


def test_up_without_the_environment_names_the_remedy(layout):
    refused = without_environment(layout, "up")
    assert refused.returncode == 1
    assert refused.stderr == "up: there is no psycopg2 without the environment: run `make setup`\n"


def test_down_ends_what_runs_whatever_the_settings_say(layout, service):
    layout.env_file.write_text("KAFKA_PORT=nonsense\n")
    ended = run(layout, "down", python=("-m", "stack"))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert service.wait(20) == -signal.SIGTERM


@pytest.mark.parametrize("command", ["up", "down", "status", "clean"])
def test_files_of_another_user_are_one_line_with_the_owner(layout, command):
    layout.state.chmod(0o700)
    for path in (layout.env_file, layout.state / "stack.lock"):
        path.touch()
        path.chmod(0o600 if os.geteuid() == 0 else 0)
    refused = run(layout, command, python=("-c", AS_ANOTHER))
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert line.startswith(f"{command}: {layout.state.parent}/")
    assert "Permission denied; it belongs to " in line
    assert "run as that user, or clone the project for yourself" in line


def test_set_up_that_is_broken_off_is_one_line(tmp_path):
    for name in ("stack", "include"):
        shutil.copytree(PROJECT_ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / ".state" / "setup.lock"
    path.parent.mkdir()
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "stack.bootstrap"]
        # as a shell starts it in the foreground: processes that it starts in the background ignore SIGINT
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True,
                              preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as started:  # fmt: skip
            try:
                wait_until(lambda: has_open(started.pid, path), 30, "set-up waits for its lock")
                started.send_signal(signal.SIGINT)
                _, said = started.communicate(timeout=30)
            finally:
                started.kill()
    assert (started.returncode, said) == (130, "setup: interrupted; the next run continues from here\n")


BROKEN_OFF = """
import sys
import stack.control
def up(*given, **named):
    raise KeyboardInterrupt
stack.control.up = up
from stack.__main__ import main
sys.exit(main())
"""


def test_up_that_is_broken_off_names_the_ways_on(layout):
    ended = run(layout, "up", python=("-c", BROKEN_OFF))
    said = "up: broken off; `make up` goes on from here, `make down` ends what has started\n"
    assert (ended.returncode, ended.stderr) == (130, said)


def has_open(pid: int, path: Path) -> bool:
    try:
        return any(each.readlink() == path for each in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
