"""Failures that pass by themselves, whatever records were being taken."""

from collections.abc import Sequence

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


def is_passing(error: BaseException) -> bool:
    """True if the failure says nothing of the records: our own errors, a JVM that is gone, a server that is out.

    Our own error for a batch that PostgreSQL refused is about its records.
    """
    if isinstance(error, PipelineError):
        return not isinstance(error, BatchRefused)
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return True
    cause = getattr(error, "java_exception", None) or getattr(error, "_origin", None)  # as py4j, as PySpark has it
    gateway = SparkContext._gateway
    for _ in range(20):  # causes may be a circle
        if cause is None or gateway is None or _is_any(gateway, cause, OF_A_RECORD):
            return False
        if _is_any(gateway, cause, PASSING):
            return True
        cause = cause.getCause()
    return False


def _is_any(gateway: JavaGateway, error: object, names: Sequence[str]) -> bool:
    return any(is_instance_of(gateway, error, name) for name in names)
