"""Runs the commands of the pipeline: sets up logging and turns errors into exit codes."""

import functools
import gc
import getpass
import logging
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, ParamSpec

import click

from include.contracts.errors import OK, PipelineError
from include.runtime import logs
from include.runtime.process_tree import die_with_parent

log = logging.getLogger(__name__)

_GARBAGE_OBJECTS = 50_000

_Arguments = ParamSpec("_Arguments")


class Command(click.Command):
    """A command of `pipeline`, whose function returns an exit code, or None for OK. It runs as `as_command` says."""

    def invoke(self, ctx: click.Context) -> NoReturn:
        """Run the function and end with its exit code."""
        ctx.exit(_run(component_of(ctx.command_path), lambda: super(Command, self).invoke(ctx)))


class Job(Command):
    """A command that starts Spark. It dies with the process that started it, and ends at once.

    An orderly shutdown of the interpreter takes a third of a second, and waits for threads of the client libraries,
    which may block on servers that are down.
    """

    def invoke(self, ctx: click.Context) -> NoReturn:
        """Run the function and end with its exit code."""
        die_with_parent()
        try:
            super().invoke(ctx)
        except click.exceptions.Exit as ended:
            _end_at_once(ended.exit_code)


def as_command(main: Callable[_Arguments, int | None]) -> Callable[_Arguments, int]:
    """Wrap the main function of a command, which returns an exit code, or None for OK.

    Garbage is collected rarely. Logs go to standard error. A PipelineError is logged in one line with its class, and
    its exit code is returned.
    """

    @functools.wraps(main)
    def run(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> int:
        return _run(Path(main.__code__.co_filename).stem, lambda: main(*arguments, **named))

    return run


def _end_at_once(exit_code: int) -> NoReturn:
    logging.shutdown()
    sys.stdout.flush()
    os._exit(exit_code)


def _run(component: str, main: Callable[[], Any]) -> int:
    collect_garbage_rarely()
    try:
        logs.set_up(component)
        return main() or OK
    except PipelineError as exc:
        log.error("%s: %s", type(exc).__name__, exc)
        return exc.exit_code


def collect_garbage_rarely(objects: int = _GARBAGE_OBJECTS) -> None:
    """Collect garbage after so many new objects instead of Python's 700, which scans the records in flight repeatedly.

    That took a fifth of the CPU of an event in the gateway, and half of that of a record that the driver reads.
    """
    gc.set_threshold(objects)


def component_of(command_path: str) -> str:
    """Return the name of a command in the log.

    `gateway` for `pipeline gateway run`, `gateway_replay` for `pipeline gateway replay`, `archive_day` for
    `pipeline archive day` and for archive_day.py.
    """
    *groups, name = command_path.removeprefix("pipeline ").split()
    words = groups if groups and name == "run" else [*groups, name.removesuffix(".py")]
    return "_".join(words).replace("-", "_")


def author() -> str:
    """Return the user and the machine, the author of a change that is not given one."""
    return f"{getpass.getuser()}@{socket.gethostname()}"
