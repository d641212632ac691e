"""The gateway's proof: `python -m tests.faults.gateway --rounds 20 --seed 7`.

Every event answered 2xx is logged, fsynced, while gateway and broker are killed, the broker is frozen, another cluster
answers at its address, the right to write is lost, the disk of the fallback store is full and its file is damaged, at
seeded random times under load by two senders whose Idempotency-Keys are the same. Then every logged event must be in
the topic, or be counted by the gateway as lost or set aside, and then no day is certified. Every duplicate must have
the event id of its first copy and no other event that id, nothing that was refused may be there, and the events of each
key must be in the order of their acceptance. Where Kafka's answers are lost, members are changed without a key, and
`reconcile` runs meanwhile: each version of a row must have one event id, and be there. The first round has no faults.
Exit codes: 0 all of it held; 1 something did not; the same command with the same seed makes the same rounds again,
`--only N` a single one, and `--fault NAME` rounds that all have that fault.
"""

import argparse
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.faults.parts import parts_in
from tests.faults.plan import Fault, themes
from tests.faults.rounds import Proof, Round
from tests.faults.verdict import Verdict
from tests.servers import postgres_server

_TERMINATED = 128 + signal.SIGTERM
_SHOWN = 10
_ENOUGH_ROUNDS = 10  # for every fault to have been felt once, however its times fell


def main() -> int:
    """Run the rounds and print what each found."""
    parser = argparse.ArgumentParser(description="Kills and fills what the gateway needs, and looks for what was lost.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--fault", type=Fault, choices=list(Fault), help="only rounds that have this fault")
    parser.add_argument("--only", type=int, help="run only the round of this number")
    parser.add_argument(
        "--folder", type=Path, help="a new one, where logs and data stay (default: kept only on failure)"
    )
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.only not in (None, *range(arguments.rounds)):
        parser.error(f"--only takes a round from 0 to {arguments.rounds - 1}; there must be one")
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="gateway-faults-"))
    again = f"python -m tests.faults.gateway --seed {arguments.seed} --clients {arguments.clients}"
    again += f" --fault '{arguments.fault}'" if arguments.fault else ""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # so that no part outlives us
    print(f"seed {arguments.seed}, {arguments.clients} clients, logs in {folder}", flush=True)
    good = False
    try:
        good = _prove(arguments, folder)
    finally:
        if not good:
            print(f"logs, journals and data are in {folder}\nagain: {again} --rounds {arguments.rounds}")
            print(f"a single round N of these: {again} --rounds {arguments.rounds} --only N", flush=True)
        elif arguments.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if good else 1


def _prove(arguments: argparse.Namespace, folder: Path) -> bool:
    done: list[Round] = []
    database = folder / "postgres"
    database.mkdir(parents=True)
    with postgres_server(database) as postgres, parts_in(folder, postgres) as parts:
        proof = Proof(parts, folder, arguments.seed, arguments.clients)
        for number, theme in enumerate(themes(arguments.seed, arguments.rounds, arguments.fault)):
            if arguments.only in (None, number):
                done.append(proof.run(number, theme))
                _tell(done[-1])
        verdicts = dict(proof.judge_again())
    _table(done, verdicts)
    unfelt = {span.fault for one in done for span in one.plan} - {fault for one in done for fault in one.felt}
    if unfelt and len(done) >= _ENOUGH_ROUNDS:
        print(f"these faults made no difference, so nothing was proved about them: {', '.join(sorted(unfelt))}")
        return False
    return not any(verdict.faults for verdict in verdicts.values())


def _tell(one: Round) -> None:
    print(f"round {one.number}: {', '.join(map(str, one.plan)) or 'no faults'}")
    summary = one.summary
    held, missing = one.held, len(one.verdict.lost)
    more = f"; {held.set_aside} set aside, {held.lost} lost, {missing} missing" if held.total else ""
    more += f"; reconcile ran {one.reconciled} times" if one.reconciled else ""
    more += f"; the gateway ended by itself: {one.exits}" if one.exits else ""
    statuses = ", ".join(f"{status}: {count}" for status, count in sorted(summary.answers.items()))
    print(f"    answers {statuses}; none {sum(summary.unanswered.values())}; slowest {summary.slowest_s} s{more}")
    for damage in one.damages:
        print(f"    {damage}")
    for promise, found in one.verdict.faults.items():
        print(f"    BROKEN {promise}: {len(found)}")
        for serial in found[:_SHOWN]:
            print(f"        {serial}")
    sys.stdout.flush()


def _table(done: list[Round], verdicts: dict[int, Verdict]) -> None:
    table: list[dict[str, int]] = []
    for one in done:
        verdict = verdicts[one.number]
        table.append({
            "round": one.number,
            "kept": verdict.kept,
            "fallback": verdict.kept_in_fallback,
            "refused": verdict.refused,
            "unknown": verdict.unknown,
            "503": one.summary.answers.get(503, 0),
            "no answer": sum(one.summary.unanswered.values()),
            "copies": verdict.copies,
            "double": verdict.duplicates,
            "counted": verdict.counted,
            "lost": len(verdict.lost),
            "broken": sum(map(len, verdict.faults.values())),
            "seconds": round(one.took_s),
        })  # fmt: skip
    total = {name: sum(row[name] for row in table) for name in table[0]}
    print("\n" + " ".join(f"{name:>9}" for name in total))
    for row in table:
        print(" ".join(f"{cell:>9}" for cell in row.values()))
    print(" ".join(f"{cell:>9}" for cell in ("all", *list(total.values())[1:])))


if __name__ == "__main__":
    sys.exit(main())
