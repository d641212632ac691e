"""One round: load, faults, health again, the store drained, the topic read, the verdict; and certificates meanwhile."""

import datetime as dt
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from include.contracts.definition import Definition
from include.gateway.broker_clock import MAX_SKEW_S
from include.integrity.days.comparison import verify
from include.integrity.days.gateways import unsent
from include.integrity.days.publication import publish
from tests.faults.journal import Entry, read_journal
from tests.faults.load import Summary
from tests.faults.parts import OTHER_TOKEN, Held, Parts
from tests.faults.plan import OF_A_START, OF_THE_BROKER, Fault, Plan, Span, plan
from tests.faults.rows import RowLoad, Version, judge_rows, missing_versions, saved, version_of
from tests.faults.topic import TopicReader, copy_of
from tests.faults.verdict import Copy, Verdict, judge, of_another_time
from tests.servers import wait_until
from tests.support.certifying import certify_alone
from tests.support.gateway_process import ROOT, GatewayProcess
from tests.support.serving import DAY, build

_AFTERWARDS_S = 1.0  # of load when all is well again
_CONTROL_S = 4.0
_SKEW = dt.timedelta(seconds=MAX_SKEW_S + 1)
_LOAD_BEGINS_S = 60.0
_LOAD_ENDS_S = 120.0


@dataclass(frozen=True)
class Round:
    """A round that was run. `held` is what the gateway said it could not send; `damages` were done to its store.

    `told` are the spans of a wrong clock that it told.
    """

    number: int
    plan: Plan
    verdict: Verdict
    summary: Summary
    held: Held
    damages: list[str]
    told: Sequence[Span]
    reconciled: int
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
        if self.held.lost:
            felt |= {Fault.PAGE_DAMAGED}
        if self.held.set_aside:
            felt |= {Fault.ROW_CHANGED}
        if not self.reconciled:
            felt -= {Fault.ANSWERS_LOST}
        if self.told:
            felt |= {Fault.CLOCK_SET}
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
    counted: dict[int, int] = field(default_factory=dict)
    answered: dict[int, list[Version]] = field(default_factory=dict)
    versions: list[Version] = field(default_factory=list)
    clock: dict[int, list[str]] = field(default_factory=dict)
    times: dict[int, tuple[dt.datetime, dt.datetime]] = field(default_factory=dict)  # in which a round's events came

    def __post_init__(self) -> None:
        stream = self.parts.pipeline.stream
        self._reader = TopicReader(self.parts.broker.bootstrap_servers, stream.name, partial(copy_of, stream.key_field))
        self._row_reader = TopicReader(self.parts.broker.bootstrap_servers, "member", version_of)
        settings = self.parts.settings
        build(settings, [], cut=0, run_id="faults")
        verify(settings, DAY, "faults")
        publish(settings, DAY, "faults")

    def run(self, number: int, theme: tuple[Fault, ...]) -> Round:
        """Run one round and return its verdict. Raises AssertionError if the parts do not become healthy again."""
        parts, began, began_at = self.parts, time.monotonic(), dt.datetime.now(dt.UTC)
        exits, damages, cuts, reconciled = len(parts.exits), len(parts.damages), parts.cuts, parts.reconciled
        faults, told = plan(self.seed, number, theme), len(parts.told)
        if Fault.DISK_FULL in theme:
            self.parts.renew_store()
        journal = self.folder / f"round-{number}.jsonl"
        with nullcontext() if faults else parts.long_deadline():
            load = start_load(parts.gateway, parts.pipeline, journal, number, self.seed, self.clients)
            gateway = self.parts.gateway
            rows = None
            if {*theme} & {Fault.ANSWERS_LOST, Fault.CLOCK_SET}:
                rows = RowLoad(gateway.url, gateway.settings.gateway.token, f"{number}")
            try:
                wait_until(
                    lambda: journal.exists() and journal.stat().st_size > 0, _LOAD_BEGINS_S, "the load has begun"
                )
                if not faults:
                    time.sleep(_CONTROL_S)
                self.parts.suffer(faults)
                time.sleep(_AFTERWARDS_S)
                output, _ = load.communicate(timeout=_LOAD_ENDS_S)
            finally:
                load.kill()
                load.wait()
                if rows:
                    rows.stop()
        assert output, f"the load broke, see its log in {self.folder}"
        summary = msgspec.json.decode(output, type=Summary)
        assert summary.is_complete, f"calls stayed without an answer: {summary}"
        held = self._held()
        self.counted[number] = held.total
        self.entries[number] = read_journal(journal)
        if rows:
            assert parts.reconcile(began_at) == 0, "reconcile failed although all was well"
            self.answered[number] = rows.answered
            self.entries[number] += [Entry("odd", "a row", problem=problem) for problem in rows.odd]
        if not {*theme} & {*OF_A_START} and len(parts.exits) == exits:
            self.times[number] = began_at - _SKEW, dt.datetime.now(dt.UTC) + _SKEW
        if {*theme} == {Fault.CLOCK_SET}:
            self.clock[number] = [*self._untold(faults, parts.told[told:]), *self._held_up(number, summary, rows)]
        self._read_topic()
        took_s = time.monotonic() - began
        cuts, reconciled, ended = parts.cuts - cuts, parts.reconciled - reconciled, parts.exits[exits:]
        done = parts.damages[damages:]
        verdict = self._judge(number)
        return Round(number, faults, verdict, summary, held, done, parts.told[told:], reconciled, cuts, ended, took_s)

    def judge_again(self) -> Iterator[tuple[int, Verdict]]:
        """Yield each round's verdict over all present records of the topic."""
        self._read_topic()
        for number in self.entries:
            yield number, self._judge(number)

    def _held(self) -> Held:
        """Return the events that the drained store still holds, and give them up: no day is certified before."""
        held = self.parts.wait_until_drained()
        reason = certify_alone(self.parts.settings, DAY, unsent).reason
        assert (reason is None) == (held.total == 0), f"{held}: {reason}"
        if held.total:
            self.parts.give_up()
            self.parts.wait_until_healthy()
            assert certify_alone(self.parts.settings, DAY, unsent).reason is None
        return held

    @staticmethod
    def _untold(faults: Plan, told: Sequence[Span]) -> Iterator[str]:
        return (f"{span} was not told" for span in faults if span not in told)

    def _held_up(self, number: int, summary: Summary, rows: RowLoad | None) -> Iterator[str]:
        """Yield the events that were not in Kafka when they were answered, although Kafka was there all the time."""
        yield from (f"{entry.serial} waited" for entry in self.entries[number] if entry.kept_in == "fallback")
        if unavailable := summary.answers.get(503, 0) + (rows.unavailable if rows else 0):
            yield f"{unavailable} calls were answered 503"

    def _judge(self, number: int) -> Verdict:
        problems, missing = [], []
        copies, clock = self.copies.get(number, []), [*self.clock.get(number, ())]
        if number in self.times:
            clock += of_another_time(copies, *self.times[number])
        if answered := self.answered.get(number):
            problems = judge_rows(answered, saved(self.parts.settings.database), self.versions)
            missing = missing_versions(answered, self.versions)
        return judge(self.entries[number], copies, self.counted[number], problems, missing, clock)

    def _read_topic(self) -> None:
        self.versions += self._row_reader.read_on()
        for copy in self._reader.read_on():
            self.copies.setdefault(int(copy.serial.partition(".")[0]), []).append(copy)


def start_load(
    gateway: GatewayProcess, pipeline: Definition, journal: Path, number: int, seed: int, clients: int
) -> subprocess.Popen[bytes]:
    """Start `tests.faults.load` against the gateway; it ends with its standard input. Its log is beside the journal."""
    options = {
        "url": gateway.url, "pipeline": pipeline.name, "journal": journal, "round": number, "seed": seed,
        "clients": clients,
    }  # fmt: skip
    arguments = [f"--{name}={value}" for name, value in options.items()]
    variables = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "GATEWAY_TOKEN": gateway.settings.gateway.token,
        "GATEWAY_OTHER_TOKEN": OTHER_TOKEN,
    }
    with (journal.parent / "load.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.faults.load", *arguments],
            cwd=ROOT, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
