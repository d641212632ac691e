"""Faults of a standalone Spark cluster, for the proofs of stream and batch on it."""

import random
import time
from enum import StrEnum

from tests.servers import wait_until
from tests.support.spark_cluster import SparkCluster

WORKERS = 2
_AWAY_S = (1.0, 4.0)
_GONE_S = 60.0
_BACK_S = 120.0


class ClusterEffect(StrEnum):
    """The faults of the cluster. Whatever was killed runs again afterwards."""

    EXECUTOR_KILLED = "executor killed"
    EXECUTORS_KILLED = "all executors killed"
    WORKER_KILLED = "worker killed with its executors"
    MASTER_KILLED = "master killed"
    MASTER_AND_EXECUTOR_KILLED = "master killed, and an executor meanwhile"


def let_happen(effect: ClusterEffect, cluster: SparkCluster, chance: random.Random) -> None:
    """Apply the effect; on return every process of the cluster runs again, and has noticed what is gone."""
    match effect:
        case ClusterEffect.EXECUTOR_KILLED:
            kill_executors(cluster, [chance.choice(cluster.executors())])
        case ClusterEffect.EXECUTORS_KILLED:
            kill_executors(cluster, cluster.executors())
        case ClusterEffect.WORKER_KILLED:
            number = chance.randrange(WORKERS)
            cluster.kill_worker(number)
            time.sleep(chance.uniform(*_AWAY_S))
            cluster.start_worker(number)
        case ClusterEffect.MASTER_KILLED | ClusterEffect.MASTER_AND_EXECUTOR_KILLED:
            cluster.kill_master()
            if effect is ClusterEffect.MASTER_AND_EXECUTOR_KILLED:
                kill_executors(cluster, [chance.choice(cluster.executors())])
            time.sleep(chance.uniform(*_AWAY_S))
            cluster.start_master()


def kill_executors(cluster: SparkCluster, pids: list[int]) -> None:
    """Kill executors, and wait until they are gone."""
    assert pids, "no executor runs"
    for pid in pids:
        cluster.kill_executor(pid)
    wait_until(lambda: not set(pids) & set(cluster.executors()), _GONE_S, f"executors {pids} are gone")


def wait_until_whole(cluster: SparkCluster) -> None:
    """Wait until the application has an executor on each worker again."""
    wait_until(lambda: all(cluster.executors(number) for number in range(WORKERS)), _BACK_S, "each worker has one")
