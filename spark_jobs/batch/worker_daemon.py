"""Spark's daemon of Python workers, ready for what tasks do before workers are forked from it.

Named by `spark.python.daemon.module`. With Spark's own each worker imports for itself, and each task begins and ends
with 0.1 s of looking through modules.
"""

import gc
import logging
import runpy
import socket
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType


def prefer_installed() -> None:
    """Take PySpark from the package and not from the archives of it inside, which Spark puts first on the path.

    They have no compiled modules, and before every task Python reads the list of all that is in them again.
    """
    archives = [Path(entry) for entry in sys.path if entry.endswith((".zip", ".jar"))]
    found = PathFinder.find_spec("pyspark", [entry for entry in sys.path if Path(entry) not in archives])
    if found is None or found.origin is None:
        return  # executors that have nothing but the archives
    package = Path(found.origin).parent
    for archive in archives:
        if archive.is_relative_to(package):
            sys.path.remove(str(archive))
            sys.path_importer_cache.pop(str(archive), None)


prefer_installed()

import pyarrow as pa  # noqa: E402
from pyspark import daemon  # noqa: E402

import spark_jobs.batch.tasks  # noqa: E402, F401
from spark_jobs.connectors.python_daemon import SPARKS, difference  # noqa: E402


class _NoPandas:
    """Hides pandas from whoever imports it."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Raises ImportError for pandas, knows nothing of other modules."""
        if name == "pandas":
            raise ImportError("hidden")


def settle_without_pandas() -> None:
    """Have pyarrow look for pandas now and find none: loading it takes a third of a second, and no task uses it."""
    hiding = _NoPandas()
    sys.meta_path.insert(0, hiding)
    try:
        pa.array([0])  # it looks once, when it first makes an array of a list
    finally:
        sys.meta_path.remove(hiding)


def acknowledge_at_once() -> None:
    """Have workers acknowledge what comes: Spark sends a task in small pieces, each after the former's acknowledgement.

    Linux would wait 40 ms for more to acknowledge, and Spark's end of the socket cannot be set.
    """
    run_task = daemon.worker

    def worker(sock: socket.socket, authenticated: bool) -> int:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # it does not last, so for each task
        code: int = run_task(sock, authenticated)  # type: ignore[no-untyped-call]
        return code

    daemon.worker = worker


if __name__ == "__main__":
    if found := difference():  # the driver's Spark was another one
        logging.warning("this is Spark's own daemon, not ours: %s", found)
        runpy.run_module(SPARKS, run_name="__main__", alter_sys=True)
    else:
        acknowledge_at_once()
        settle_without_pandas()
        gc.freeze()  # a worker looks for garbage after each task: not among the modules
        daemon.manager()  # type: ignore[no-untyped-call]
