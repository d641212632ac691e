"""The class data archive: created from nothing, used by the next driver, and ignored by a JVM that it does not fit."""

import os
import shutil
import subprocess
import sys

import pytest

from spark_jobs.connectors.session import ARCHIVE_NAME
from stack.layout import Layout
from tests.support.pipeline import ROOT, run_module

SESSION = """
import sys
from pathlib import Path
from include.runtime.settings import SparkSettings
from spark_jobs.connectors.session import open_session
session = open_session(SparkSettings("local[1]", Path(sys.argv[1])), "archive-test", "512m")
print("rows", session.range(7).count())
session.stop()
"""
VARIABLES = {"SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture(scope="module")
def jars(tmp_path_factory):
    """The connector's jars in a place of their own, with an archive made there."""
    folder = tmp_path_factory.mktemp("archive") / "jars"
    folder.mkdir()
    for jar in Layout.of().spark_jars.glob("*.jar"):
        shutil.copy2(jar, folder)
    run_module(["-m", "spark_jobs.class_archive", str(folder)], VARIABLES)
    return folder


def run_session(jars, loaded, **more):
    """Return the output of a driver; the file has the classes that its JVM loaded, and their sources."""
    log = f"-Xlog:class+load:file={loaded}"
    variables = {**os.environ, **VARIABLES, "PYTHONPATH": str(ROOT), "SPARK_SUBMIT_OPTS": log, **more}
    return subprocess.run(
        [sys.executable, "-c", SESSION, str(jars)], cwd=ROOT, env=variables, capture_output=True, text=True,
        timeout=120, check=True,
    )  # fmt: skip


def test_a_driver_takes_its_classes_from_the_archive(jars, tmp_path):
    ran = run_session(jars, tmp_path / "loaded")
    assert "rows 7" in ran.stdout.splitlines()
    lines = (tmp_path / "loaded").read_text().splitlines()
    spark = [line for line in lines if " org.apache.spark." in line and "$$Lambda" not in line]
    assert len(spark) > 1_000
    assert sum("shared objects file (top)" in line for line in spark) > 0.9 * len(spark)


def test_an_archive_that_does_not_fit_is_told_of_and_not_used(jars, tmp_path):
    other = tmp_path / "jars"
    shutil.copytree(jars, other)
    (other / ARCHIVE_NAME).chmod(0o644)
    (other / ARCHIVE_NAME).write_bytes(b"not an archive")
    ran = run_session(other, tmp_path / "loaded")
    assert "rows 7" in ran.stdout.splitlines()
    assert "shared objects file (top)" not in (tmp_path / "loaded").read_text()


def test_a_driver_with_the_configuration_of_a_cluster_does_without_it_and_says_nothing(jars, tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").touch()
    ran = run_session(jars, tmp_path / "loaded", SPARK_CONF_DIR=str(tmp_path / "conf"))
    assert "rows 7" in ran.stdout.splitlines()
    assert "shared" not in ran.stderr
