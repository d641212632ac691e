"""The speed layer's proof: `python -m tests.faults.stream --rounds 20 --seed 7`.

Records of a pipeline's stream and table, late ones of the table, bad records, copies and old versions go straight into
the topics, while the driver, its JVM, its Python workers, PostgreSQL and its backends are killed and restarted, a
second driver is started, the broker and the workers are frozen and the driver's clock is set, at named places of the
driver and at seeded random times, and the stream's topic is deleted and made again. Then an independent consumer reads
the raw topics, and what the view, the pending records and the rejects must hold is computed from them in plain Python.
The first round has no faults.
With `--delivery exactly_once` no record may be in the output twice.
Exit codes are those of `tests/faults/frame.py`; `--only N` runs a single round.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from include.contracts.pipelines import PIPELINES
from include.runtime.settings import AT_LEAST_ONCE, EXACTLY_ONCE
from tests.faults import frame
from tests.faults.stream_load import impossible_values
from tests.faults.stream_parts import Parts, parts_in
from tests.faults.stream_plan import ONCE, Plan, impossible_effects, plans
from tests.faults.stream_rounds import Proof, Round
from tests.faults.stream_verdict import Verdict

_ENOUGH_ROUNDS = 20  # for each fault of the plan to have come once


def main() -> int:
    """Run the rounds and print what each found."""
    parser = frame.parser_of("Kills what the speed layer is made of, and looks for what was lost.", one_round=True)
    parser.add_argument(
        "--fault", default="", help="only faults whose names this regular expression finds: 'record that', 'PostgreSQL'"
    )
    parser.add_argument("--every-round", action="store_true", help="each fault in every round")
    parser.add_argument("--delivery", choices=(AT_LEAST_ONCE, EXACTLY_ONCE), default=AT_LEAST_ONCE)
    arguments = frame.parsed(parser)
    pipeline = PIPELINES[arguments.pipeline]
    planned = plans(
        pipeline, arguments.seed, arguments.rounds, arguments.fault, arguments.delivery, arguments.every_round
    )
    if not planned:
        parser.error(f"--fault {arguments.fault!r} finds no name of a fault; see tests/faults/stream_plan.py")
    return frame.prove("stream", arguments, partial(_prove, arguments, planned))


def _prove(arguments: argparse.Namespace, planned: list[Plan], folder: Path) -> bool:
    pipeline = PIPELINES[arguments.pipeline]
    impossible = impossible_effects(pipeline)
    frame.print_impossible({**{str(name): why for name, why in impossible.items()}, **impossible_values(pipeline)})
    with parts_in(folder, arguments.pipeline, more={"STREAM_DELIVERY": arguments.delivery}) as parts:
        done, is_kept, missing = run_rounds(parts, arguments, planned)
    possible = sum(effect not in impossible for effect, _ in ONCE)
    print(f"faults of {len(parts.felt)} kinds, of {possible}")
    if missing and done >= _ENOUGH_ROUNDS:
        print(f"the driver never came to these places, so nothing was proved there: {', '.join(sorted(missing))}")
        return False
    return is_kept


def run_rounds(parts: Parts, arguments: argparse.Namespace, planned: list[Plan]) -> tuple[int, bool, set[str]]:
    """Run the chosen rounds and print what each found.

    Returns their number, whether every promise was kept, and the names of the faults that never happened.
    """
    done: list[Round] = []
    proof = Proof(parts, arguments.seed)
    for number, plan in frame.chosen(arguments, planned):
        done.append(proof.run(number, plan))
        _tell(done[-1])
    last = proof.judge()
    _table(done, last)
    missing = {fault.name for one in done for fault in one.plan} - parts.felt
    return len(done), not (last.faults or any(one.verdict.faults for one in done)), missing


def _tell(one: Round) -> None:
    print(f"round {one.number}: {'; '.join(map(str, one.plan)) or 'no faults'}")
    endings = ", ".join(f"{what}: exit {code}" for what, code in one.endings)
    print(f"    {one.made} records in {one.took_s:.0f} s, caught up {one.behind_s:.1f} s after the load; {endings}")
    frame.print_broken(one.verdict.faults)


def _table(done: list[Round], last: Verdict) -> None:
    table = [_line(one.number, one.verdict, one.duplicates, one.took_s) for one in done]
    table.append(_line("end", last, last.duplicates, sum(one.took_s for one in done)))
    frame.print_table(table)


def _line(name: object, verdict: Verdict, duplicates: int, took_s: float) -> dict[str, object]:
    """Keys, rows, pending and rejects are those of all rounds so far, duplicates those of the round."""
    return {
        "round": name,
        "keys": verdict.keys,
        "rows": verdict.rows,
        "pending": verdict.pending,
        "rejects": verdict.rejects,
        "duplicates": duplicates,
        "doubled": len(verdict.doubled),
        "lost": len(verdict.lost),
        "broken": sum(map(len, verdict.faults.values())),
        "seconds": round(took_s),
    }


if __name__ == "__main__":
    sys.exit(main())
