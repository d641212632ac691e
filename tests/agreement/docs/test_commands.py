"""Commands of the documents run as written, in the project's folder and with no PYTHONPATH."""

import os
import re
import subprocess
import sys

import pytest

from stack import env_file
from stack.layout import Layout
from tests.support.documents import OPERATED, ROOT, commands

OPTION = re.compile(r"--[a-z][a-z-]*")
# Programs that are only named, without arguments, are looked for by test_docs.py; some have none, and would start.
COMMANDS = sorted({command for document in OPERATED for command in commands(document)
                   if len(command) > 2 or command[0] != "-m"})  # fmt: skip


# Spark starts the last one, with a protocol on standard input.
PROGRAMS = sorted(
    {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
     for folder in ("demo", "deploy", "include", "spark_jobs", "stack") for path in (ROOT / folder).rglob("*.py")
     if '__name__ == "__main__"' in path.read_text(encoding="utf-8")} - {"spark_jobs.batch.worker_daemon"}
)  # fmt: skip


def asked_for_help(command):
    """The program's answer to the command with `--help` behind it: what stands before is checked first."""
    variables = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run([sys.executable, *command, "--help"], cwd=ROOT, env=variables, capture_output=True,
                          text=True, timeout=60)  # fmt: skip


def test_documents_have_commands():
    assert len(COMMANDS) > 20
    assert any(command[:2] == ("-m", "spark_jobs.archive_day") for command in COMMANDS)


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    """A stack that has settings, which Airflow's command line needs."""
    layout = Layout.of(state=tmp_path_factory.mktemp("state"), env_file=tmp_path_factory.mktemp("env") / ".env")
    env_file.ensure(layout.env_file)
    return ("-m", "stack", "--state", str(layout.state), "--env-file", str(layout.env_file))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_command_is_one_that_the_program_takes(command, stack):
    is_airflows = command[:3] == ("-m", "stack", "airflow")
    answer = asked_for_help((*stack, *command[2:]) if is_airflows else command)
    assert answer.returncode == 0, answer.stderr
    unknown = [word for word in command if OPTION.fullmatch(word) and not re.search(rf"{word}\b", answer.stdout)]
    assert unknown == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_is_asked_for_help_does_nothing_else(program):
    answer = asked_for_help(("-m", program))

    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("usage: ")


def test_a_wrong_command_is_noticed(tmp_path):
    document = tmp_path / "runbook.md"
    document.write_text("`python spark_jobs/stream.py --take-over`\n```sh\npython -m stack stopp stream  # no\n```\n")
    path, word = sorted(commands(document), reverse=True)
    assert (path, word) == (("spark_jobs/stream.py", "--take-over"), ("-m", "stack", "stopp", "stream"))
    assert "No module named 'include'" in asked_for_help(path).stderr
    assert asked_for_help(word).returncode == 2
