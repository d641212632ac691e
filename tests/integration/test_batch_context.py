"""The Python workers of a batch job: the modules that they begin with, and partitions that are not sent to them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from spark_jobs.batch.blobs import identity_partitioner
from spark_jobs.batch.partitions import compute_shuffle, map_some_partitions, side_by_side
from stack.layout import Layout
from tests.support.pipeline import ROOT

JOB = """
import json, sys
from pathlib import Path
from include.settings import SparkSettings
from spark_jobs.connectors.session import open_context

def seen(given):
    import gc, os, pyspark, sys
    list(given)
    yield {"pid": os.getpid(), "pyspark": pyspark.__file__, "path": sys.path, "frozen": gc.get_freeze_count(),
           "tasks": "spark_jobs.batch.tasks" in sys.modules, "pandas": "pandas" in sys.modules}

context = open_context(SparkSettings("local[1]", Path(sys.argv[1])), "workers", "512m")
found = [context.parallelize([0], 1).mapPartitions(seen).collect()[0] for _ in range(2)]
print(json.dumps(found))
context.stop()
"""


def test_workers_are_forked_from_a_daemon_that_has_all_loaded():
    python_path = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    ran = subprocess.run([sys.executable, "-c", JOB, str(Layout.of().spark_jars)], cwd=ROOT, env=python_path,
                         capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    first, second = json.loads(ran.stdout.splitlines()[-1])
    assert first["pid"] == second["pid"]  # the worker is used again
    assert first["tasks"]
    assert not first["pandas"]
    assert first["frozen"] > 10_000  # objects that no worker looks through for garbage
    assert first["pyspark"].endswith("site-packages/pyspark/__init__.py")
    assert [entry for entry in first["path"] if "pyspark" in entry] == []  # no archive to be looked through


def test_spark_runs_its_own_daemon_when_that_has_changed(tmp_path):
    """Another PySpark before the installed one on the path: the same, with a daemon whose functions are renamed."""
    package = Path(pyspark.__file__).parent
    other = tmp_path / "pyspark"
    other.mkdir()
    for each in package.iterdir():
        if each.name not in ("daemon.py", "__pycache__"):
            (other / each.name).symlink_to(each)
    renamed = re.sub(r"\bworker\(", "run_worker(", (package / "daemon.py").read_text(encoding="utf-8"))
    (other / "daemon.py").write_text(renamed, encoding="utf-8")
    python_path = {"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin"}
    ran = subprocess.run([sys.executable, "-c", JOB, str(Layout.of().spark_jars)], cwd=ROOT, env=python_path,
                         capture_output=True, text=True, timeout=120, check=False)  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    first, _ = json.loads(ran.stdout.splitlines()[-1])
    assert not first["tasks"]  # it was not forked from ours
    assert "Spark's own daemon of Python workers is used" in ran.stderr
    assert "pyspark.daemon has no worker(sock, authenticated)" in ran.stderr


def test_partitions_that_spark_does_not_keep_together_are_shuffled(spark, caplog):
    one, other = (spark.sparkContext.parallelize([(n % 3, n) for n in range(first, 30, 2)], 2) for first in (0, 1))
    both = side_by_side(one, other, 3, identity_partitioner)
    assert both.mapPartitionsWithIndex(lambda at, pairs: [{at} == {key for key, _ in pairs}]).collect() == [True] * 3
    assert "does not keep the partitioning" in caplog.text


def test_of_the_other_partitions_nothing_is_read(spark):
    def only_even(index, numbers):
        if index % 2:
            raise ValueError("nobody asked for that partition")
        return numbers

    every = spark.sparkContext.parallelize(range(40), 8).mapPartitionsWithIndex(only_even)
    with pytest.raises(Exception, match="nobody asked"):
        every.collect()
    wanted = map_some_partitions(every, range(0, 8, 2), lambda number, numbers: iter([(number, sum(numbers))]))
    assert wanted.getNumPartitions() == 4
    assert wanted.collect() == [(0, 10), (1, 60), (2, 110), (3, 160)]


def test_what_was_shuffled_is_not_made_again(spark):
    made = spark.sparkContext.accumulator(0)

    def count(pair):
        made.add(1)
        return pair

    shuffled = spark.sparkContext.parallelize([(n % 4, n) for n in range(20)], 2).map(count).partitionBy(4)
    compute_shuffle(shuffled)
    assert made.value == 20
    assert sorted(value for _, value in shuffled.collect()) == [*range(20)]
    assert made.value == 20
