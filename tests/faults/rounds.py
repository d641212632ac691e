"""One round: load, faults, health again, the store drained, the topic read, the verdict."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.faults.journal import Entry, read_journal
from tests.faults.load import Summary
from tests.faults.parts import OTHER_TOKEN, Parts
from tests.faults.plan import OF_THE_BROKER, Fault, Plan, plan
from tests.faults.topic import TopicReader
from tests.faults.verdict import Copy, Verdict, judge
from tests.support.gateway_process import ROOT

_AFTERWARDS_S = 1.0  # of load when all is well again
_CONTROL_S = 4.0
_LOAD_ENDS_S = 120.0


@dataclass(frozen=True)
class Round:
    """A round that was run. `set_aside` is what the store holds as refused by the broker, of all rounds so far."""

    number: int
    plan: Plan
    verdict: Verdict
    summary: Summary
    set_aside: int
    cuts: int
    exits: list[int]
    took_s: float

    @property
    def felt(self) -> set[Fault]:
        """The faults that senders noticed, or that made events wait: which broker fault it was cannot be told."""
        broker = {span.fault for span in self.plan} & set(OF_THE_BROKER)
        felt = broker if self.verdict.kept_in_fallback else set()
        if self.summary.unanswered:
            felt |= {Fault.GATEWAY_KILLED}
        if 503 in self.summary.answers:
            felt |= {Fault.DISK_FULL}
        return felt | {Fault.REPLAY_CUT} if self.cuts else felt


@dataclass
class Proof:
    """Runs rounds over the same parts. Copies that come late are judged with the round they belong to."""

    parts: Parts
    folder: Path
    seed: int
    clients: int
    entries: dict[int, list[Entry]] = field(default_factory=dict)
    copies: dict[int, list[Copy]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._reader = TopicReader(self.parts.broker.bootstrap_servers, "board")

    def run(self, number: int, theme: tuple[Fault, ...]) -> Round:
        """One round and its verdict. Raises AssertionError when the parts do not become healthy again."""
        began, exits, cuts = time.monotonic(), len(self.parts.exits), self.parts.cuts
        faults = plan(self.seed, number, theme)
        if Fault.DISK_FULL in theme:
            self.parts.renew_store()
        journal = self.folder / f"round-{number}.jsonl"
        load = self._start_load(number, journal)
        try:
            if not faults:
                time.sleep(_CONTROL_S)
            self.parts.suffer(faults)
            time.sleep(_AFTERWARDS_S)
            output, _ = load.communicate(timeout=_LOAD_ENDS_S)
        finally:
            load.kill()
            load.wait()
        assert output, f"the load broke, see its log in {self.folder}"
        summary = msgspec.json.decode(output, type=Summary)
        assert summary.is_complete, f"calls stayed without an answer: {summary}"
        set_aside = self.parts.wait_until_drained()
        self.entries[number] = read_journal(journal)
        self._read_topic()
        took_s = time.monotonic() - began
        cuts, ended = self.parts.cuts - cuts, self.parts.exits[exits:]
        return Round(number, faults, self._judge(number), summary, set_aside, cuts, ended, took_s)

    def judge_again(self) -> Iterator[tuple[int, Verdict]]:
        """Every round's verdict over all that is in the topic by now."""
        self._read_topic()
        for number in self.entries:
            yield number, self._judge(number)

    def _judge(self, number: int) -> Verdict:
        return judge(self.entries[number], self.copies.get(number, []))

    def _read_topic(self) -> None:
        for copy in self._reader.read_on():
            self.copies.setdefault(int(copy.serial.partition(".")[0]), []).append(copy)

    def _start_load(self, number: int, journal: Path) -> subprocess.Popen[bytes]:
        gateway = self.parts.gateway
        options = {
            "url": gateway.url, "journal": journal, "round": number, "seed": self.seed, "clients": self.clients
        }  # fmt: skip
        arguments = [f"--{name}={value}" for name, value in options.items()]
        variables = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "GATEWAY_TOKEN": gateway.settings.gateway.token,
            "GATEWAY_OTHER_TOKEN": OTHER_TOKEN,
        }
        with (self.folder / "load.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.faults.load", *arguments],
                cwd=ROOT, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
            )  # fmt: skip
