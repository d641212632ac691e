"""Makes an archive of the classes that a driver loads, so that the JVM of every driver starts seconds sooner.

    python -m spark_jobs.class_archive .state/jars/spark-kafka      writes classes.jsa beside these jars; half a minute

A driver loads 19,000 classes. Loading, verifying and linking them takes a sixth of a cold start on two cores. From an
archive (application class data sharing) the JVM maps them into memory. An archive is valid for the Java and the jars
that it was made with; a JVM with others ignores it. `make setup` and the image's build make it. It is optional.
Exit codes: 0 the archive is there; 1 it could not be made.
"""

import argparse
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from include.runtime.command import as_command
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.settings import SparkSettings
from spark_jobs.batch.tasks import identity_partitioner
from spark_jobs.connectors.failures import TASK_ERRORS
from spark_jobs.connectors.kafka import PLANNING_OPTIONS
from spark_jobs.connectors.session import ARCHIVE_NAME, STREAM_CONFIGURATION, java_options, open_session

log = logging.getLogger("class_archive")

_SHORT_TIMEOUTS = {"kafka.default.api.timeout.ms": "1000", "kafka.request.timeout.ms": "500",
            "kafkaConsumer.pollTimeoutMs": "500", "kafka.max.block.ms": "500", "fetchOffset.numRetries": "1",
            "fetchOffset.retryIntervalMs": "10"}  # fmt: skip
_BATCHES = 3  # of the stream: the first is planned and committed by other classes than those after it
_STREAMING_S = 120.0
_ENDING_S = 120.0


class _NoBroker(KafkaConnection):
    """Loads the clients' classes; their calls fail soon."""

    def spark(self) -> dict[str, str]:
        """See KafkaConnection.spark."""
        return super().spark() | _SHORT_TIMEOUTS


_NO_BROKER = _NoBroker("127.0.0.1:1")


@as_command
def main() -> int:
    """Run the drivers' code paths; the JVM writes its loaded classes when it exits. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Makes an archive of the classes that a driver loads.")
    parser.add_argument("jars", type=Path, help="the folder of the connector's jars, SPARK_KAFKA_JARS_DIR")
    jars_dir: Path = parser.parse_args().jars
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        archive = make(SparkSettings("local[2]", jars_dir, Path(scratch)))
    if not archive.exists():
        log.error("%s was not written: this Java may lack the archive of its own classes (java -Xshare:dump)", archive)
        return 1
    log.info("%s, %d MB, in %.0f s", archive, archive.stat().st_size >> 20, time.monotonic() - began)
    return 0


def make(spark: SparkSettings) -> Path:
    """Write the archive, replacing an existing one. Returns its path; there is no file if Java could not write it."""
    archive = spark.jars_dir.resolve() / ARCHIVE_NAME
    archive.unlink(missing_ok=True)
    fresh = spark.scratch_dir / ARCHIVE_NAME  # the JVM also writes one after an error
    options = f"{java_options(spark.jars_dir)} -Xlog:disable -Xlog:all=error:stderr"
    options += f' "-XX:ArchiveClassesAtExit={fresh}"'
    configuration = {**STREAM_CONFIGURATION, "spark.driver.extraJavaOptions": options}
    session = open_session(spark, "class-archive", "1g", configuration)
    session.sparkContext.setLogLevel("OFF")  # the calls without a broker would log errors
    gateway = session.sparkContext._gateway
    assert gateway is not None
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as beside:
        batch = beside.submit(_run_batch, session)
        _run_stream(session, folder)
        batch.result()
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM exits when its standard input is closed
    gateway.proc.wait(_ENDING_S)
    if fresh.exists():
        shutil.move(fresh, archive)
    return archive


def _run_stream(session: SparkSession, folder: str) -> None:
    """Run the stream's code paths, without a result."""
    context = session.sparkContext

    def join(_batch: DataFrame, _: int) -> None:
        held = context.broadcast(b"rows")
        context.parallelize([[0]], 1).map(lambda _: held.value).collect()
        held.destroy()

    ticks = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query = ticks.writeStream.foreachBatch(join).option("checkpointLocation", folder).start()
    _wait_for_batches(query)
    query.stop()


def _run_batch(session: SparkSession) -> None:
    """Run the operations of a rebuild, and load the classes of Spark's Kafka source, which plans the stream."""
    offsets = '{"board": {"0": 0}}', '{"board": {"0": 1}}'
    read = session.read.format("kafka").option("assign", '{"board": [0]}').options(**PLANNING_OPTIONS)
    read = read.option("startingOffsets", offsets[0]).option("endingOffsets", offsets[1])
    _expect_failure(lambda: read.options(**_NO_BROKER.spark()).load().count())
    _shuffle(session.sparkContext)


def _wait_for_batches(query: StreamingQuery) -> None:
    """Wait until some batches are committed. Raises the query's error, or TimeoutError."""
    deadline = time.monotonic() + _STREAMING_S
    while (progress := query.lastProgress) is None or progress.batchId < _BATCHES - 1:  # ids begin at 0
        if (error := query.exception()) is not None:
            raise error
        if time.monotonic() > deadline:
            raise TimeoutError(f"the stream's batches took longer than {_STREAMING_S:.0f} s")
        time.sleep(0.1)


def _shuffle(context: SparkContext) -> None:
    """Run the operations of a rebuild: two shuffles of bytes, and a union of their partitions."""
    counted = context.accumulator(0)
    pairs = context.parallelize([(number, b"blob") for number in range(4)], 2).partitionBy(2, identity_partitioner)
    again = pairs.mapPartitionsWithIndex(lambda _, each: each).partitionBy(2, identity_partitioner)
    pairs.union(again).foreach(lambda _: counted.add(1))


def _expect_failure(call: Callable[[], Any]) -> None:
    """Make a call that fails because there is no broker."""
    try:
        call()
    except TASK_ERRORS as exc:
        log.debug("as expected: %s", exc)


if __name__ == "__main__":
    sys.exit(main())
