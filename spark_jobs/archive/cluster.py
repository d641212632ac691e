"""Runs a Python function over pieces of the archive's work, one Spark task per piece."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from include.errors import Retryable

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
    except Py4JJavaError as exc:
        lines = [line for line in str(exc.java_exception.getMessage()).splitlines() if line[:1].strip()]
        errors = [line for line in lines if "Error" in line or "include.errors" in line or "spark_jobs" in line]
        raise ArchiveTaskFailed(reason=(errors or lines or [""])[-1][:500]) from exc
