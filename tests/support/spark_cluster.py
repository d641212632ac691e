"""A standalone Spark cluster of processes on loopback: a master that recovers, and workers without the project."""

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from include.runtime.process_tree import descendants, kill, kill_with_children
from stack.machine import LOOPBACK, find_java, unused
from stack.services import HttpHealth
from tests.servers import ServerProcess, wait_until

BIN = Path(sys.executable).parent
_BACKEND = b"org.apache.spark.executor.CoarseGrainedExecutorBackend"
_SECRET = "of-the-tests"
_STARTED_S = 60.0


class SparkCluster:
    """Its processes can be killed and started again; the master then knows its workers and applications again.

    Workers have no PYTHONPATH and a working directory of their own, and start executors below that.
    """

    def __init__(self, folder: Path, workers: int = 2, cores: int = 1, memory: str = "1g") -> None:
        """`cores` and `memory` are those that a worker offers."""
        self._folder = folder
        self._cores, self._memory = cores, memory
        self._port, self._page, *pages = unused(2 + workers)
        (folder / "conf").mkdir(parents=True)
        (folder / "recovery").mkdir()
        defaults = f"spark.authenticate true\nspark.authenticate.secret {_SECRET}\n"
        (folder / "conf" / "spark-defaults.conf").write_text(defaults)
        self._master = self._process("master", self._page)
        self._pages = pages
        self._workers = [self._process(f"worker-{number}", page) for number, page in enumerate(pages)]

    @property
    def master(self) -> str:
        """The master's URL, for SPARK_MASTER."""
        return f"spark://{LOOPBACK}:{self._port}"

    def variables(self, cores: int | None = None, executor_memory: str = "512m") -> Mapping[str, str]:
        """The variables of a driver; `cores` is the most that it takes of the cluster (None: all)."""
        if cores is not None:
            with (self._folder / "conf" / "spark-defaults.conf").open("a") as defaults:
                defaults.write(f"spark.cores.max {cores}\n")
        return {
            "SPARK_MASTER": self.master,
            "SPARK_CONF_DIR": str(self._folder / "conf"),
            "SPARK_EXECUTOR_MEMORY": executor_memory,
            "SPARK_LOCAL_IP": LOOPBACK,
        }

    def start(self) -> None:
        """Start the master and all workers."""
        self.start_master()
        for number in range(len(self._workers)):
            self.start_worker(number)

    def start_master(self) -> None:
        """Start the master, which recovers what it knew."""
        options = f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={self._folder / 'recovery'}"
        self._master.start(self._command("master.Master", "--port", str(self._port), "--webui-port", str(self._page),
                                         SPARK_MASTER_OPTS=options))  # fmt: skip

    def start_worker(self, number: int) -> None:
        """Start a worker. It has registered with the master, or will once that runs."""
        work = self._folder / f"worker-{number}"
        work.mkdir(exist_ok=True)
        self._workers[number].start(
            self._command("worker.Worker", "--webui-port", str(self._pages[number]), "--cores", str(self._cores),
                          "--memory", self._memory, "--work-dir", str(work), self.master,
                          SPARK_LOCAL_DIRS=str(work / "scratch")))  # fmt: skip

    def kill_master(self) -> None:
        """SIGKILL the master; workers and executors go on."""
        self._master.kill()

    def kill_worker(self, number: int) -> None:
        """SIGKILL a worker with its executors, as a lost machine would."""
        process = self._workers[number]
        if process.pid is not None:
            for pid in descendants(process.pid):
                kill(pid)
        process.kill()

    def executors(self, number: int | None = None) -> list[int]:
        """Return the pids of the executors of a worker, or of all."""
        workers = self._workers if number is None else [self._workers[number]]
        found = [pid for worker in workers if worker.pid is not None for pid in descendants(worker.pid)]
        return [pid for pid in found if _is_executor(pid)]

    def kill_executor(self, pid: int) -> None:
        """SIGKILL an executor with its Python workers; the worker goes on and starts another one."""
        kill_with_children(pid)

    def stop(self) -> None:
        """Stop all processes."""
        for number in range(len(self._workers)):
            self.kill_worker(number)
        self._master.kill()

    def _process(self, name: str, page: int) -> ServerProcess:
        log = self._folder / f"{name}.log"
        return ServerProcess(name, log, HttpHealth(f"http://{LOOPBACK}:{page}/"), signal.SIGTERM)

    def _command(self, main: str, *arguments: str, **variables: str) -> list[str]:
        environment = {
            "PATH": f"{BIN}:{os.environ['PATH']}", "LANG": "C.UTF-8", "JAVA_HOME": str(find_java(os.environ)),
            "SPARK_CONF_DIR": str(self._folder / "conf"), "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_LOCAL_IP": LOOPBACK, "SPARK_LAUNCHER_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1", **variables,
        }  # fmt: skip
        given = [f"{name}={value}" for name, value in environment.items()]
        return ["env", "-i", f"--chdir={self._folder}", *given, "spark-class", f"org.apache.spark.deploy.{main}",
                "--host", LOOPBACK, *arguments]  # fmt: skip


def _is_executor(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return _BACKEND in command and b"/java\0" in command


@contextmanager
def spark_cluster(folder: Path, workers: int = 2, cores: int = 1, memory: str = "1g") -> Iterator[SparkCluster]:
    """A running cluster, stopped at the end of the block."""
    cluster = SparkCluster(folder, workers, cores, memory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def wait_for_executors(cluster: SparkCluster, count: int) -> None:
    """Wait until the cluster has this many executors."""
    wait_until(lambda: len(cluster.executors()) == count, _STARTED_S, f"{count} executors")
