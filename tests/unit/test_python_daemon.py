"""The daemon from which Python workers are forked, for each kind of PySpark installation."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
from spark_jobs.connectors.python_daemon import OURS

from stack.layout import PROJECT_ROOT

ASK = "from spark_jobs.connectors.python_daemon import daemon_configuration as ask; print(*ask().values())"


def test_the_daemon_is_ours_where_pyspark_is_a_zip_file_as_under_spark_submit():
    archive = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
    path = os.pathsep.join([str(archive), str(PROJECT_ROOT)])
    found = subprocess.run([sys.executable, "-c", ASK], env={**os.environ, "PYTHONPATH": path}, capture_output=True,
                           text=True, check=True)  # fmt: skip
    assert found.stdout.strip() == OURS, found.stderr
