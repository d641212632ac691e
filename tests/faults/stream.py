"""The speed layer's proof: `python -m tests.faults.stream --rounds 20 --seed 7`.

Members and boards, late members, bad records, copies and old versions go straight into the topics, while the driver,
its JVM, PostgreSQL and its backends are killed and restarted, a second driver is started and the broker is frozen, at
named places of the driver and at seeded random times, and topic `board` is deleted and made again. Then an independent
consumer reads the raw topics, and what the view, the pending boards and the rejects must hold is computed from them in
plain Python. The first round has no faults.
Exit codes: 0 all of it held; 1 something did not. The same seed makes the same faults again, `--only N` a single round.
"""

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.faults.stream_parts import parts_in
from tests.faults.stream_plan import ONCE, plans
from tests.faults.stream_rounds import Proof, Round
from tests.faults.stream_verdict import Verdict

_TERMINATED = 128 + signal.SIGTERM
_SHOWN = 10
_ENOUGH_ROUNDS = 20  # for each fault of the plan to have come once


def main() -> int:
    """Run the rounds and print what each found."""
    parser = argparse.ArgumentParser(description="Kills what the speed layer is made of, and looks for what was lost.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", type=int, help="run only the round of this number")
    parser.add_argument(
        "--fault", default="", help="only faults in whose names this text is: 'record that', 'PostgreSQL'"
    )
    parser.add_argument(
        "--folder", type=Path, help="a new one, where logs and data stay (default: kept only on failure)"
    )
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.only not in (None, *range(arguments.rounds)):
        parser.error(f"--only takes a round from 0 to {arguments.rounds - 1}; there must be one")
    if not plans(arguments.seed, arguments.rounds, arguments.fault):
        parser.error(
            f"--fault {arguments.fault!r}: no fault has this text in its name; see tests/faults/stream_plan.py"
        )
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="stream-faults-"))
    again = f"python -m tests.faults.stream --seed {arguments.seed} --rounds {arguments.rounds}"
    again += f" --fault '{arguments.fault}'" if arguments.fault else ""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # so that no part outlives us
    print(f"seed {arguments.seed}, logs in {folder}", flush=True)
    good = False
    try:
        good = _prove(arguments, folder)
    finally:
        if not good:
            print(f"logs and data are in {folder}\nagain: {again}; a single round N of these: {again} --only N")
        elif arguments.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if good else 1


def _prove(arguments: argparse.Namespace, folder: Path) -> bool:
    done: list[Round] = []
    with parts_in(folder) as parts:
        proof = Proof(parts, arguments.seed)
        for number, plan in enumerate(plans(arguments.seed, arguments.rounds, arguments.fault)):
            if arguments.only in (None, number):
                done.append(proof.run(number, plan))
                _tell(done[-1])
        last = proof.judge()
        missing = {fault.name for one in done for fault in one.plan} - parts.felt
        workers = parts.driver.workers_seen
    _table(done, last)
    print(f"faults of {len(parts.felt)} kinds, of {len(ONCE)}; Python workers found and killed: {workers}")
    if missing and len(done) >= _ENOUGH_ROUNDS:
        print(f"the driver never came to these places, so nothing was proved there: {', '.join(sorted(missing))}")
        return False
    return not (last.faults or any(one.verdict.faults for one in done))


def _tell(one: Round) -> None:
    print(f"round {one.number}: {'; '.join(map(str, one.plan)) or 'no faults'}")
    endings = ", ".join(f"{what}: exit {code}" for what, code in one.endings)
    print(f"    {one.made} records in {one.took_s:.0f} s, caught up {one.behind_s:.1f} s after the load; {endings}")
    for promise, found in one.verdict.faults.items():
        print(f"    BROKEN {promise}: {len(found)}")
        for where in found[:_SHOWN]:
            print(f"        {where}")
    sys.stdout.flush()


def _table(done: list[Round], last: Verdict) -> None:
    table = [_line(one.number, one.verdict, one.duplicates, one.took_s) for one in done]
    table.append(_line("end", last, last.duplicates, sum(one.took_s for one in done)))
    print("\n" + " ".join(f"{name:>10}" for name in table[0]))
    for line in table:
        print(" ".join(f"{cell:>10}" for cell in line.values()))


def _line(name: object, verdict: Verdict, duplicates: int, took_s: float) -> dict[str, object]:
    """Boards, rows, pending and rejects are those of all rounds so far, duplicates those of the round."""
    return {
        "round": name,
        "boards": verdict.boards,
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
