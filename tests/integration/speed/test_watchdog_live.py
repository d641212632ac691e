"""The watchdog detects a frozen JVM during any activity of the driver."""

import os
import signal

from spark_jobs.speed.health.watchdog import Watchdog
from tests.servers import wait_until
from tests.support.freezing import freeze


def test_a_frozen_jvm_ends_the_driver_although_nobody_else_calls_it(spark):
    ends: list[bool] = []
    watchdog = Watchdog(lambda: ends.append(True))
    pid = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    watchdog.watch_jvm(spark, 4.0)
    watchdog.start()
    try:
        spark.range(1).count()
        assert ends == []
        freeze([pid])
        wait_until(lambda: ends == [True], 60, "the watchdog ends the driver")
    finally:
        os.kill(pid, signal.SIGCONT)
        watchdog.stop()
