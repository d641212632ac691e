#!/usr/bin/env bash
# pyspark 4.2.0 (Java 17): `trigger(processingTime=…)` does not count from the start of the query. Batches begin at
# multiples of the interval since 1970, so all queries with the same interval begin theirs at the same instant, whenever
# they were started. Where one query reads what another one writes, its records wait for nearly a whole interval, and
# the cores are busy and idle by turns.
#
# Seen: "started 1.3 s apart, interval 3 s: batches begin 0 to 2 ms after multiples of it, in both queries".
# Fails if another version is installed, or if a batch after the first begins half a second or more after a multiple.
# Needs Java 17 on PATH.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyspark==4.2.0
cat > "$folder/triggers.py" <<'PYTHON'
import datetime as dt
import sys
import time

import pyspark
from pyspark.sql import SparkSession

INTERVAL_S, APART_S, BATCHES = 3, 1.3, 4


def started(spark, name):
    writer = spark.readStream.format("rate").load().writeStream.queryName(name).format("noop")
    return writer.option("checkpointLocation", f"{sys.argv[1]}/{name}").trigger(
        processingTime=f"{INTERVAL_S} seconds").start()


settings = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.sql.shuffle.partitions": "1"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
queries = [started(spark, "first")]
time.sleep(APART_S)
queries.append(started(spark, "second"))
time.sleep(INTERVAL_S * (BATCHES + 2))
after = []
for query in queries:
    begun = [dt.datetime.fromisoformat(each["timestamp"]).timestamp() for each in query.recentProgress]
    after.append([round(1000 * (each % INTERVAL_S)) for each in begun[1:]])  # a query begins its first batch at once
    query.stop()
spark.stop()

print(f"started {APART_S} s apart, interval {INTERVAL_S} s: batches begin {min(map(min, after))} to "
      f"{max(map(max, after))} ms after multiples of it, in both queries")
sys.exit(pyspark.__version__ != "4.2.0" or min(map(len, after)) < BATCHES or max(map(max, after)) >= 500)
PYTHON
export SPARK_SUBMIT_OPTS=-Djava.io.tmpdir="$folder" SPARK_LOCAL_DIRS="$folder"
"$folder/venv/bin/python" "$folder/triggers.py" "$folder"
