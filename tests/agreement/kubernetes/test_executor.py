"""The command of an executor's pod, really run: it registers with a driver of ours, and runs tasks with its code."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
import yaml

from stack.layout import PROJECT_ROOT, Layout
from stack.machine import LOOPBACK, find_java
from tests.servers import wait_until
from tests.support.pipeline import ROOT
from tests.support.spark_cluster import spark_cluster

pytestmark = [pytest.mark.servers, pytest.mark.long]

JARS_OF_IMAGE = "/opt/venv/lib/python3.11/site-packages/pyspark/jars"
STARTED_S = 60
DRIVER = """
import os, sys
from pathlib import Path
from include.runtime.settings import SparkSettings
from spark_jobs.connectors.session import open_context
master, jars, folder = sys.argv[1:]
context = open_context(SparkSettings(master, Path(jars), Path(folder) / "scratch"), "kubernetes", "512m")
conf = context._jsc.sc().conf()
port, secret = conf.get("spark.driver.port"), conf.get("spark.authenticate.secret")
options = ["-Dspark.authenticate=true", f"-Dspark.driver.port={port}"]
options += conf.get("spark.executor.extraJavaOptions").split()
written = Path(folder) / "executor.part"
written.write_text("\\n".join([port, context.applicationId, secret, *options]))
written.rename(Path(folder) / "executor")
def task(_):
    import include.contracts.day
    yield include.contracts.day.__file__
print("file", *context.parallelize([0], 1).mapPartitions(task).collect())
context.stop()
"""


def test_the_command_of_an_executors_pod_runs_tasks(tmp_path: Path) -> None:
    container = yaml.safe_load((PROJECT_ROOT / "deploy/kubernetes/executor.yaml").read_text())["spec"]["containers"][0]
    assert JARS_OF_IMAGE in container["command"][-1]
    command = [part.replace(JARS_OF_IMAGE, f"{Path(pyspark.__file__).parent}/jars") for part in container["command"]]
    java = find_java(os.environ)
    work = tmp_path / "work"
    work.mkdir()
    # without workers Spark itself starts no executor
    with spark_cluster(tmp_path / "cluster", workers=0) as cluster, (tmp_path / "driver.log").open("wb") as stderr:
        variables = {**os.environ, **cluster.variables(), "PYTHONPATH": str(ROOT)}
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, cluster.master, str(Layout.of().spark_jars), str(tmp_path)],
            env=variables, stdout=subprocess.PIPE, stderr=stderr, text=True,
        )  # fmt: skip
        executor = None
        try:
            wait_until((tmp_path / "executor").exists, STARTED_S, f"the driver runs, see {tmp_path / 'driver.log'}")
            port, application, secret, *options = (tmp_path / "executor").read_text().splitlines()
            environment = {
                "PATH": f"{java}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}", "_SPARK_AUTH_SECRET": secret,
                "SPARK_EXECUTOR_MEMORY": "512m", "SPARK_EXECUTOR_CORES": "1", "SPARK_EXECUTOR_ID": "1",
                "SPARK_DRIVER_URL": f"spark://CoarseGrainedScheduler@{LOOPBACK}:{port}",
                "SPARK_APPLICATION_ID": application, "SPARK_RESOURCE_PROFILE_ID": "0",
                "SPARK_EXECUTOR_POD_IP": LOOPBACK, "SPARK_EXECUTOR_POD_NAME": "executor-1", "SPARK_LOCAL_IP": LOOPBACK,
                "PYTHONPATH": "pipeline-code",  # as spark.executorEnv gives it
                **{f"SPARK_JAVA_OPT_{number}": option for number, option in enumerate(options)},
            }  # fmt: skip
            with (tmp_path / "executor.log").open("wb") as log:
                executor = subprocess.Popen(command, cwd=work, env=environment, stdout=log, stderr=log)
            output, _ = driver.communicate(timeout=2 * STARTED_S)
        finally:
            for process in (driver, executor):
                if process is not None:
                    process.kill()
                    process.wait()
    assert driver.returncode == 0, (tmp_path / "driver.log").read_text()[-3000:]
    files = [line.split()[1] for line in output.splitlines() if line.startswith("file ")]
    assert files == [str(work / "pipeline-code" / "include" / "contracts" / "day.py")]
