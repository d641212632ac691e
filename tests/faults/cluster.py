"""The proof of three brokers: `python -m tests.faults.cluster --rounds 8 --seed 7`.

Topics have three replicas in three racks, and two must be in sync. Under the load of `tests.faults.gateway` each broker
is killed, two are killed at once, all are restarted one after the other, the active controller is killed, a broker is
frozen, and the disk of one fails. Meanwhile the audit has to name what is under-replicated. Then every event that was
answered 2xx must be in the topic with its id, in the order of its key; the gateway drains its store by itself; and the
audit finds nothing once the brokers are back. The first round has no faults. `--kafka` names an older version of the
brokers, whose jars it fetches. Exit codes are those of
`tests/faults/frame.py`; `--only N` runs a single round.
"""

import argparse
import gc
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

import msgspec

from include.contracts.definition import Definition
from include.contracts.errors import BrokerUnavailable
from include.contracts.pipelines import PIPELINES
from tests.faults import frame
from tests.faults.journal import Entry, read_journal
from tests.faults.load import Summary
from tests.faults.parts import add_second_sender
from tests.faults.rounds import start_load
from tests.faults.topic import TopicReader, copy_of
from tests.faults.verdict import Copy, Verdict, judge
from tests.servers import wait_until
from tests.support.gateway_process import GatewayProcess
from tests.support.older_brokers import VERSIONS, ensure_jars
from tests.support.three_brokers import COUNT, ThreeBrokers, three_brokers

_BEFORE_S = 2.0  # of load before anything happens, and after all is well again
_DOWN_S = (3.0, 9.0)
_FROZEN_S = (8.0, 14.0)  # longer than the session of a broker, and than a lagging replica is in sync
_LOAD_BEGINS_S = 60.0
_LOAD_ENDS_S = 120.0
_DRAINED_S = 120.0
_NOTICED_S = 60.0
UNDER_REPLICATED = "topic_under_replicated"


class Fault(StrEnum):
    """The faults; a round has one."""

    NONE = "nothing"
    EACH_KILLED = "each broker killed"
    TWO_KILLED = "two brokers killed"
    RESTARTED = "all restarted one after the other"
    CONTROLLER_KILLED = "active controller killed"
    FROZEN = "a broker frozen"
    DISK_FULL = "a broker's disk full"
    ALL_KILLED = "all brokers killed"


OUTAGES = (Fault.TWO_KILLED, Fault.ALL_KILLED)  # no record can be acknowledged: events go to the store


@dataclass(frozen=True)
class Round:
    """A round that was run. `audited` are the kinds of drift that the audit named meanwhile."""

    number: int
    fault: Fault
    verdict: Verdict
    summary: Summary
    audited: set[str]
    took_s: float


@dataclass
class Proof:
    """Runs rounds over the same cluster and gateway."""

    brokers: ThreeBrokers
    gateway: GatewayProcess
    pipeline: Definition
    folder: Path
    seed: int
    clients: int
    entries: dict[int, list[Entry]] = field(default_factory=dict)
    copies: dict[int, list[Copy]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stream = self.pipeline.stream
        self._reader = TopicReader(self.brokers.bootstrap_servers, stream.name, partial(copy_of, stream.key_field))

    def run(self, number: int, fault: Fault) -> Round:
        """Run one round. Raises AssertionError if gateway and cluster do not become healthy again."""
        began = time.monotonic()
        chance = random.Random(f"{self.seed}-{number}")
        journal = self.folder / f"round-{number}.jsonl"
        load = start_load(self.gateway, self.pipeline, journal, number, self.seed, self.clients)
        try:
            wait_until(lambda: journal.exists() and journal.stat().st_size > 0, _LOAD_BEGINS_S, "the load has begun")
            time.sleep(_BEFORE_S)
            audited = self._suffer(fault, chance)
            self._wait_until_sending()
            time.sleep(_BEFORE_S)
            output, _ = load.communicate(timeout=_LOAD_ENDS_S)
        finally:
            load.kill()
            load.wait()
        assert output, f"the load broke, see its log in {self.folder}"
        summary = msgspec.json.decode(output, type=Summary)
        assert summary.is_complete, f"calls stayed without an answer: {summary}"
        wait_until(lambda: self._fallback().get("backlog") == 0, _DRAINED_S, "the store drains by itself")
        found = self._fallback()
        assert (found["refused"], found["lost"]) == (0, 0), found
        self.brokers.wait_until_in_sync()
        self.entries[number] = read_journal(journal)
        self._read_topic()
        return Round(number, fault, self._judge(number), summary, audited, time.monotonic() - began)

    def judge_again(self) -> Iterator[tuple[int, Verdict]]:
        """Yield each round's verdict over all present records of the topic."""
        self._read_topic()
        for number in self.entries:
            yield number, self._judge(number)

    def _judge(self, number: int) -> Verdict:
        return judge(self.entries[number], self.copies.get(number, []))

    def _read_topic(self) -> None:
        for copy in self._reader.read_on():
            self.copies.setdefault(int(copy.serial.partition(".")[0]), []).append(copy)

    def _suffer(self, fault: Fault, chance: random.Random) -> set[str]:
        """Let it happen and end; returns the kinds of drift that the audit named meanwhile."""
        brokers, numbers = self.brokers, chance.sample(range(COUNT), COUNT)
        seen: set[str] = set()
        match fault:
            case Fault.NONE:
                time.sleep(_BEFORE_S)
            case Fault.EACH_KILLED:
                for number in numbers:
                    seen |= self._without(chance, (number,), brokers.kill)
            case Fault.TWO_KILLED:
                seen |= self._without(chance, tuple(numbers[:2]), brokers.kill)
            case Fault.ALL_KILLED:
                seen |= self._without(chance, tuple(numbers), brokers.kill)
            case Fault.RESTARTED:
                for number in numbers:
                    seen |= self._without(chance, (number,), brokers.stop)
            case Fault.CONTROLLER_KILLED:
                was = brokers.controller
                seen |= self._without(chance, (was,), brokers.kill, lambda: brokers.controller != was)
            case Fault.FROZEN:
                brokers.freeze(numbers[0])
                try:
                    seen |= self._audited(chance.uniform(*_FROZEN_S))
                finally:
                    brokers.thaw(numbers[0])
            case Fault.DISK_FULL:
                brokers.fill_disk(numbers[0])
                seen |= self._audited(chance.uniform(*_FROZEN_S))
                brokers.restart(numbers[0])
        brokers.wait_until_in_sync()
        return seen

    def _without(
        self, chance: random.Random, numbers: tuple[int, ...], end: Callable[[int], None],
        holds: Callable[[], bool] = lambda: True,
    ) -> set[str]:  # fmt: skip
        """End these brokers, look whether something holds without them, and start them again in sync."""
        for number in numbers:
            end(number)
        seen = self._audited(chance.uniform(*_DOWN_S), is_outage=len(numbers) > 1)
        assert holds(), f"not without brokers {numbers}"
        self.brokers.start(*numbers)
        self.brokers.wait_until_in_sync()
        return seen

    def _audited(self, at_least_s: float, is_outage: bool = False) -> set[str]:
        """Let it last, and until the audit names what is under-replicated; returns the kinds of drift.

        Without a quorum, and until the cluster has noticed the loss of a broker, the audit says that Kafka is out.
        """
        began = time.monotonic()
        seen: set[str] = set()
        while time.monotonic() < began + at_least_s or not (is_outage or UNDER_REPLICATED in seen):
            assert time.monotonic() < began + _NOTICED_S, f"the audit named only {seen}"
            with suppress(BrokerUnavailable):
                seen |= {drift.kind for drift in self.brokers.drifts()}
            time.sleep(0.5)
        return seen

    def _wait_until_sending(self) -> None:
        wait_until(lambda: self._fallback().get("circuit") == "closed", _DRAINED_S, "the gateway sends to Kafka again")

    def _fallback(self) -> dict[str, object]:
        with self.gateway.client() as client:
            return client.fallback()


@contextmanager
def proof_in(folder: Path, pipeline: Definition, seed: int, clients: int, jars: Path | None = None) -> Iterator[Proof]:
    """Yield the proof over a running cluster and gateway, both gone at the end; logs and data are in the folder."""
    gateway_folder = folder / "gateway"
    gateway_folder.mkdir(parents=True)
    with three_brokers(folder / "kafka", jars) as brokers:
        brokers.wait_until_in_sync()
        gc.collect()  # an admin client that lives on tells the terminal of every outage
        more = {"KAFKA_REPLICATION_FACTOR": f"{COUNT}", "KAFKA_MIN_INSYNC_REPLICAS": "2"}
        gateway = GatewayProcess.over(gateway_folder, brokers.bootstrap_servers, **more)
        add_second_sender(gateway, pipeline)
        try:
            yield Proof(brokers, gateway.start(), pipeline, folder, seed, clients)
        finally:
            if gateway.process is not None:
                gateway.kill()


def broken(one: Round) -> list[str]:
    """Return what a round lacks besides its verdict: a fault that nobody felt, or that the audit did not name."""
    found = []
    if one.fault in OUTAGES and not one.verdict.kept_in_fallback:
        found.append("no event went to the store")
    if one.fault not in (Fault.NONE, *OUTAGES) and UNDER_REPLICATED not in one.audited:
        found.append(f"the audit named only {sorted(one.audited)}")
    return found


def main() -> int:
    """Run the rounds and print what each found."""
    parser = frame.parser_of("Fails the brokers of a cluster of three, and looks for what was lost.", one_round=True)
    parser.set_defaults(rounds=len(Fault))
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--kafka", choices=VERSIONS, help="brokers of an older version (default: the stack's)")
    arguments = frame.parsed(parser)
    return frame.prove("cluster", arguments, partial(_prove, arguments))


def _prove(arguments: argparse.Namespace, folder: Path) -> bool:
    chance = random.Random(arguments.seed)
    first, *others = Fault
    faults = [first, *others, *chance.choices(others, k=arguments.rounds)][: arguments.rounds]
    done: list[Round] = []
    jars = ensure_jars(arguments.kafka) if arguments.kafka else None
    with proof_in(folder, PIPELINES[arguments.pipeline], arguments.seed, arguments.clients, jars) as proof:
        for number, fault in frame.chosen(arguments, faults):
            done.append(proof.run(number, fault))
            _tell(done[-1])
        verdicts = dict(proof.judge_again())
    frame.print_table([{
        "round": one.number, "kept": verdict.kept, "fallback": verdict.kept_in_fallback, "copies": verdict.copies,
        "double": verdict.duplicates, "lost": len(verdict.lost), "503": one.summary.answers.get(503, 0),
        "slowest": one.summary.slowest_s, "broken": sum(map(len, verdict.faults.values())) + len(broken(one)),
        "seconds": round(one.took_s),
    } for one in done for verdict in [verdicts[one.number]]])  # fmt: skip
    return not any(verdict.faults for verdict in verdicts.values()) and not any(broken(one) for one in done)


def _tell(one: Round) -> None:
    statuses = ", ".join(f"{status}: {count}" for status, count in sorted(one.summary.answers.items()))
    print(f"round {one.number}: {one.fault}\n    answers {statuses}; none {sum(one.summary.unanswered.values())}; "
          f"the audit named {', '.join(sorted(one.audited)) or 'nothing'}")  # fmt: skip
    frame.print_broken({**one.verdict.faults, **{reason: [one.fault] for reason in broken(one)}})


if __name__ == "__main__":
    sys.exit(main())
