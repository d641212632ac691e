"""Spark's daemon of Python workers, with what the tasks of a rebuild import loaded once, before workers are forked.

Named by `spark.python.daemon.module`. Without it each worker imports them for itself.
"""

import sys
from collections.abc import Sequence
from types import ModuleType

import pyarrow as pa
from pyspark.daemon import manager

import spark_jobs.batch.tasks  # noqa: F401


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


if __name__ == "__main__":
    settle_without_pandas()
    manager()  # type: ignore[no-untyped-call]
