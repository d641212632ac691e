#!/usr/bin/env bash
# pyspark 4.2.0 (Java 17): Spark adds -XX:+IgnoreUnrecognizedVMOptions to the options of its JVMs, since it passes some
# that not every Java has. So an -XX option in `spark.driver.extraJavaOptions` that is misspelled, or that Java does not
# have any more, has no effect and causes no warning, and the environment page shows it as if it had. Java itself
# refuses to start with such an option.
#
# Seen: "-XX:+UseParalelGC: java ends with 1, Spark starts, parallel collector False", "-XX:+UseParallelGC: java ends
# with 0, Spark starts, parallel collector True".
# Fails if another version is installed, or if this changes. Needs Java 17 on PATH.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyspark==4.2.0
cat > "$folder/options.py" <<'PYTHON'
import subprocess
import sys

import pyspark
from pyspark.sql import SparkSession


def uses_parallel_collector(option):
    """Start a session with the option, and ask its JVM for its collectors."""
    settings = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.driver.extraJavaOptions": option}
    spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    management = spark.sparkContext._jvm.java.lang.management.ManagementFactory
    assert option in list(management.getRuntimeMXBean().getInputArguments())
    names = [bean.getName() for bean in management.getGarbageCollectorMXBeans()]
    jvm = spark.sparkContext._gateway.proc
    spark.stop()
    jvm.stdin.close()  # the JVM ends, and removes its files
    jvm.wait()
    return "PS Scavenge" in names


if len(sys.argv) == 2:  # a process for each JVM
    print(uses_parallel_collector(sys.argv[1]))
    sys.exit()

found = []
for option in ("-XX:+UseParalelGC", "-XX:+UseParallelGC"):
    java = subprocess.run(["java", option, "-version"], capture_output=True).returncode
    spark = subprocess.check_output([sys.executable, __file__, option], text=True, stderr=subprocess.DEVNULL).strip()
    print(f"{option}: java ends with {java}, Spark starts, parallel collector {spark}")
    found.append((java, spark))
sys.exit(pyspark.__version__ != "4.2.0" or found != [(1, "False"), (0, "True")])
PYTHON
export SPARK_SUBMIT_OPTS=-Djava.io.tmpdir="$folder" SPARK_LOCAL_DIRS="$folder"
"$folder/venv/bin/python" "$folder/options.py"
