"""The batch layer's proof: `python -m tests.faults.batch --rounds 20 --seed 7`.

Records of a pipeline's stream and table, late ones of the table, bad records, copies and deletions go into the topics,
the real stream takes them; then the day is archived, rebuilt, compared, published, undone and redone by the same
commands that a night and a person use, while these, their JVM, PostgreSQL, its backends and the broker are killed at
named places and at seeded random times, are started twice at once, or with a clock that is wrong by a day; half of the
partitions of the stream's topic lose their records, a file of the archive is missing or truncated, a night is missed,
the stream's topic is made again. What a step left is finished by running it again. Somebody reads the day all the time.
Then an independent consumer reads the raw topics, and what the day must hold is computed from them in plain Python:
the published day is that, exactly; every difference from what was shown is a correction that explains it; undo and
redo show what was shown before and after; nobody ever saw anything else; a day built twice has the same hash.
Exit codes are those of `tests/faults/frame.py`.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

from include.contracts.pipelines import PIPELINES
from tests.faults import frame
from tests.faults.batch_parts import parts_in
from tests.faults.batch_plan import CHEAP, DEAR, LAST, plans
from tests.faults.batch_rounds import RECORDS, Proof, Round
from tests.faults.stream_load import impossible_values

_ENOUGH_ROUNDS = 20  # for each fault of the plan to have come once


def main() -> int:
    """Run the rounds and print what each found."""
    parser = frame.parser_of("Kills the steps of a rebuild, and looks for what was lost or half.")
    parser.add_argument("--records", type=int, default=RECORDS, help="in a round's load")
    parser.add_argument(
        "--fault", default="", help="only faults in whose names this text is: 'rebuild: killed', 'topic made again'"
    )
    arguments = frame.parsed(parser)
    if arguments.records < 100:
        parser.error("--records takes 100 or more")
    if arguments.rounds > 1 and not any(plans(arguments.seed, arguments.rounds, arguments.fault)):
        parser.error(f"--fault {arguments.fault!r}: no fault has this text in its name; see tests/faults/batch_plan.py")
    return frame.prove("batch", arguments, partial(_prove, arguments))


def _prove(arguments: argparse.Namespace, folder: Path) -> bool:
    done: list[Round] = []
    frame.print_impossible(impossible_values(PIPELINES[arguments.pipeline]))
    with parts_in(folder, arguments.pipeline) as parts:
        proof = Proof(parts, arguments.seed, arguments.records)
        for number, plan in frame.chosen(arguments, plans(arguments.seed, arguments.rounds, arguments.fault)):
            done.append(proof.run(number, plan))
            _tell(done[-1])
        left_behind = proof.judge_left_behind()
        felt = parts.felt
    _table(done)
    frame.print_broken({"left behind": left_behind} if left_behind else {})
    named = {f"{step}: {effect} at {place}" for step, effect, place in (*DEAR, *CHEAP) if place is not None}
    named = {name for name in named if arguments.fault in name}
    missing = named - felt if len(done) >= _ENOUGH_ROUNDS else set()
    print(f"faults of {len(felt)} kinds, of {len(DEAR) + len(CHEAP) + len(LAST)}")
    if missing:
        print(f"no step came to these places, so nothing was proved there: {', '.join(sorted(missing))}")
    return not (missing or left_behind or any(one.verdict.faults for one in done))


def _tell(one: Round) -> None:
    print(f"round {one.number}, day {one.day}: {'; '.join(map(str, one.plan)) or 'no faults'}")
    print(f"    {one.verdict.rows} rows, {one.verdict.corrections} corrections, looked at {one.looks} times, "
          f"{one.took_s:.0f} s")  # fmt: skip
    frame.print_broken(one.verdict.faults)


def _table(done: list[Round]) -> None:
    frame.print_table([
        {"round": one.number, "day": str(one.day), "rows": one.verdict.rows, "corrections": one.verdict.corrections,
         "looks": one.looks, "broken": sum(map(len, one.verdict.faults.values())), "seconds": round(one.took_s)}
        for one in done
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
