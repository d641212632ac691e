"""Keeps pyarrow from importing pandas, which nothing here uses: the import takes a third of a second."""

import sys
from collections.abc import Sequence
from types import ModuleType


class _NoPandas:
    """A finder that makes imports of pandas fail."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Raise ImportError for pandas; return None for other modules."""
        if name == "pandas":
            raise ImportError("hidden")


def hide_pandas_from_pyarrow() -> None:
    """Make pyarrow record that there is no pandas. It looks once, when it converts the first value of Python.

    Modules do that as they are imported, so this comes before them.
    """
    import pyarrow as pa

    hiding = _NoPandas()
    sys.meta_path.insert(0, hiding)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(hiding)
