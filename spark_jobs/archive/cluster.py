"""Runs a Python function over pieces of the archive's work, one Spark task per piece."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from pyspark import SparkContext

from include.contracts.errors import Retryable
from spark_jobs.connectors.failures import TASK_ERRORS, task_error

StartContext = Callable[[], SparkContext]
Piece = TypeVar("Piece")
Result = TypeVar("Result")


class ArchiveTaskFailed(Retryable):
    """A task failed, and so did its retries. No file that it wrote is listed in the catalogue."""


def spread(start_context: StartContext, function: Callable[[Piece], Result], pieces: Sequence[Piece]) -> list[Result]:
    """Return the function's result for each piece, in order. Spark is started only if there is a piece.

    Raises ArchiveTaskFailed if a task fails after Spark's retries.
    """
    if not pieces:
        return []
    try:
        return start_context().parallelize(pieces, len(pieces)).map(function).collect()
    except TASK_ERRORS as exc:
        raise ArchiveTaskFailed(reason=task_error(exc)) from exc
