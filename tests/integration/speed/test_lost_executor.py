"""The member table on a cluster whose executors are killed: members that were in the lost executor still join."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.fakes.events import member
from tests.support.member_table_process import ANSWER
from tests.support.pipeline import ROOT, environment, produce, with_topics
from tests.support.spark_cluster import spark_cluster, wait_for_executors

pytestmark = pytest.mark.long  # test_member_table.py loses blocks of a local master
MEMBERS = range(1, 201)
CHANGED = range(1, 101)


@pytest.fixture
def cluster(tmp_path):
    with spark_cluster(tmp_path / "cluster") as cluster:
        yield cluster


@pytest.fixture
def settings(kafka, postgres, tmp_path):
    return with_topics(kafka, postgres, "lost_executor", tmp_path)


@pytest.fixture
def table(cluster, settings, kafka, postgres, tmp_path):
    variables = environment(kafka, postgres, "lost_executor", tmp_path)
    produce(settings, [("member", number, member(number, nickname=f"first {number}")) for number in MEMBERS])
    with Table(cluster, {**variables, **cluster.variables()}, tmp_path / "table.log") as table:
        yield table


class Table:
    """The process of a driver with a member table; calls go to it."""

    def __init__(self, cluster, variables, log):
        self.cluster = cluster
        self.log = log
        environment = {**os.environ, **variables, "PYTHONPATH": str(ROOT)}
        with log.open("wb") as output:
            self.process = subprocess.Popen([sys.executable, "-m", "tests.support.member_table_process"],
                                            cwd=ROOT, env=environment, text=True, stderr=output,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def __call__(self, command, *keys):
        self.process.stdin.write(" ".join(map(str, (command, *keys))) + "\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith(ANSWER):
                return json.loads(line.removeprefix(ANSWER))
        raise AssertionError(f"{command} failed:\n{self.log.read_text()[-6000:]}")

    def lose_executor(self):
        """Kill an executor; returns the keys of the base that it alone held."""
        wait_for_executors(self.cluster, 2)
        held = defaultdict(set)
        for folder, keys in self("where"):
            held[folder] |= set(keys)
        (pid,) = [pid for pid in self.cluster.executors() if Path(f"/proc/{pid}/cwd").resolve() == Path(max(held))]
        self.cluster.kill_executor(pid)
        return held[max(held)]


def test_members_of_a_lost_executor_still_join(table, settings):
    names = {str(number): f"first {number}" for number in MEMBERS}
    assert table("load") == len(MEMBERS)
    assert table.lose_executor(), "no member was in the executor"
    assert table("refresh") == []
    assert table("names") == names, "what Spark computes again is not what was loaded"

    produce(settings, [("member", n, member(n, nickname=f"second {n}", modifiedAt="2027-01-01T00:00:00Z"))
                       for n in CHANGED])  # fmt: skip
    names |= {str(number): f"second {number}" for number in CHANGED}
    assert sorted(table("refresh")) == list(CHANGED)
    assert table("compact")
    assert table("names") == names
    lost = table.lose_executor()
    assert lost, "no member was in the executor"
    assert table("known", *sorted(lost), 999_999) == sorted(lost)
    assert table("refresh") is None, "the keys that changed meanwhile are not known"
    assert table("names") == names
    assert table("refresh") == []

    produce(settings, [("member", n, member(n, nickname=f"third {n}", modifiedAt="2027-01-02T00:00:00Z"))
                       for n in CHANGED])  # fmt: skip
    names |= {str(number): f"third {number}" for number in CHANGED}
    table("refresh")
    assert table("compact")
    assert table.lose_executor(), "no member was in the executor"
    assert table("batch") == names, "the driver may notice the loss only by a batch that fails"
    assert table.log.read_text().count("loading it again") == 2
