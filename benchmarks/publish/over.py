"""A day published over as many live rows, undone and redone, while the speed layer goes on writing into it."""

import threading
import time
from contextlib import closing
from dataclasses import dataclass, field

from benchmarks.publish.parts import DAY, Bench
from benchmarks.report import Goal, Report, median
from include.integrity.comparison import verify
from include.integrity.covering import cover
from include.integrity.publication import publish, redo, undo
from tests.support.serving import opened_store, row, serve

_PUBLISH_S = 2.0
_SINK_S = 1.0
_BATCH_ROWS = 20
_PAUSE_S = 0.02


@dataclass
class Sink:
    """Small batches into the day, one after the other, as long as the block; how long each took."""

    bench: Bench
    took_s: list[float] = field(default_factory=list)

    def __enter__(self) -> "Sink":
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def take(self) -> float:
        """The longest batch since the last call."""
        taken, self.took_s = self.took_s, []
        return max(taken, default=0.0)

    def _serve(self) -> None:
        offset = 2_000_000_000 + time.monotonic_ns() // 1_000_000
        with closing(opened_store(self.bench.settings, offset)) as store:
            while not self._ended.wait(_PAUSE_S):
                rows = [row(10**12 + offset + n, offset + n) for n in range(_BATCH_ROWS)]
                offset += _BATCH_ROWS
                began = time.monotonic()
                serve(store, rows)
                self.took_s.append(time.monotonic() - began)


def over(bench: Bench, rounds: int) -> Report:
    """Each step beside the longest batch of the sink meanwhile. `cover` is what the night leaves to later."""
    report = Report("over")
    publishing, waits = [], []
    bench.serve(DAY, bench.rows)
    with Sink(bench) as sink:
        for number in range(1, rounds + 1):
            bench.build(DAY, f"over {number}", bench.rows)
            for name, step in (
                ("verify", lambda: verify(bench.settings, DAY)),
                ("publish", lambda: publish(bench.settings, DAY)),
                ("undo", lambda: undo(bench.settings, DAY, "benchmark", to=0)),
                ("redo", lambda: redo(bench.settings, DAY, "benchmark")),
                ("cover", lambda: cover(bench.settings, DAY)),
                ("undo when covered", lambda: undo(bench.settings, DAY, "benchmark", to=0)),
            ):
                sink.take()
                began = time.monotonic()
                step()
                took_s = time.monotonic() - began
                wait_s = sink.take()
                waits.append(wait_s)
                publishing += [took_s] if name == "publish" else []
                report.add({"run": f"{name} {number}", "s": round(took_s, 2), "longest batch s": round(wait_s, 2)})
    report.judge(
        Goal("publishing over as many live rows, s, median of the rounds", median(publishing), at_most=_PUBLISH_S),
        Goal("longest batch of the sink meanwhile, s", max(waits), at_most=_SINK_S),
    )
    return report
