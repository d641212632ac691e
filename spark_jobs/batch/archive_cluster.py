"""Work of the archive spread over Spark's tasks, each a Python function of one piece."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from include.errors import Retryable

StartContext = Callable[[], SparkContext]
Piece = TypeVar("Piece")
Result = TypeVar("Result")


class ArchiveTaskFailed(Retryable):
    """A task failed, and so did its retries; nothing that it wrote belongs to the archive."""


def spread(start_context: StartContext, function: Callable[[Piece], Result], pieces: Sequence[Piece]) -> list[Result]:
    """The function's result of each piece, a task each. Spark is started only when there is a piece."""
    if not pieces:
        return []
    try:
        return start_context().parallelize(pieces, len(pieces)).map(function).collect()
    except Py4JJavaError as exc:
        lines = [line for line in str(exc.java_exception.getMessage()).splitlines() if line[:1].strip()]
        errors = [line for line in lines if "Error" in line or "include.errors" in line or "spark_jobs" in line]
        raise ArchiveTaskFailed(reason=(errors or lines or [""])[-1][:500]) from exc
