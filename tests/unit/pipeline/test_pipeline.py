"""The command `pipeline`: its help, its arguments, its completion, and what it imports."""

import json
import subprocess
import sys
from typing import get_args

import pytest

from include.kafka.access import Part
from include.runtime.settings import Settings
from pipeline.__main__ import main, pipeline
from spark_jobs.speed.health.state import Query
from tests.support.commands import commands, groups_and_commands
from tests.support.documents import ROOT

GROUPS = {"gateway", "days", "database", "kafka", "archive", "stream"}
DRIVERS = {"airflow", "botocore", "confluent_kafka", "psycopg2", "pyarrow", "pyspark", "uvloop"}
USAGE = 2


def pipeline_process(*arguments, **variables):
    return subprocess.run(
        [sys.executable, "-m", "pipeline", *arguments], cwd=ROOT, env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def completed(*words):
    """The words that bash offers for the last one."""
    line = " ".join(("pipeline", *words))
    answer = pipeline_process(_PIPELINE_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words)))
    return [each.partition(",")[2] for each in answer.stdout.splitlines()]


class TestHelp:
    def test_fits_on_a_screen_and_names_every_group(self, capsys):
        assert main(["--help"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 100
        assert {line.split()[0] for line in lines[lines.index("Commands:") + 1 :]} == GROUPS

    @pytest.mark.parametrize("words", [words for words, _ in groups_and_commands()], ids=" ".join)
    def test_every_command_explains_itself(self, words, monkeypatch, capsys):
        monkeypatch.setattr(Settings, "from_environment", lambda *_: pytest.fail("it runs"))
        assert main([*words, "--help"]) == 0
        text = capsys.readouterr().out
        assert text.startswith(f"Usage: pipeline {' '.join(words)} [OPTIONS]")
        assert not [line for line in text.splitlines()[1:] if line.endswith("...")], "a group's line is cut off"

    def test_every_option_says_what_it_does(self):
        silent = [(words, each.name) for words, command in groups_and_commands() for each in command.params
                  if each.param_type_name == "option" and not each.help]  # fmt: skip
        assert silent == []

    def test_names_every_part_that_has_rights_and_every_query(self, capsys):
        main(["kafka", "rights", "--help"])
        text = capsys.readouterr().out
        assert [part for part in get_args(Part) if part not in text] == []
        for command in ("run", "repair"):
            main(["stream", command, "--help"])
            assert f"[{'|'.join(get_args(Query))}]" in capsys.readouterr().out

    @pytest.mark.parametrize("words", [(), ("days",), ("days", "status"), ("archive", "day"), ("stream", "run")])
    def test_imports_no_client_of_a_server(self, words):
        program = (
            "import sys, json, contextlib, io\nfrom pipeline.__main__ import main\n"
            f"with contextlib.redirect_stdout(io.StringIO()): code = main([*{words!r}, '--help'])\n"
            "print(json.dumps([code, sorted(sys.modules)]))"
        )
        ran = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
        code, modules = json.loads(ran.stdout)
        assert (code, DRIVERS & {*modules}) == (0, set())


class TestArguments:
    @pytest.mark.parametrize(
        "line",
        [
            "",
            "explode",
            "days",
            "days explode",
            "days publish",
            "days undo --day 2026-11-20",
            "days undo --day 2026-11-20 --reason=",
            "days status --limit many",
            "days status 2026-11-20",
            "gateway replay --max-rate 0",
            "gateway replay --id 1",
            "gateway replay --list-refused --retry-refused",
            "gateway replay --move-to-cluster=",
            "gateway reconcile --all --restored",
            "gateway reconcile --since yesterday",
            "gateway reconcile --since 2026-11-20T09:30:00",
            "gateway reconcile --since 2199-01-01T00:00:00Z",
            "gateway reconcile --min-age-s -1",
            "gateway tokens --file f add n --topic board --all-topics",
            "gateway tokens --file f add n --topic other",
            "days forget --reason r --key 9223372036854775808",
            "stream repair --consumer both",
        ],
    )
    def test_wrong_ones_end_with_2_before_anything_runs(self, line, monkeypatch):
        monkeypatch.setattr(Settings, "from_environment", lambda *_: pytest.fail("it runs"))
        assert main(line.split()) == USAGE

    @pytest.mark.parametrize(
        "line", ["stream recheck --exec", "stream repair --dry", "days forget --key 1 --reas r --exec"]
    )
    def test_no_option_may_be_abbreviated(self, line, monkeypatch, capsys):
        monkeypatch.setattr(Settings, "from_environment", lambda *_: pytest.fail("it runs"))
        assert main(line.split()) == USAGE
        assert "No such option" in capsys.readouterr().err

    def test_a_reason_may_begin_with_a_dash(self, monkeypatch):
        given = []
        command = dict(commands())["gateway", "give-up-store"]
        monkeypatch.setattr(command, "callback", lambda **arguments: given.append(arguments["reason"]))
        assert main(["gateway", "give-up-store", "--store", "6f1c", "--reason=-- its disk failed "]) == 0
        assert given == ["-- its disk failed"]


class TestCompletion:
    def test_bash_has_a_function(self):
        script = pipeline_process(_PIPELINE_COMPLETE="bash_source")
        assert script.returncode == 0, script.stderr
        assert "complete -o nosort -F _pipeline_completion pipeline" in script.stdout

    def test_offers_groups_commands_options_and_choices(self):
        assert completed("da") == ["days", "database"]
        assert completed("days", "re") == ["rebuild", "redo"]
        assert completed("days", "rebuild", "--pub") == ["--publish"]
        assert completed("stream", "run", "--query", "") == ["join", "serve"]


def test_a_group_has_its_commands_once():
    names = [words for words, _ in groups_and_commands()]
    assert len(names) == len({*names}) > 30
    assert {words[0] for words in names} == GROUPS == {*pipeline.list_commands(None)}
