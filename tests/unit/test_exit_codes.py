"""Exit codes: one mapping, by the error's class, and every command ends with it."""

import importlib
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from include.contracts.day import Day
from include.contracts.errors import (
    CRASHED,
    EXIT_CODES,
    FENCED,
    FINAL,
    LOOK,
    MISCONFIGURED,
    REFUSED,
    TRY_LATER,
    ConfigurationError,
    DayBusy,
    DriverFenced,
    Misconfigured,
    PipelineError,
    Retryable,
    WrongArguments,
)
from include.integrity.jobs import rebuild_failed
from include.runtime.settings import Settings
from pipeline.__main__ import main
from tests.support.commands import commands
from tests.support.errors import pipeline_errors

ROOT = Path(__file__).resolve().parents[2]

_REASON = ["--reason", "a test"]
_DAY = ["--day", "2026-11-20"]
# the options that a command requires
REQUIRED = {
    "archive day": ["--run-id", "r"],
    "days acknowledge": [*_DAY, *_REASON],
    "days certify": _DAY,
    "days diff": _DAY,
    "days find": ["--key", "7"],
    "days forget": ["--key", "7", *_REASON],
    "days history": _DAY,
    "days publish": _DAY,
    "days rebuild": _DAY,
    "days redo": [*_DAY, *_REASON],
    "days undo": [*_DAY, *_REASON],
    "days verify": _DAY,
    "gateway give-up-store": ["--store", "6f1c", *_REASON],
}
# those that read no settings: the file is edited without the gateway's, and the table of failures is code
OF_NO_SETTINGS = {
    "gateway failures",
    *(f"gateway tokens {name}" for name in ("add", "rotate", "retire", "remove", "list")),
}
COMMANDS = {" ".join(words): REQUIRED.get(" ".join(words), []) for words, _ in commands()}
JOBS = {
    "spark_jobs.archive_day": ["--run-id", "r"],
    "spark_jobs.forget": ["--key", "7", *_REASON],
    "spark_jobs.rebuild_day": ["--run-id", "r", *_DAY],
    "spark_jobs.rebuild_days": ["--run-id", "r", "--days", "2026-11-20", "--seconds", "9"],
    "spark_jobs.stream": [],
}


def exit_code_of(command, monkeypatch):
    """Run a command of `pipeline`, or a job as spark-submit starts it, in this process."""
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("include.runtime.command.die_with_parent", lambda: None)
    monkeypatch.setattr("include.runtime.command._end_at_once", sys.exit)
    monkeypatch.setattr("spark_jobs.connectors.session.begin_jvm", lambda *_: None)
    if command in COMMANDS:
        return main([*command.split(), *COMMANDS[command]])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(command).main(JOBS[command])
    return ended.value.code


ERRORS = pipeline_errors()


def breach(error: type[PipelineError]) -> str | None:
    """Return how a class of errors breaks the rule of `include.contracts.errors`; None if it keeps it."""
    homes = [each for each in error.__mro__ if "exit_code" in vars(each)]
    if any(each.__module__ != PipelineError.__module__ for each in homes):
        return "its exit code is not that of a kind of errors"
    if any(not issubclass(*pair) for pair in pairwise(homes)):
        return "it is of two kinds"
    if error.exit_code not in {TRY_LATER, FENCED, *FINAL}:
        return "its exit code is of no failure"
    if (error.exit_code in FINAL) == issubclass(error, Retryable):
        return "its exit code and its class do not agree on a retry"
    return None


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: each.__name__)
def test_the_class_of_an_error_is_the_one_place_that_decides_on_a_retry(error):
    assert breach(error) is None


@pytest.mark.parametrize(
    ("bases", "own"),
    [
        ((PipelineError,), {"exit_code": TRY_LATER}),
        ((PipelineError,), {"exit_code": MISCONFIGURED}),
        ((Retryable,), {"exit_code": REFUSED}),
        ((ConfigurationError,), {"exit_code": LOOK}),
        ((Retryable, ConfigurationError), {}),
        ((ConfigurationError, DayBusy), {}),
    ],
)
def test_a_class_that_breaks_the_rule_is_found(bases, own):
    assert breach(type("Planted", bases, own)) is not None


@pytest.mark.parametrize(
    ("kind", "own"),
    [(PipelineError, {"exit_code": TRY_LATER}), (PipelineError, {"exit_code": CRASHED}), (Retryable, {"exit_code": 4})],
)
def test_a_kind_that_breaks_the_rule_is_found(kind, own):
    assert breach(type("Planted", (kind,), {**own, "__module__": PipelineError.__module__})) is not None


def test_each_kind_has_its_exit_code():
    kinds = {kind: kind.exit_code for kind in ERRORS if "exit_code" in vars(kind)}
    assert kinds == {PipelineError: 4, Retryable: 75, DriverFenced: 76, Misconfigured: 78, WrongArguments: 2}


@pytest.mark.parametrize("error", ["ArchiveDamaged", "ConfigurationError", "ContractMismatch", "MissingRange",
                                   "PositionRefused"])  # fmt: skip
def test_what_a_person_has_to_set_right_ends_with_78(error):
    assert {each.__name__: each for each in ERRORS}[error].exit_code == MISCONFIGURED == 78


def test_the_documentation_has_every_exit_code_once():
    text = (ROOT / "docs" / "architecture" / "operations.md").read_text()
    _, section = text.split("\n### Exit codes\n")
    listed = re.findall(r"^\| (\d+) \|", section.split("\n#")[0], re.MULTILINE)
    assert sorted(map(int, listed)) == sorted(EXIT_CODES)


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - OF_NO_SETTINGS | JOBS.keys()))
def test_every_command_ends_with_the_code_of_its_error(command, error, monkeypatch):
    raised = error.__new__(error)  # whatever it takes to make one

    def fail(*_):
        raise raised

    monkeypatch.setattr(Settings, "from_environment", fail)
    assert exit_code_of(command, monkeypatch) == error.exit_code


@pytest.mark.parametrize(("job", "own"), [(75, 75), (78, 78), (4, 4), (2, 4), (1, 75), (70, 75), (-9, 75), (137, 75)])
def test_a_failed_rebuild_says_of_a_retry_what_a_task_with_the_same_job_does(job, own):
    error = rebuild_failed(job, Day.parse("2026-11-20", "Asia/Seoul"), "r")
    assert (error.exit_code, isinstance(error, Retryable)) == (own, job not in FINAL)
    assert breach(type(error)) is None
    assert f"exit_code={job}" in str(error)
