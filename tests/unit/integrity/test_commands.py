"""The arguments that the command line gives to a step are those that its function takes."""

import inspect

import pytest

from include.integrity.__main__ import _parser
from include.integrity.commands import COMMANDS

_REASON = ["--reason", "a test"]
REQUIRED = {"undo": _REASON, "redo": _REASON, "acknowledge": _REASON, "give-up-store": [*_REASON, "--store", "6f1c"]}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_step_takes_the_arguments_of_its_command(name):
    command = COMMANDS[name]
    days = [] if command.takes_day is False else ["2026-11-20"]
    line = [name, *(["--day", *days] if days else []), *REQUIRED.get(name, [])]
    given = vars(_parser().parse_args(line))
    arguments = {key: value for key, value in given.items() if key not in ("command", "json", "day")}
    inspect.signature(command.call).bind("settings", *days, **arguments)
