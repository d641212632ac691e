"""The speed layer's proof on a Spark cluster: `python -m tests.faults.stream_on_cluster --rounds 8 --seed 7`.

The driver of `tests.faults.stream`, under the same load and with the same verdict, runs on a standalone cluster of a
master and two workers, which have no copy of the project. Executors, a worker, the master and the driver are killed.
The driver must outlive all of it but its own end. The first round has no faults. Exit codes are those of
`tests/faults/frame.py`; `--only N` runs a single round.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from include.contracts.definition import SITE_NAME
from tests.faults import frame, stream_parts
from tests.faults.cluster_faults import WORKERS, ClusterEffect, let_happen, wait_until_whole
from tests.faults.stream_plan import Effect, Fault, Plan
from tests.faults.stream_rounds import Proof, Round
from tests.servers import wait_until
from tests.support.spark_cluster import SparkCluster, spark_cluster

_HEALTHY_S = 180.0
_AFTER_S = (0.5, 3.0)
KINDS: tuple[tuple[Effect | ClusterEffect, str | None], ...] = (
    (ClusterEffect.EXECUTOR_KILLED, None),
    (ClusterEffect.MASTER_KILLED, None),
    (ClusterEffect.WORKER_KILLED, None),
    (Effect.DRIVER_KILLED, None),
    (ClusterEffect.MASTER_AND_EXECUTOR_KILLED, None),
    (ClusterEffect.EXECUTORS_KILLED, None),
)


@dataclass
class Parts(stream_parts.Parts):
    """The parts of the speed layer's proof, with the driver on a cluster."""

    cluster: SparkCluster = field(kw_only=True)
    chance: random.Random = field(kw_only=True)

    def suffer(self, plan: Plan) -> None:
        """Apply the faults; on return the driver is healthy and has all its executors."""
        for fault in plan:
            time.sleep(fault.after_s)
            if isinstance(fault.effect, ClusterEffect):
                let_happen(fault.effect, self.cluster, self.chance)
            else:
                self.driver.kill()
            self.felt.add(fault.name)
            wait_until_whole(self.cluster)
            wait_until(self.driver.is_healthy, _HEALTHY_S, f"the driver is healthy, see {self.driver.log}")


@contextmanager
def parts_in(folder: Path, pipeline: str = SITE_NAME, seed: int = 7) -> Iterator[Parts]:
    """Yield the parts, running and healthy, with their logs in the folder; stop them at the end."""
    with (
        spark_cluster(folder / "cluster", WORKERS) as cluster,
        stream_parts.parts_in(folder, pipeline, more=cluster.variables()) as parts,
    ):
        wait_until_whole(cluster)
        yield Parts(**vars(parts), cluster=cluster, chance=random.Random(seed))


def plans(seed: int, rounds: int) -> list[Plan]:
    """Return the faults of each round, one a round; the first has none, and all come before any comes again."""
    chance = random.Random(seed)
    kinds = [*KINDS, *chance.choices(KINDS, k=rounds)][: rounds - 1]
    return [(), *((Fault(*kind, after_s=round(chance.uniform(*_AFTER_S), 2)),) for kind in kinds)]


def broken(one: Round) -> list[str]:
    """Return the ends of drivers that the round's faults do not explain."""
    killed = sum(fault.effect is Effect.DRIVER_KILLED for fault in one.plan)
    expected = [("driver killed", -9)] * killed
    return [] if one.endings == expected else [f"drivers ended: {one.endings}, not {expected}"]


def main() -> int:
    """Run the rounds and print what each found."""
    parser = frame.parser_of("Fails the Spark cluster under the stream, and looks for what was lost.", one_round=True)
    parser.set_defaults(rounds=1 + len(KINDS))
    return frame.prove("stream_on_cluster", parsed := frame.parsed(parser), partial(_prove, parsed))


def _prove(arguments: argparse.Namespace, folder: Path) -> bool:
    done: list[Round] = []
    with parts_in(folder, arguments.pipeline, arguments.seed) as parts:
        proof = Proof(parts, arguments.seed)
        for number, plan in frame.chosen(arguments, plans(arguments.seed, arguments.rounds)):
            done.append(proof.run(number, plan))
            _tell(done[-1])
        last = proof.judge()
    frame.print_table([
        {"round": one.number, "records": one.made, "rows": one.verdict.rows, "pending": one.verdict.pending,
         "duplicates": one.duplicates, "doubled": len(one.verdict.doubled), "lost": len(one.verdict.lost),
         "broken": sum(map(len, one.verdict.faults.values())) + len(broken(one)), "behind": round(one.behind_s, 1),
         "seconds": round(one.took_s)}
        for one in done
    ])  # fmt: skip
    return not (last.faults or any(one.verdict.faults or broken(one) for one in done))


def _tell(one: Round) -> None:
    print(f"round {one.number}: {'; '.join(map(str, one.plan)) or 'no faults'}")
    print(f"    {one.made} records, {one.verdict.rows} rows so far, caught up {one.behind_s:.1f} s after the load")
    frame.print_broken({**one.verdict.faults, **({"driver": broken(one)} if broken(one) else {})})


if __name__ == "__main__":
    sys.exit(main())
