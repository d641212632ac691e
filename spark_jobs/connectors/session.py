"""Creates Spark sessions and contexts, with the configuration of every driver.

- The port for calls from the JVM into Python, which `foreachBatch` needs, is secured.
- The project's code is packed for executors, so that no worker needs a copy of it. They unpack it into their working
  directory, once per application, and do not import it from the zip file: modules read files that lie beside them, such
  as named queries and definitions of pipelines.
- Shuffle files, spilled rows and cached blocks hold personal data unencrypted, so they have a folder of their own. In
  Spark's default, the system's temporary folder, every local user can read them, and they stay behind when the driver
  is killed.
"""

import atexit
import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

from py4j.java_gateway import JavaObject
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from include.contracts.errors import ConfigurationError
from include.runtime.settings import SparkSettings

_PREFIX = "driver-"


def make_scratch(parent: Path) -> Path:
    """Create a folder for this process, closed to other users, and remove the folders of drivers that have ended.

    Each driver holds a lock on its folder while it runs. Blocks while another driver is in this function.
    """
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    turn = _lock(parent, fcntl.LOCK_EX)
    try:
        for folder in parent.glob(f"{_PREFIX}*"):
            _remove_if_abandoned(folder)
        made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent)).resolve()  # with mode 0700
        _lock(made, fcntl.LOCK_EX)  # the kernel releases it when this process ends
    finally:
        os.close(turn)
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def _remove_if_abandoned(folder: Path) -> None:
    try:
        lock = _lock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # its driver is running
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def _lock(folder: Path, operation: int) -> int:
    """Lock the folder; returns the descriptor that holds the lock. Raises BlockingIOError with LOCK_NB."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, operation)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor


PACKAGES = ("include", "spark_jobs")
FOLDER = "pipeline-code"  # in the working directory of an executor
ROOT = Path(__file__).resolve().parents[2]


def code_configuration(scratch: Path) -> dict[str, str]:
    """Pack the code into a file in `scratch`, and return the settings that bring it to the executors.

    They replace the PYTHONPATH of a worker: its own copy of the project, if it has one, is not used.
    """
    return {
        "spark.archives": f"{pack_code(scratch)}#{FOLDER}",
        "spark.executorEnv.PYTHONPATH": FOLDER,  # relative to the working directory of the executor
    }


def pack_code(folder: Path) -> Path:
    """Write the zip file into the folder; returns its path."""
    target = folder / f"{FOLDER}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for package in PACKAGES:
            for file in sorted((ROOT / package).rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    packed.write(file, file.relative_to(ROOT))
    return target


def require_token(context: SparkContext) -> None:
    """Start the port for calls from the JVM, with the token that calls to the JVM use.

    PySpark starts it without a token, so that every local user could call the driver's functions. Py4J's own method of
    telling the JVM the port creates a client without a token, so the field is set by reflection.
    """
    gateway = context._gateway
    assert gateway is not None
    gateway.callback_server_parameters.auth_token = gateway.gateway_parameters.auth_token
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    client = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getCallbackClient()
    reflection = gateway.jvm.java.lang.Class.forName("py4j.CallbackClient").getDeclaredField("authToken")
    reflection.setAccessible(True)
    reflection.set(client, gateway.gateway_parameters.auth_token)


# For the stream, a long-running application.
STREAM_CONFIGURATION = {
    # Spark's default starts a `readlink` process for each file that it renames: 60 ms per batch
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "50",
}
# Options that plans, logs and Spark's pages never show: the default's url, and those of Kafka's clients
REDACTED_OPTIONS = "(?i)url|password|secret|jaas|keystore"
# For every driver. Tasks run in Python, and the JVM plans and moves their results: too little for the C2 compiler to
# pay off, which took a third of a start.
COMPILER_OPTIONS = "-XX:TieredStopAtLevel=1"
WORKER_DAEMON = "spark_jobs.worker_daemon"  # the module that forks Python workers
BATCH_CONFIGURATION = {
    "spark.shuffle.compress": "false",  # blobs live for seconds, and CPU is scarcer than disk
    "spark.shuffle.spill.compress": "false",
}
# A JVM that ran out of memory could go on for hours in a broken state. So it exits, and the supervisor restarts it.
EXIT_OPTION = "-XX:+ExitOnOutOfMemoryError"
ARCHIVE_NAME = "classes.jsa"  # beside the connector's jars, see spark_jobs.class_archive


def connector_jars(folder: Path) -> list[str]:
    """Return the Kafka connector's jars. Raises ConfigurationError if the folder has none."""
    jars = sorted(folder.resolve().glob("*.jar"))
    if not jars:
        raise ConfigurationError(f"SPARK_KAFKA_JARS_DIR={folder}: no jars there; run `make setup`")
    return [str(jar) for jar in jars]


def java_options(jars_dir: Path) -> str:
    """Return the options of the driver's JVM, including the class archive if it can be used.

    With SPARK_CONF_DIR that folder is on the class path, where the archive does not have it.
    """
    archive = jars_dir.resolve() / ARCHIVE_NAME
    shared = ""
    if archive.exists() and not os.environ.get("SPARK_CONF_DIR"):
        # the JVM warns about an archive that does not match; the warning must not go to standard output
        shared = f' "-XX:SharedArchiveFile={archive}" -Xlog:all=off:stdout -Xlog:all=warning:stderr'
    return f"{EXIT_OPTION} -XX:+UseParallelGC -Dlog4j2.level=warn {COMPILER_OPTIONS}{shared}"


def begin_jvm(spark: SparkSettings, driver_memory: str) -> None:
    """Start the JVM of the session that `open_session` will open, in a thread. Raises ConfigurationError."""
    configuration = SparkConf(loadDefaults=False).setAll([*_configuration(spark, driver_memory).items()])

    def run() -> None:
        with contextlib.suppress(Exception):  # `open_session` tries again, and raises it
            SparkContext._ensure_initialized(conf=configuration)

    _prepare_process()
    threading.Thread(target=run, name="begin-jvm", daemon=True).start()


def open_session(
    spark: SparkSettings,
    name: str,
    driver_memory: str = "2g",
    configuration: Mapping[str, str] | None = None,
    shuffle_partitions: int = 4,
) -> SparkSession:
    """Return a session with the Kafka connector. Under spark-submit, the master given there takes precedence."""
    _prepare_process()
    builder = (
        SparkSession.Builder()
        .appName(name)
        .config("spark.sql.shuffle.partitions", str(shuffle_partitions))
        .config("spark.sql.redaction.options.regex", REDACTED_OPTIONS)
        .config("spark.sql.adaptive.enabled", "false")  # for small batches, replanning costs more than it saves
    )
    for key, value in {**_configuration(spark, driver_memory), **(configuration or {})}.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    require_token(session.sparkContext)
    # it logs a warning for each batch that takes longer than the interval, as most of *serve* do under load
    jvm = session.sparkContext._jvm
    assert jvm is not None
    log4j, logger = jvm.org.apache.logging.log4j, "execution.streaming.runtime.ProcessingTimeExecutor"
    log4j.core.config.Configurator.setLevel(f"org.apache.spark.sql.{logger}", log4j.Level.ERROR)
    return session


def open_context(spark: SparkSettings, name: str, driver_memory: str) -> SparkContext:
    """Return a context without a session, for batch jobs, which do not use Spark SQL."""
    _prepare_process()
    every = {
        **_configuration(spark, driver_memory),
        "spark.app.name": name,
        **BATCH_CONFIGURATION,
    }
    context = SparkContext.getOrCreate(SparkConf().setAll(list(every.items())))
    context.setLogLevel("WARN")
    return context


@contextlib.contextmanager
def context_on_demand(spark: SparkSettings, name: str, driver_memory: str) -> Iterator[Callable[[], SparkContext]]:
    """Yield a function that returns `open_context`, which is started by its first call and stopped at the end."""
    start = cache(lambda: open_context(spark, name, driver_memory))
    try:
        yield start
    finally:
        if start.cache_info().currsize:
            start().stop()


def _prepare_process() -> None:
    # PySpark converts timestamps to naive datetimes in the process's local time, so that must be UTC
    os.environ["TZ"] = "UTC"
    time.tzset()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers run the first python3 on PATH
    # the launcher is a separate JVM that only prints the command line, so it needs no optimizing compiler
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@cache  # with one scratch folder for the process
def _configuration(spark: SparkSettings, driver_memory: str) -> dict[str, str]:
    jars = connector_jars(spark.jars_dir)
    is_local = _master(spark).startswith("local")
    scratch = make_scratch(spark.scratch_dir)
    found = {
        "spark.driver.extraClassPath": ":".join(jars),
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": java_options(spark.jars_dir),
        "spark.executor.extraJavaOptions": EXIT_OPTION,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(scratch),
        "spark.python.daemon.module": WORKER_DAEMON,
    }
    if is_local:
        # Without it the driver's ports would serve its blocks, including rows of members, to every local user. In local
        # mode Spark generates the secret. A cluster's secret belongs in the drivers' spark-defaults.conf, because one
        # set here would appear on a command line.
        found["spark.authenticate"] = "true"
    else:
        found |= {"spark.executorEnv.TZ": "UTC", **code_configuration(scratch)}  # TZ as in _prepare_process
    if not is_local or _is_submitted():
        found["spark.jars"] = ",".join(jars)  # for the executors
    if not _is_submitted():
        found["spark.master"] = spark.master
        if is_local:
            loopback = "127.0.0.1"  # local mode: no port of Spark's may be reachable from other machines
            found |= {"spark.driver.host": loopback, "spark.driver.bindAddress": loopback}
    return found


def _master(spark: SparkSettings) -> str:
    """Return the master that the driver will use."""
    if not _is_submitted():
        return spark.master
    SparkContext._ensure_initialized()  # connects to the JVM that spark-submit started
    return SparkConf().get("spark.master", spark.master) or spark.master


def _is_submitted() -> bool:
    """True if spark-submit started this driver, and thus decides the master."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
