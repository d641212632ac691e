"""The Spark session, and what every driver does first."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from include.errors import ConfigurationError
from include.settings import SparkSettings
from spark_jobs.connectors.callbacks import require_token
from spark_jobs.connectors.python_daemon import daemon_configuration
from spark_jobs.connectors.scratch import make_scratch

PR_SET_PDEATHSIG = 1

# Of the long-running application.
STREAM_CONFIGURATION = {
    "spark.scheduler.mode": "FAIR",  # batches before compaction
    # as Hadoop reads it: a URI with nothing escaped
    "spark.scheduler.allocation.file": f"file:{Path(__file__).parents[1] / 'speed' / 'pools.xml'}",
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",  # not Kafka: see write_records
    "spark.sql.codegen.hugeMethodLimit": "8000",  # what the JVM would not compile is better not generated
    "spark.sql.autoBroadcastJoinThreshold": "-1",  # the table's partitioning is the plan
    "spark.sql.execution.arrow.localRelationThreshold": "1MB",  # more than that is work for all tasks, not for one
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",  # each is made in one piece, in memory
    "spark.task.maxDirectResultSize": "64MB",  # a batch for PostgreSQL comes to the driver without a detour
    "spark.sql.inMemoryColumnarStorage.compressed": "false",  # names and numbers hardly repeat: a second to find out
    # Spark's own choice starts a process, `readlink`, for each file it renames: 60 ms a batch
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
    ),
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "50",
}
# Of every driver. The JVM's compilers take a third of a start on few cores; with smaller inlining, half of that.
COMPILER_OPTIONS = "-XX:-DoEscapeAnalysis -XX:InlineSmallCode=1200 -XX:FreqInlineSize=160 -XX:MaxInlineLevel=9"
# Of a batch job, whose JVM runs for seconds and moves bytes: too short for the better of its compilers.
QUICK_OPTIONS = "-XX:TieredStopAtLevel=1"
BATCH_CONFIGURATION = {
    "spark.shuffle.compress": "false",  # blobs live for seconds, and CPU is scarcer than disk
    "spark.shuffle.spill.compress": "false",
}
# A JVM out of memory goes on without what it could not do, for hours: it ends, and its supervisor starts the next one.
EXIT_OPTION = "-XX:+ExitOnOutOfMemoryError"
ARCHIVE_NAME = "classes.jsa"  # beside the connector's jars, see spark_jobs.class_archive


def die_with_parent() -> None:
    """End this driver when its launcher ends.

    Under spark-submit the parent is the JVM: killing it alone would leave this Python driver writing on.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def connector_jars(folder: Path) -> list[str]:
    """The Kafka connector's jars. Raises ConfigurationError when the folder has none."""
    jars = sorted(folder.resolve().glob("*.jar"))
    if not jars:
        raise ConfigurationError(f"SPARK_KAFKA_JARS_DIR={folder}: no jars there; run `make setup`")
    return [str(jar) for jar in jars]


def java_options(jars_dir: Path) -> str:
    """What the driver's JVM is started with; with the archive of its classes where there is one."""
    archive = jars_dir.resolve() / ARCHIVE_NAME
    # one that does not fit is worth a warning, and not on standard output
    shared = (
        f' "-XX:SharedArchiveFile={archive}" -Xlog:all=off:stdout -Xlog:all=warning:stderr' if archive.exists() else ""
    )
    return f"{EXIT_OPTION} -XX:+UseParallelGC -Dlog4j2.level=warn {COMPILER_OPTIONS}{shared}"


def open_session(
    spark: SparkSettings,
    name: str,
    driver_memory: str = "2g",
    configuration: Mapping[str, str] | None = None,
    shuffle_partitions: int = 4,
) -> SparkSession:
    """A session with the Kafka connector. Under spark-submit the master given there wins."""
    _prepare_process()
    builder = (
        SparkSession.Builder()
        .config("spark.sql.session.timeZone", "UTC")  # Day computes with the pipeline's zone explicitly
        .config("spark.sql.shuffle.partitions", str(shuffle_partitions))
        .config("spark.sql.adaptive.enabled", "false")  # small, known batches: planning twice costs more than it saves
    )
    for key, value in {**_configuration(spark, name, driver_memory), **(configuration or {})}.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    require_token(session.sparkContext)
    # it warns of each read that has a consumer group of its own: see spark_jobs.connectors.kafka
    jvm = session.sparkContext._jvm
    assert jvm is not None
    log4j = jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel("org.apache.spark.sql.kafka010.KafkaSourceProvider", log4j.Level.ERROR)
    return session


def open_context(spark: SparkSettings, name: str, driver_memory: str) -> SparkContext:
    """A context without a session, for a batch job, which has no use for Spark's SQL."""
    _prepare_process()
    # the launcher is a JVM of its own that prints one line: nothing of it is worth being compiled well
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    options = f"{java_options(spark.jars_dir)} {QUICK_OPTIONS}"
    every = {
        **_configuration(spark, name, driver_memory),
        **BATCH_CONFIGURATION,
        **daemon_configuration(),
        "spark.driver.extraJavaOptions": options,
    }
    context = SparkContext.getOrCreate(SparkConf().setAll(list(every.items())))
    context.setLogLevel("WARN")
    return context


def _prepare_process() -> None:
    # PySpark hands timestamps to Python as naive local ones: with the process in UTC they mean what they say
    os.environ["TZ"] = "UTC"
    time.tzset()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers run the first python3 on PATH


def _configuration(spark: SparkSettings, name: str, driver_memory: str) -> dict[str, str]:
    jars = connector_jars(spark.jars_dir)
    found = {
        "spark.app.name": name,
        "spark.driver.extraClassPath": ":".join(jars),
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": java_options(spark.jars_dir),
        "spark.executor.extraJavaOptions": EXIT_OPTION,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(make_scratch(spark.scratch_dir)),
    }
    if spark.master.startswith("local"):
        # Or the driver's ports give its blocks, rows of members among them, to every local user. Spark makes the secret
        # itself; a cluster's comes from the spark-defaults.conf of its drivers, as one here would be on a command line.
        found["spark.authenticate"] = "true"
    if not spark.master.startswith("local") or _is_submitted():
        found["spark.jars"] = ",".join(jars)  # for the executors
    if not _is_submitted():
        found["spark.master"] = spark.master
        if spark.master.startswith("local"):
            loopback = "127.0.0.1"  # one machine: nothing of Spark's listens beyond it
            found |= {"spark.driver.host": loopback, "spark.driver.bindAddress": loopback}
    return found


def _is_submitted() -> bool:
    """Was this driver started by spark-submit, which then decides about the master?"""
    return "PYSPARK_GATEWAY_PORT" in os.environ
