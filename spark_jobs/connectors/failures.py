"""Classifies failures of a batch as transient or caused by a record, and describes their cause."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from py4j.java_gateway import JavaGateway, is_instance_of
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from include.contracts.errors import PipelineError
from include.database.bulk_copy import BatchRefused

# Java exceptions that no record causes: of files and sockets, and of a cancelled job.
PASSING = (
    "java.util.concurrent.TimeoutException",
    "java.io.IOException",
    "java.lang.InterruptedException",
)
# A record may have ended the worker. Its cause is an EOFException, as of a socket.
_WORKER_ENDED = "Python worker exited unexpectedly"
# Errors of an action of which a task failed: PySpark's for a Python function, with a session and since Spark 4.2
TASK_ERRORS = (Py4JJavaError, PySparkException)
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(.*?)(?:\n\s*at |\Z)", re.DOTALL)
_ERROR = re.compile(r"(\w+\.)+\w+(:|$)|\w+(Error|Exception)\b")  # a class with its module, or one of Python's own
_MAX_CAUSES = 20  # the chain of causes may be cyclic
_QUOTED = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`""")
_MAX_LENGTH = 500


def is_passing(error: BaseException) -> bool:
    """True if the failure is not caused by the records: a PipelineError, a JVM that died, a server that is down.

    The exception is BatchRefused, which PostgreSQL's refusal of the records causes.
    """
    if isinstance(error, PipelineError):
        return not isinstance(error, BatchRefused)
    if is_end_of_jvm(error):
        return True
    gateway, causes = SparkContext._gateway, list(_iter_causes(error))
    if gateway is None or any(_WORKER_ENDED in (cause.getMessage() or "") for cause in causes):
        return False
    return any(_is_any(gateway, cause, PASSING) for cause in causes)


def is_end_of_jvm(error: BaseException) -> bool:
    """True if the JVM no longer answers: the process is about to end, and records may be the cause."""
    return isinstance(error, Py4JNetworkError | ConnectionError)


def cause_of(error: BaseException) -> str:
    """Return the class and message of the error's root cause, in one line, with quoted values masked.

    For an error of the JVM it is the Java exception, because Python's message only names the call. The end of a
    worker is a root cause: the one below it is of the socket.
    """
    name, message = type(error).__name__, str(error)
    for cause in _iter_causes(error):
        name, message = cause.getClass().getName(), cause.getMessage() or ""
        if message.startswith(_WORKER_ENDED):
            break
    if _TRACEBACK.search(message):  # of a task in Python
        described = _QUOTED.sub("'…'", task_error(error))
    else:
        lines = _QUOTED.sub("'…'", message).strip().splitlines()
        described = f"{name}: {lines[0][:_MAX_LENGTH] if lines else 'no message'}"
    return described.replace("\0", "\\0")


def task_error(error: BaseException) -> str:
    """Return the line of a failed task's Python traceback that names the error, else the message's last line.

    It has at most 500 characters.
    """
    java = next(_iter_causes(error), None)
    text = str(error) if java is None else str(java.getMessage())
    found = _TRACEBACK.search(text)
    lines = [line for line in (found[1] if found else text).splitlines() if line[:1].strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    return (errors or lines or [""])[-1][:_MAX_LENGTH]


def _iter_causes(error: BaseException) -> Iterator[Any]:
    """Yield the Java exceptions of an error, from the one thrown to its root cause; nothing for a Python error."""
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)  # py4j's name, PySpark's name
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.getCause()


def _is_any(gateway: JavaGateway, error: object, names: Sequence[str]) -> bool:
    return any(is_instance_of(gateway, error, name) for name in names)
