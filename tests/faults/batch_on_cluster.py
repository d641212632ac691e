"""The batch layer's proof on a Spark cluster: `python -m tests.faults.batch_on_cluster --rounds 6 --seed 7`.

The archive and the rebuild of a day, of `tests.faults.batch` and with its verdict, run on a standalone cluster of a
master and two workers, which have no copy of the project. While a rebuild runs, executors, a worker, the master and the
driver are killed. A rebuild must outlive all but its own end. It is then run again, as a retry would, and must give the
same hash. The published day must be what the raw topics say, exactly. The first round has no faults. Exit codes are
those of `tests/faults/frame.py`; `--only N` runs a single round.
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from include.contracts.definition import SITE_NAME
from tests.faults import batch_parts, frame
from tests.faults.batch_plan import Effect, Fault, Plan, Step
from tests.faults.batch_rounds import RECORDS, Proof, Round
from tests.faults.cluster_faults import WORKERS, ClusterEffect, let_happen
from tests.servers import wait_until
from tests.support.spark_cluster import SparkCluster, spark_cluster

_BEGINS_S = 90.0
_AFTER_S = (0.0, 4.0)  # after the rebuild has its executors
KINDS: tuple[Effect | ClusterEffect, ...] = (
    ClusterEffect.EXECUTOR_KILLED,
    ClusterEffect.WORKER_KILLED,
    ClusterEffect.MASTER_KILLED,
    Effect.KILLED,
    ClusterEffect.EXECUTORS_KILLED,
)


@dataclass
class Parts(batch_parts.Parts):
    """The parts of the batch layer's proof, with the steps on a cluster."""

    cluster: SparkCluster = field(kw_only=True)
    chance: random.Random = field(kw_only=True)
    codes: list[int] = field(default_factory=list)  # of the rebuilds that met a fault
    built: dict[str, str] = field(default_factory=dict)  # the hash of a build that outlived its fault, by run
    broken: list[str] = field(default_factory=list)  # those that gave up, or built something else

    def _with_fault(self, line: Sequence[str], fault: Fault, twin: Sequence[str]) -> bool:
        process = self._start(line)
        wait_until(lambda: bool(self.cluster.executors()) or process.poll() is not None, _BEGINS_S,
                   f"the rebuild has executors, see {self.log}")  # fmt: skip
        time.sleep(fault.after_s)
        if process.poll() is not None or not self.cluster.executors():
            return False
        if isinstance(fault.effect, ClusterEffect):
            let_happen(fault.effect, self.cluster, self.chance)
        else:
            self._do(fault.effect, process)
        self.codes.append(process.wait(batch_parts.STEP_S))
        if not self.codes[-1]:
            self.built[_run_id(line)] = self.newest_of(_run_id(line)).content_hash
        elif isinstance(fault.effect, ClusterEffect):
            self.broken.append(f"{fault.name}: exit {self.codes[-1]}, see {self.log}")
        return True

    def run(
        self, line: Sequence[str], fault: Fault | None = None, twin: Sequence[str] | None = None,
        is_done: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """See `batch_parts.Parts.run`. Compares the build that met the fault with that of the retry."""
        super().run(line, fault, twin, is_done)
        before = self.built.pop(_run_id(line), None) if fault is not None else None
        if fault is not None and before not in (None, again := self.newest_of(_run_id(line)).content_hash):
            self.broken.append(f"{fault.name}: hash {before}, and {again} when it ran again")


def _run_id(line: Sequence[str]) -> str:
    return line[line.index("--run-id") + 1]


@contextmanager
def parts_in(folder: Path, pipeline: str = SITE_NAME, seed: int = 7) -> Iterator[Parts]:
    """Yield the parts, running and healthy, with their logs in the folder; stop them at the end."""
    with spark_cluster(folder / "cluster", WORKERS) as cluster:
        archive = {"ARCHIVE_DIR": (folder / "steps" / "archive").as_uri()}  # a folder that all workers see
        with batch_parts.parts_in(folder, pipeline, {**cluster.variables(), **archive}) as parts:
            yield Parts(**vars(parts), cluster=cluster, chance=random.Random(seed))


def plans(seed: int, rounds: int) -> list[Plan]:
    """Return the fault of each round's rebuild; the first has none, and all come before any comes again."""
    chance = random.Random(seed)
    kinds = [*KINDS, *chance.choices(KINDS, k=rounds)][: rounds - 1]
    return [(), *((Fault(Step.REBUILD, kind, None, chance.uniform(*_AFTER_S)),) for kind in kinds)]


def main() -> int:
    """Run the rounds and print what each found."""
    parser = frame.parser_of("Fails the Spark cluster under rebuilds, and looks for what is wrong.", one_round=True)
    parser.add_argument("--records", type=int, default=RECORDS, help="in a round's load")
    parser.set_defaults(rounds=1 + len(KINDS))
    return frame.prove("batch_on_cluster", parsed := frame.parsed(parser), partial(_prove, parsed))


def _prove(arguments: argparse.Namespace, folder: Path) -> bool:
    done: list[tuple[Round, list[int]]] = []
    planned = plans(arguments.seed, arguments.rounds)
    with parts_in(folder, arguments.pipeline, arguments.seed) as parts:
        proof = Proof(parts, arguments.seed, arguments.records)
        for number, plan in frame.chosen(arguments, planned):
            before = len(parts.codes)
            done.append((proof.run(number, plan), parts.codes[before:]))
            _tell(*done[-1])
        left_behind = proof.judge_left_behind()
        missing = {fault.name for one, _ in done for fault in one.plan} - parts.felt
    frame.print_table([
        {"round": one.number, "day": str(one.day), "rows": one.verdict.rows, "corrections": one.verdict.corrections,
         "exit": ", ".join(map(str, codes)), "broken": sum(map(len, one.verdict.faults.values())),
         "seconds": round(one.took_s)}
        for one, codes in done
    ])  # fmt: skip
    frame.print_broken({"left behind": left_behind} if left_behind else {})
    if missing:
        print(f"no rebuild met these faults, so nothing was proved of them: {', '.join(sorted(missing))}")
    frame.print_broken({"rebuild": parts.broken} if parts.broken else {})
    return not (missing or left_behind or parts.broken or any(one.verdict.faults for one, _ in done))


def _tell(one: Round, codes: list[int]) -> None:
    print(f"round {one.number}, day {one.day}: {'; '.join(map(str, one.plan)) or 'no faults'}")
    print(f"    {one.verdict.rows} rows, exit codes of the rebuild with its fault: {codes}, {one.took_s:.0f} s")
    frame.print_broken(one.verdict.faults)


if __name__ == "__main__":
    sys.exit(main())
