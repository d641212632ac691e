"""The gateway's proof: `python -m tests.faults.gateway --rounds 20 --seed 7`.

Every event answered 2xx is logged, fsynced, while gateway and broker are killed, the broker is frozen, another cluster
answers at its address, the gateway's clock is set, the right to write is lost, the disk of the fallback store is full
and its file is damaged, at seeded random times under load by two senders whose Idempotency-Keys are the same. Then
every logged event must be in the topic, or be counted by the gateway as lost or set aside, and then no day is
certified. Every duplicate must have the event id of its first copy and no other event that id, nothing that was refused
may be there, and the events of each key must be in the order of their acceptance. Where Kafka's answers are lost,
members are changed without a key, and `reconcile` runs meanwhile: each version of a row must have one event id, and be
there. Where the clock is set, the gateway must tell it, no record may have its time, and no event of a present version
may be refused or wait for it. The first round has no faults.
Exit codes are those of `tests/faults/frame.py`; `--only N` runs a single round, `--fault NAME` rounds that all have
that fault.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from tests.faults import frame
from tests.faults.parts import parts_in
from tests.faults.plan import Fault, themes
from tests.faults.rounds import Proof, Round
from tests.faults.verdict import Verdict
from tests.servers import postgres_server

_ENOUGH_ROUNDS = 10  # for every fault to have been felt once, however its times fell


def main() -> int:
    """Run the rounds and print what each found."""
    parser = frame.parser_of("Kills and fills what the gateway needs, and looks for what was lost.", one_round=True)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--fault", type=Fault, choices=list(Fault), help="only rounds that have this fault")
    arguments = frame.parsed(parser)
    return frame.prove("gateway", arguments, partial(_prove, arguments))


def _prove(arguments: argparse.Namespace, folder: Path) -> bool:
    done: list[Round] = []
    database = folder / "postgres"
    database.mkdir(parents=True)
    with postgres_server(database) as postgres, parts_in(folder, postgres, arguments.pipeline) as parts:
        proof = Proof(parts, folder, arguments.seed, arguments.clients)
        for number, theme in frame.chosen(arguments, themes(arguments.seed, arguments.rounds, arguments.fault)):
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
    more += f"; told: {', '.join(map(str, one.told))}" if one.told else ""
    more += f"; reconcile ran {one.reconciled} times" if one.reconciled else ""
    more += f"; the gateway ended by itself: {one.exits}" if one.exits else ""
    statuses = ", ".join(f"{status}: {count}" for status, count in sorted(summary.answers.items()))
    print(f"    answers {statuses}; none {sum(summary.unanswered.values())}; slowest {summary.slowest_s} s{more}")
    for damage in one.damages:
        print(f"    {damage}")
    frame.print_broken(one.verdict.faults)


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
    frame.print_table([*table, {**total, "round": "all"}])


if __name__ == "__main__":
    sys.exit(main())
