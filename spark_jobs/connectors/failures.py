"""Failures that pass by themselves, whatever records were being taken, and what is said of the others."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from py4j.java_gateway import JavaGateway, is_instance_of
from py4j.protocol import Py4JNetworkError
from pyspark import SparkContext

from include.adapters.serving_errors import BatchRefused
from include.errors import PipelineError

# Of Java, in this order: what Kafka says of a record; then what it says otherwise (time-outs, leaders that move,
# permissions, records that are gone), files and sockets, and a job that was cancelled.
OF_A_RECORD = (
    "org.apache.kafka.common.errors.RecordTooLargeException",
    "org.apache.kafka.common.errors.InvalidTimestampException",
    "org.apache.kafka.common.InvalidRecordException",
)
PASSING = (
    "org.apache.kafka.common.errors.ApiException",
    "org.apache.kafka.common.errors.InterruptException",
    "org.apache.kafka.clients.consumer.InvalidOffsetException",
    "org.apache.spark.sql.kafka010.KafkaIllegalStateException",
    "java.util.concurrent.TimeoutException",
    "java.io.IOException",
    "java.lang.InterruptedException",
)
_MAX_CAUSES = 20  # causes may be a circle
_QUOTED = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`""")
_MAX_LENGTH = 500


def is_passing(error: BaseException) -> bool:
    """True if the failure says nothing of the records: our own errors, a JVM that is gone, a server that is out.

    Our own error for a batch that PostgreSQL refused is about its records.
    """
    if isinstance(error, PipelineError):
        return not isinstance(error, BatchRefused)
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return True
    gateway = SparkContext._gateway
    for cause in _iter_causes(error):
        if gateway is None or _is_any(gateway, cause, OF_A_RECORD):
            return False
        if _is_any(gateway, cause, PASSING):
            return True
    return False


def cause_of(error: BaseException) -> str:
    """The class and message of the error's deepest cause, in one line; quoted values are left out.

    Of an error of the JVM that is the exception of Java: what Python says of it names the call alone.
    """
    name, message = type(error).__name__, str(error)
    for cause in _iter_causes(error):
        name, message = cause.getClass().getName(), cause.getMessage() or ""
    lines = _QUOTED.sub("'…'", message).strip().splitlines()
    return f"{name}: {lines[0][:_MAX_LENGTH] if lines else 'no message'}".replace("\0", "\\0")


def _iter_causes(error: BaseException) -> Iterator[Any]:
    """The Java exceptions of an error, from the one that was thrown to its deepest cause; none of one of Python."""
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)  # as py4j, as PySpark has it
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return
        yield cause
        cause = cause.getCause()


def _is_any(gateway: JavaGateway, error: object, names: Sequence[str]) -> bool:
    return any(is_instance_of(gateway, error, name) for name in names)
