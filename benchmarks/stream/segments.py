"""Measures the segments of a table alone, by the number of members; computes the figures of 500 million from them.

`python -m benchmarks.stream.segments [MEMBERS …]`: 5 and 50 million by default, which take 4 GB of disk.
"""

import gc
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.report import Report, median
from demo import records
from include.contracts.pipelines import SITE_PIPELINE
from spark_jobs.decoding.arrow import table_schema
from spark_jobs.state.segments import Keys, Origin, SegmentStore, newest_of
from stack.layout import Layout

_SIZES = (5_000_000, 50_000_000)
_MODEL = 500_000_000
_STEP = 1_000_000
_LOOKUPS = (5_000, 250_000)
_CHANGED = 0.01
_ROUNDS = 5
_ORIGIN = Origin("cluster", "member", "topic", "definition", "timeline")
_SCHEMA = table_schema(SITE_PIPELINE)


def measure(members: int, folder: Path, report: Report) -> dict[str, float]:
    """Add a row of figures: seconds, milliseconds and bytes of a table with so many members."""
    figures: dict[str, float] = {}
    random, offset, store = np.random.default_rng(7), 0, _opened(folder)

    def append(keys: Iterator[Keys]) -> None:
        nonlocal offset
        for part in keys:
            store.append(_rows(part, offset), {0: offset}, {0: offset + len(part)})
            offset += len(part)

    began = time.monotonic()
    append(np.arange(first, min(first + _STEP, members)) for first in range(0, members, _STEP))
    store.merge()
    figures["write s"] = time.monotonic() - began
    figures["GB"] = store.size / 1e9
    store.close()
    for name in ("cold open s", "open s"):
        if name.startswith("cold"):
            _drop_cached(folder)
        began = time.monotonic()
        store = _opened(folder)
        figures[name] = time.monotonic() - began
        store.close()
    for count in _LOOKUPS:
        found = []
        for _ in range(_ROUNDS):
            keys = np.unique(random.integers(0, members, count))
            began = time.monotonic()
            rows = newest_of(store.find(keys), _SCHEMA)
            found.append((time.monotonic() - began) * 1e3)
            assert rows.num_rows == len(keys)
        figures[f"{count:,} keys ms"] = median(found)
    append(iter([np.unique(random.integers(0, members, int(members * _CHANGED)))]))
    began = time.monotonic()
    store.merge()
    figures["merge 1% s"] = time.monotonic() - began
    assert store.rows == (members, 0)
    figures["anonymous MB"] = _anonymous_mb()
    store.close()
    report.add({"run": f"{members:,} members", **{name: round(value, 2) for name, value in figures.items()}})
    return figures


def _model(sizes: Sequence[int], found: Sequence[dict[str, float]]) -> dict[str, object]:
    """Return the row of `_MODEL` members, from the last two: lookups grow by the same power of the size, memory not."""
    (small, large), (before, last) = sizes[-2:], found[-2:]
    power = np.log(_MODEL / large) / np.log(large / small)
    grown = {
        name: value * ((value / before[name]) ** power if name.endswith("ms") else _MODEL / large)
        for name, value in last.items()
    }
    grown["anonymous MB"] = last["anonymous MB"]
    return {"run": f"{_MODEL:,}, model", **{name: round(float(value), 2) for name, value in grown.items()}}


def _opened(folder: Path) -> SegmentStore:
    store = SegmentStore(folder, _ORIGIN, _SCHEMA)
    store.open()
    return store


def _rows(keys: Keys, offset: int) -> pa.Table:
    """Return a version of each key, with texts as long as those of the reference volume."""
    names = {"deleted": pa.array(np.zeros(len(keys), bool)), "partition": pa.array(np.zeros(len(keys), np.int32)),
             "offset": pa.array(np.arange(offset, offset + len(keys)))}  # fmt: skip
    texts = _texts()
    columns = [
        pa.array(keys) if number == 0
        else names[field.name] if field.name in names
        else texts[field.name].take(pa.array(keys % len(texts[field.name]))) if field.name in texts
        else pa.array(keys).cast(field.type)
        for number, field in enumerate(_SCHEMA)
    ]  # fmt: skip
    return pa.table(columns, schema=_SCHEMA)


def _texts() -> dict[str, pa.Array]:
    members = list(records.members(1_000, 7))
    return {name: pa.array([one[name] for one in members]) for name in ("nickname", "city", "phone")}


def _drop_cached(folder: Path) -> None:
    gc.collect()  # mapped files keep their pages
    for file in folder.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _anonymous_mb() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1e3


def main() -> int:
    """Measure and print; returns 0."""
    folder = Layout.of().state / "bench-segments"
    report, sizes = Report("segments"), [int(each) for each in sys.argv[1:]] or [*_SIZES]
    found: list[dict[str, float]] = []
    try:
        for members in sizes:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            found.append(measure(members, folder, report))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if len(found) > 1:
        report.add(_model(sizes, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
