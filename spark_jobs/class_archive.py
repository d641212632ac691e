"""Makes an archive of the classes that a driver loads, so that the JVM of every driver starts seconds sooner.

    python -m spark_jobs.class_archive .state/jars/spark-kafka      writes classes.jsa beside these jars; half a minute

A driver loads 19,000 classes. Reading, checking and linking them is a sixth of what a cold start costs on two cores;
from an archive (application class data sharing) they are mapped. It fits the Java and the jars that it was made with:
a JVM that finds others goes on without. `make setup` and the image's build make it; nothing needs it.
Exit codes: 0 it is there; 1 it could not be made.
"""

import argparse
import datetime as dt
import json
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from include.clock import rfc3339
from include.command import as_command
from include.contracts.definition import BOARD_DETAIL_PIPELINE as PIPELINE
from include.settings import SparkSettings
from spark_jobs.batch.blobs import own
from spark_jobs.connectors.kafka import CONSUMER_OPTIONS, write_records
from spark_jobs.connectors.session import ARCHIVE_NAME, STREAM_CONFIGURATION, java_options, open_session
from spark_jobs.schemas import RECORD
from spark_jobs.transforms.decode import decode, valid
from spark_jobs.transforms.details import to_records
from spark_jobs.transforms.join_rule import board_details_of_newest
from spark_jobs.transforms.versions import newest_versions

log = logging.getLogger("class_archive")

_NOBODY = "127.0.0.1:1"  # the clients are made, and the calls fail: no broker is needed
_QUICKLY = {"kafka.default.api.timeout.ms": "1000", "kafka.request.timeout.ms": "500",
            "kafkaConsumer.pollTimeoutMs": "500", "kafka.max.block.ms": "500"}  # fmt: skip
_STREAMING_S = 3
_AT = dt.datetime(2026, 11, 20, 9, 30, tzinfo=dt.UTC)
_TIMES = {"createdAt": rfc3339(_AT), "modifiedAt": rfc3339(_AT)}
_MEMBER = {"id": 7, "nickname": "하늘", "city": "서울", **_TIMES}
_BOARD = {"id": 8, "memberId": 7, "title": "첫 글", "body": "본문", **_TIMES}
_ENDING_S = 120.0


@as_command
def main() -> int:
    """Run what drivers run, and have the JVM write down its classes when it ends."""
    parser = argparse.ArgumentParser(description="Makes an archive of the classes that a driver loads.")
    parser.add_argument("jars", type=Path, help="the folder of the connector's jars, SPARK_KAFKA_JARS_DIR")
    jars_dir: Path = parser.parse_args().jars
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        archive = make(SparkSettings("local[2]", jars_dir, Path(scratch)))
    if not archive.exists():
        log.error("%s was not written: this Java may have no archive of its own classes to begin from", archive)
        return 1
    log.info("%s, %d MB, in %.0f s", archive, archive.stat().st_size >> 20, time.monotonic() - began)
    return 0


def make(spark: SparkSettings) -> Path:
    """Write the archive, replacing one that is there. Returns where it is to be; it is not, when Java refused."""
    archive = spark.jars_dir.resolve() / ARCHIVE_NAME
    archive.unlink(missing_ok=True)
    fresh = archive.with_suffix(".new")
    options = f'{java_options(spark.jars_dir)} "-XX:ArchiveClassesAtExit={fresh}" -Xlog:disable -Xlog:all=error:stderr'
    configuration = {**STREAM_CONFIGURATION, "spark.driver.extraJavaOptions": options}
    session = open_session(spark, "class-archive", "1g", configuration)
    session.sparkContext.setLogLevel("OFF")  # of the calls that nobody answers
    gateway = session.sparkContext._gateway
    assert gateway is not None
    with tempfile.TemporaryDirectory() as folder:
        _run_everything(session, folder)
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with it
    gateway.proc.wait(_ENDING_S)
    if fresh.exists():
        fresh.rename(archive)
    return archive


def _run_everything(session: SparkSession, folder: str) -> None:
    """What the drivers do, over a few records, into nothing."""
    boards, members = _records(session, _BOARD), _records(session, _MEMBER)
    table = newest_versions(valid(decode(members, PIPELINE.table)).repartition(2, "id"), "id").persist()
    table.count()

    def join(batch: DataFrame, _: int) -> None:
        placed = batch.repartition(2, "member_id").sortWithinPartitions("member_id", "partition", "offset")
        details = board_details_of_newest(placed, [table], PIPELINE)
        to_records(details, PIPELINE).write.format("noop").mode("append").save()
        _fail(lambda: write_records(to_records(details, PIPELINE), _NOBODY, PIPELINE.output.name))

    ticks = (
        session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load().select(F.lit(1).alias("_tick"))
    )
    source = ticks.crossJoin(F.broadcast(boards)).drop("_tick")
    decoded = decode(source, PIPELINE.stream)
    query = decoded.writeStream.foreachBatch(join).option("checkpointLocation", folder).start()
    query.awaitTermination(_STREAMING_S)
    query.stop()
    _shuffle(session.sparkContext)
    places = '{"board": {"0": 0}}', '{"board": {"0": 1}}'
    read = session.read.format("kafka").option("assign", '{"board": [0]}').options(**{**CONSUMER_OPTIONS, **_QUICKLY})
    read = read.option("startingOffsets", places[0]).option("endingOffsets", places[1])
    _fail(lambda: read.option("kafka.bootstrap.servers", _NOBODY).load().count())


def _shuffle(context: SparkContext) -> None:
    """What a rebuild has Spark do: two shuffles of bytes, whose partitions meet in one task."""
    counted = context.accumulator(0)
    pairs = context.parallelize([(number, b"blob") for number in range(4)], 2).partitionBy(2, own)
    again = pairs.mapPartitionsWithIndex(lambda _, each: each).partitionBy(2, own)
    pairs.union(again).foreach(lambda _: counted.add(1))


def _records(session: SparkSession, value: dict[str, Any]) -> DataFrame:
    """One record, as Spark's Kafka source gives it."""
    record = {
        "key": str(value["id"]).encode(), "value": json.dumps(value).encode(), "topic": "t", "partition": 0,
        "offset": 0, "timestamp": _AT, "headers": [],
    }  # fmt: skip
    return session.createDataFrame(pa.Table.from_pylist([record], to_arrow_schema(RECORD)))


def _fail(call: Callable[[], Any]) -> None:
    """Make a call that nobody answers."""
    try:
        call()
    except (Py4JJavaError, PySparkException) as exc:
        log.debug("as expected: %s", exc)


if __name__ == "__main__":
    sys.exit(main())
