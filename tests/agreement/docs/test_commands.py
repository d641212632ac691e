"""Commands that documents, messages and deployments name are ones that their programs take.

Those of `python` run as written, in the project's folder and with no PYTHONPATH.
"""

import os
import re
import subprocess
import sys

import pytest

from pipeline.__main__ import main
from stack import env_file
from stack.layout import Layout
from tests.support.commands import commands as pipelines_own
from tests.support.documents import OPERATED, ROOT, commands, pipeline_commands

OPTION = re.compile(r"--[a-z][a-z-]*")
# Programs that are only named, without arguments, are looked for by test_docs.py; some have none, and would start.
COMMANDS = sorted({command for document in OPERATED for command in commands(document)
                   if len(command) > 2 or command[0] != "-m"})  # fmt: skip


# Spark starts the last one, with a protocol on standard input.
PROGRAMS = sorted(
    {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
     for folder in ("demo", "deploy", "include", "spark_jobs", "stack") for path in (ROOT / folder).rglob("*.py")
     if '__name__ == "__main__"' in path.read_text(encoding="utf-8")} - {"spark_jobs.worker_daemon"}
)  # fmt: skip


def asked_for_help(command):
    """The program's answer to the command with `--help` behind it: what stands before is checked first."""
    variables = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run([sys.executable, *command, "--help"], cwd=ROOT, env=variables, capture_output=True,
                          text=True, timeout=60)  # fmt: skip


NAMED_IN = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "deploy/Dockerfile")),
    *ROOT.glob("docker-compose*.yaml"),
    *(path for folder in ("dags", "deploy", "docs", "include", "pipeline", "plugins", "spark_jobs", "stack", "demo")
      for path in sorted((ROOT / folder).rglob("*"))
      if path.suffix in {".html", ".md", ".py", ".sql", ".toml", ".yaml"}),
]  # fmt: skip
NAMED = {}  # a command of `pipeline` → the files that name it
for file in NAMED_IN:
    for words in pipeline_commands(file.read_text(encoding="utf-8")):
        NAMED.setdefault(words, set()).add(str(file.relative_to(ROOT)))
# modules that are no commands of an operator
INTERNAL = {"include.airflow_support.init", "spark_jobs.class_archive"}
MODULE = re.compile(r"python[0-9.]* -m ((?:include|spark_jobs)\b[\w.]*)")


def test_documents_have_commands():
    assert len(COMMANDS) > 10
    assert any(command[:3] == ("-m", "stack", "stop") for command in COMMANDS)
    assert len(NAMED) > 50
    for folder in ("dags", "deploy", "docs/runbooks", "include/integrity/pages", "include/database", "stack"):
        assert any(file.startswith(f"{folder}/") for files in NAMED.values() for file in files), folder


@pytest.mark.parametrize("words", sorted(NAMED), ids=" ".join)
def test_a_command_of_pipeline_is_one_that_it_takes(words, capsys):
    assert main([*words, "--help"]) == 0, f"{capsys.readouterr().err} named in {', '.join(sorted(NAMED[words]))}"


def test_the_page_of_commands_names_every_command_of_pipeline():
    page = {words[:3] for words in pipeline_commands((ROOT / "docs" / "commands.md").read_text(encoding="utf-8"))}
    assert {words for words, _ in pipelines_own()} - page == set()


@pytest.mark.parametrize("file", NAMED_IN, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_has_an_operator_run_a_module(file):
    assert set(MODULE.findall(file.read_text(encoding="utf-8"))) - INTERNAL == set()


@pytest.mark.parametrize("document", OPERATED, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_document_has_an_operator_run_code(document):
    assert "python -c" not in document.read_text(encoding="utf-8")  # nothing checks the names in it


def test_a_wrong_command_of_pipeline_is_noticed():
    text = 'run `pipeline stream repair --dry-rum`, then:\npipeline days \\\n  republish --reason "it is; right"\n'
    assert pipeline_commands(text) == [
        ("stream", "repair", "--dry-rum"), ("days", "republish", "--reason", "it is; right")]  # fmt: skip
    assert pipeline_commands('command: [pipeline, stream, run, --query, join]\nCMD ["pipeline", "gateway", "run"]') == [
        ("stream", "run", "--query", "join"), ("gateway", "run")]  # fmt: skip
    for words in pipeline_commands(text):
        assert main([*words, "--help"]) == 2


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
    assert answer.stdout.lower().startswith("usage: ")


def test_a_wrong_command_is_noticed(tmp_path):
    document = tmp_path / "runbook.md"
    document.write_text("`python spark_jobs/stream.py --take-over`\n```sh\npython -m stack stopp stream  # no\n```\n")
    path, word = sorted(commands(document), reverse=True)
    assert (path, word) == (("spark_jobs/stream.py", "--take-over"), ("-m", "stack", "stopp", "stream"))
    assert "No module named 'include'" in asked_for_help(path).stderr
    assert asked_for_help(word).returncode == 2
