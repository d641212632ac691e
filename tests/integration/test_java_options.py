"""Options of the JVMs that Spark starts, as the JVM has them: Spark makes it ignore those that it does not know."""

import json
import os
import re
import subprocess
import sys

import pytest

from spark_jobs.connectors import session
from stack.layout import Layout
from tests.support.pipeline import ROOT

_ASK = """
import json, sys
from pathlib import Path
from include.runtime.settings import SparkSettings
from spark_jobs.connectors.session import STREAM_CONFIGURATION, open_context, open_session
spark = SparkSettings("local[1]", Path(sys.argv[2]), Path(sys.argv[3]))
if sys.argv[1] == "stream":
    context = open_session(spark, "options", "512m", STREAM_CONFIGURATION).sparkContext
else:
    context = open_context(spark, "options", "512m")
jvm = context._jvm
beans = jvm.java.lang.management.ManagementFactory
flags = beans.getPlatformMXBean(jvm.java.lang.Class.forName("com.sun.management.HotSpotDiagnosticMXBean"))
options = {name: [flags.getVMOption(name).getValue(), flags.getVMOption(name).getOrigin().toString()]
           for name in json.loads(sys.argv[4])}
property = jvm.java.lang.System.getProperty("log4j2.level")
context.stop()
print(json.dumps([options, property]))
"""


def wanted_of(options):
    """The values of -XX options by name: `-XX:+A` is true, `-XX:-A` is false."""
    found = re.findall(r'-XX:([+-]?)(\w+)(?:=([^\s"]+))?', options)
    return {name: value or ("true" if sign == "+" else "false") for sign, name, value in found}


@pytest.mark.parametrize("driver", ["stream", "batch"])
def test_the_jvm_of_a_driver_has_each_option(driver, tmp_path):
    jars = Layout.of().spark_jars
    wanted = wanted_of(session.java_options(jars))
    assert {"ExitOnOutOfMemoryError", "UseParallelGC", "TieredStopAtLevel"} <= wanted.keys()
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_CONF_DIR"}
    said = subprocess.run(
        [sys.executable, "-c", _ASK, driver, jars, tmp_path, json.dumps([*wanted])],
        env={**environment, "PYTHONPATH": str(ROOT)}, cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    options, level = json.loads(said.splitlines()[-1])
    assert {name: value for name, (value, _) in options.items()} == wanted
    assert {origin for _, origin in options.values()} == {"VM_CREATION"}
    assert level == "warn"
