"""Exit codes: one mapping, by the error's class, and every command ends with it."""

import importlib

import pytest

from include.contracts.day import Day
from include.errors import (
    MISCONFIGURED,
    REFUSED,
    TRY_LATER,
    USAGE,
    ConfigurationError,
    ContractMismatch,
    MissingRange,
    PositionRefused,
    Retryable,
    WrongArguments,
)
from include.integrity.process import RebuildFailed
from include.settings import Settings
from spark_jobs.archive.files import ArchiveDamaged
from tests.support.errors import pipeline_errors

COMMANDS = {
    "stack.create_topics": [],
    "include.gateway.__main__": [],
    "include.gateway.reconcile": [],
    "include.gateway.replay": [],
    "include.integrity.__main__": ["status"],
    "include.sql.migrate": [],
    "spark_jobs.archive_day": ["--run-id", "r"],
    "spark_jobs.forget": ["--key", "7", "--reason", "r"],
    "spark_jobs.rebuild_day": ["--run-id", "r", "--day", "2026-11-20"],
    "spark_jobs.rebuild_days": ["--run-id", "r", "--days", "2026-11-20", "--seconds", "9"],
    "spark_jobs.recheck": [],
    "spark_jobs.repair": ["--dry-run"],
    "spark_jobs.stream": [],
}


ERRORS = pipeline_errors()


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: each.__name__)
def test_what_can_pass_by_itself_ends_with_75_and_what_a_person_has_to_set_right_with_78(error):
    if issubclass(error, Retryable):
        assert error.exit_code == TRY_LATER == 75
    elif issubclass(error, ConfigurationError | ContractMismatch | PositionRefused | MissingRange | ArchiveDamaged):
        assert error.exit_code == MISCONFIGURED == 78
    elif issubclass(error, WrongArguments):
        assert error.exit_code == USAGE == 2
    else:
        assert error.exit_code == REFUSED == 4


@pytest.mark.parametrize("error", ERRORS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_ends_with_the_code_of_its_error(command, error, monkeypatch):
    raised = error.__new__(error)  # whatever it takes to make one

    def fail(*_):
        raise raised

    monkeypatch.setattr("sys.argv", [command, *COMMANDS[command]])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(Settings, "from_environment", fail)
    assert importlib.import_module(command).main() == error.exit_code


@pytest.mark.parametrize(("job", "own"), [(75, 75), (78, 78), (4, 4), (1, 1), (2, 1), (-9, 1), (137, 1)])
def test_a_failed_rebuild_ends_with_the_code_of_its_job(job, own):
    assert RebuildFailed(job, Day.parse("2026-11-20", "Asia/Seoul"), "r").exit_code == own
