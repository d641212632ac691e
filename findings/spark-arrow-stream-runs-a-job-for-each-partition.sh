#!/usr/bin/env bash
# pyspark 4.2.0 (Java 17): a DataFrame is an Arrow stream since 4.2 (`__arrow_c_stream__`), so `pa.table(df)`, Polars and
# DuckDB read it directly. `df.toArrow()` runs one Spark job, whose tasks run side by side, in the JVM alone. The stream
# runs a job of one task for each partition, one after the other, and each passes its rows through a Python worker:
# however many cores there are, one works. It needs pandas as well, which `toArrow` does not. In return a reader that
# stops early leaves the other partitions alone.
#
# Seen: "toArrow: 1 job of 8 tasks; pa.table: 8 jobs of 1 task; first batch of the stream alone: 1 job of 1 task".
# Fails if another version is installed, or if the jobs are others.
# Needs Java 17 on PATH.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check pyspark==4.2.0 pyarrow==26.0.1 pandas==2.3.3
cat > "$folder/jobs.py" <<'PYTHON'
import json
import sys
import time
import urllib.request

import pyarrow as pa
import pyspark
from pyspark.sql import SparkSession

ROWS, PARTITIONS = 80_000, 8
settings = {"spark.ui.port": "0", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
context = spark.sparkContext
url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/jobs"
frame = spark.range(0, ROWS, 1, PARTITIONS)
seen = 0


def tasks_of(call):
    """Return the number of tasks of each job that the call ran."""
    global seen
    assert call().num_rows
    jobs = []
    for _ in range(3):  # the listener of the UI is behind
        time.sleep(1)
        jobs = json.load(urllib.request.urlopen(url))
    ran, seen = len(jobs) - seen, len(jobs)
    return [job["numTasks"] for job in jobs[:ran]]  # the newest come first


whole = tasks_of(frame.toArrow)
stream = tasks_of(lambda: pa.table(frame))
first = tasks_of(lambda: pa.RecordBatchReader.from_stream(frame).read_next_batch())
spark.stop()
print(f"toArrow: {len(whole)} job of {whole[0]} tasks; pa.table: {len(stream)} jobs of {stream[0]} task; "
      f"first batch of the stream alone: {len(first)} job of {first[0]} task")
expected = ([PARTITIONS], [1] * PARTITIONS, [1])
sys.exit(pyspark.__version__ != "4.2.0" or (whole, stream, first) != expected)
PYTHON
export SPARK_SUBMIT_OPTS=-Djava.io.tmpdir="$folder" SPARK_LOCAL_DIRS="$folder" PYSPARK_PYTHON="$folder/venv/bin/python"
"$folder/venv/bin/python" "$folder/jobs.py"
