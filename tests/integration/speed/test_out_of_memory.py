"""A JVM that is out of memory ends, with the driver or executors that need it, of stream and batch."""

import os
import subprocess
import sys

import pytest

from tests.support.pipeline import ROOT

JVM_RAN_OUT = 3  # the exit code of -XX:+ExitOnOutOfMemoryError
SESSION = """
from include.runtime.settings import SparkSettings
from spark_jobs.connectors.session import open_context, open_session
from stack.layout import Layout
spark = SparkSettings("local[2]", Layout.of().spark_jars)
"""
OPEN = {
    "stream": 'context = open_session(spark, "stream", "512m").sparkContext',
    "batch": 'context = open_context(spark, "batch", "512m")',
}
EXHAUST = """
jvm = context._gateway.proc
kept = context._jvm.java.util.ArrayList()
try:
    for _ in range(10_000):
        kept.add(context._jvm.java.nio.ByteBuffer.allocate(1_000_000))
except Exception as exc:
    print(type(exc).__name__)
print(jvm.wait(30))
"""


@pytest.mark.parametrize("which", OPEN)
def test_a_drivers_jvm_out_of_memory_ends(which):
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", SESSION + OPEN[which] + EXHAUST], cwd=ROOT, env=variables, text=True,
                         capture_output=True, timeout=120, check=False)  # fmt: skip
    assert ran.stdout.split()[-1:] == [str(JVM_RAN_OUT)], f"{ran.stdout} {ran.stderr[-300:]}"


def test_the_executors_do_too(spark):
    """They are in the driver in tests; on a cluster they get this option."""
    assert "-XX:+ExitOnOutOfMemoryError" in spark.sparkContext.getConf().get("spark.executor.extraJavaOptions")
