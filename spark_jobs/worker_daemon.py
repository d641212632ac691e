"""Spark's daemon of Python workers, with the tasks' modules imported before it forks workers.

`spark.python.daemon.module` names it. With Spark's own daemon each worker imports them itself, and each task starts and
ends with 0.1 s of scanning modules.
"""

import gc
import socket
import sys
from importlib.machinery import PathFinder
from pathlib import Path


def prefer_installed() -> None:
    """Import PySpark from the installed package, not from the zip archives in it, which Spark puts first on the path.

    The archives have no compiled modules, and Python reads their directory again before every task.
    """
    archives = [Path(entry) for entry in sys.path if entry.endswith((".zip", ".jar"))]
    found = PathFinder.find_spec("pyspark", [entry for entry in sys.path if Path(entry) not in archives])
    if found is None or found.origin is None:
        return  # this executor has only the archives
    package = Path(found.origin).parent
    for archive in archives:
        if archive.is_relative_to(package):
            sys.path.remove(str(archive))
            sys.path_importer_cache.pop(str(archive), None)


prefer_installed()

from spark_jobs.without_pandas import hide_pandas_from_pyarrow  # noqa: E402

hide_pandas_from_pyarrow()

import pyspark.worker  # noqa: E402, F401 - Spark's daemon leaves that to each worker, for libraries that start threads
from pyspark import daemon  # noqa: E402

import spark_jobs.batch.tasks  # noqa: E402
import spark_jobs.speed.join_tasks  # noqa: E402, F401
from include.runtime.command import collect_garbage_rarely  # noqa: E402


def acknowledge_at_once() -> None:
    """Make workers send TCP acknowledgements at once.

    Spark sends a task in small pieces, each after the acknowledgement of the one before (Nagle's algorithm). Linux
    delays an acknowledgement by 40 ms, and the options of Spark's end of the socket cannot be set.
    """
    run_task = daemon.worker

    def worker(sock: socket.socket, authenticated: bool) -> int:
        if sock.family != socket.AF_UNIX:  # `spark.python.unix.domain.socket.enabled`
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # not permanent, so it is set for each task
        code: int = run_task(sock, authenticated)
        return code

    daemon.worker = worker


if __name__ == "__main__":
    acknowledge_at_once()
    collect_garbage_rarely()
    gc.collect()
    gc.freeze()  # a worker collects garbage after each task, and would traverse all modules
    daemon.manager()
