"""Runs the commands of the pipeline: sets up logging and turns errors into exit codes."""

import functools
import gc
import logging
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

from include.contracts.errors import OK, PipelineError
from include.runtime import logs

log = logging.getLogger(__name__)

_GARBAGE_OBJECTS = 50_000

_Arguments = ParamSpec("_Arguments")


def as_command(main: Callable[_Arguments, int | None]) -> Callable[_Arguments, int]:
    """Wrap the main function of a command, which returns an exit code, or None for OK.

    Garbage is collected rarely. Logs go to standard error. A PipelineError is logged in one line with its class, and
    its exit code is returned.
    """

    @functools.wraps(main)
    def run(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> int:
        collect_garbage_rarely()
        try:
            logs.set_up(component_of(main.__code__.co_filename))
            return main(*arguments, **named) or OK
        except PipelineError as exc:
            log.error("%s: %s", type(exc).__name__, exc)
            return exc.exit_code

    return run


def collect_garbage_rarely() -> None:
    """Collect garbage after 50,000 new objects instead of Python's 700, which scans the records in flight repeatedly.

    That took a fifth of the CPU of an event in the gateway, and half of that of a record that the driver reads.
    """
    gc.set_threshold(_GARBAGE_OBJECTS)


def component_of(file: str) -> str:
    """Return the name of a command by its file: `gateway` for include/gateway/__main__.py, `stream` for stream.py."""
    path = Path(file)
    return path.parent.name if path.stem == "__main__" else path.stem
