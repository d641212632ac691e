"""The Python workers of a batch job: the modules that they begin with, and partitions that are not sent to them."""

import json
import subprocess
import sys

import pytest

from spark_jobs.batch.rebuild import compute_shuffle, map_some_partitions
from spark_jobs.batch.tasks import identity_partitioner
from stack.layout import Layout
from tests.support.pipeline import ROOT

JOB = """
import json, sys
from pathlib import Path
from include.runtime.settings import SparkSettings
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


def test_partitions_of_one_partitioner_stay_together(spark):
    pairs = [spark.sparkContext.parallelize([(n % 3, n) for n in range(first, 30, 2)], 2) for first in (0, 1)]
    one, other = (each.partitionBy(3, identity_partitioner) for each in pairs)
    both = one.union(other).mapPartitionsWithIndex(lambda at, pairs: [sorted((at, *pair) for pair in pairs)]).collect()
    assert both == [[(at, at, n) for n in range(at, 30, 3)] for at in range(3)]


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
