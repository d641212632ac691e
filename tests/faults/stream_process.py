"""The real driver, whose clock can be set, with a thread that fills the heap of its JVM when a file says so.

Only the driver itself reaches its JVM. It writes and merges segments of its table every second, in place of every
minute and hour. All else is `spark_jobs/stream.py`. Its JVM has the machine's time.
"""

import os
import sys
import threading
import time
from pathlib import Path

from pyspark import SparkContext

from include.runtime.failpoints import FOLDER_VARIABLE
from spark_jobs.state import segments, table_state
from tests.support import set_clock
from tests.support.pipeline import ROOT

EXHAUST = "exhaust"
_LOOK_S = 0.05
_PIECE = 16_000_000


def _exhaust_when_told(order: Path) -> None:
    while True:
        context = SparkContext._active_spark_context
        if context is not None and context._jvm is not None and order.exists():
            order.unlink()
            kept = context._jvm.java.util.ArrayList()
            while True:  # until the JVM ends, which is an error here
                kept.add(context._jvm.java.nio.ByteBuffer.allocate(_PIECE))
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    order = Path(os.environ[FOLDER_VARIABLE]) / EXHAUST
    threading.Thread(target=_exhaust_when_told, args=(order,), daemon=True).start()
    table_state.FLUSH_S = segments.ERASE_S = 1.0
    segments.ERASE_DURATIONS = 0
    set_clock.install()
    sys.argv[0] = str(ROOT / "spark_jobs" / "stream.py")
    set_clock.run(sys.argv[0])
