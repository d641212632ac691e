"""One round: load, faults, everything taken, the topics read, the verdict."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from include.contracts.topics import Topic
from include.runtime.settings import EXACTLY_ONCE
from tests.faults.stream_load import Load
from tests.faults.stream_parts import Parts
from tests.faults.stream_plan import Effect, Fault, Plan
from tests.faults.stream_topics import Log, Record, TopicReader
from tests.faults.stream_verdict import Row, Seen, Verdict, judge
from tests.servers import wait_until

_RATE = 250.0  # records a second
_CALM_S = 4.0
_AFTERWARDS_S = 1.0  # of load when all is well again
_CAUGHT_UP_S = 120.0
_SETTLED_S = 30.0
_LOOK_S = 0.5


@dataclass(frozen=True)
class Round:
    """A round that was run. `endings` are those of drivers: what was done to each, and its exit code."""

    number: int
    plan: Plan
    verdict: Verdict
    made: int
    duplicates: int
    endings: list[tuple[str, int]]
    behind_s: float
    took_s: float


@dataclass
class Proof:
    """Runs rounds over the same parts. Each verdict is over all keys of all rounds so far."""

    parts: Parts
    seed: int
    settled: dict[int, Row] = field(default_factory=dict)
    sent: list[Record] = field(default_factory=list)  # all that the stream's topic has
    seen: Seen | None = None

    def __post_init__(self) -> None:
        self.pipeline = self.parts.settings.pipeline
        self.log = Log(self.pipeline, refused=self.parts.poison)
        kafka = self.parts.settings.kafka
        self.reader = TopicReader(kafka.bootstrap_servers, kafka.partitions)
        self._loads = ThreadPoolExecutor(1)
        self._last: Load | None = None
        self._duplicates = 0

    def run(self, number: int, plan: Plan) -> Round:
        """Run one round and return its verdict. Raises AssertionError if the driver does not catch up."""
        began, endings = time.monotonic(), len(self.parts.driver.ended)
        servers = self.parts.settings.kafka.bootstrap_servers
        load = Load(self.pipeline, servers, self.seed, number, _RATE, self._last)
        running = self._loads.submit(load.run)
        try:
            if not plan:
                time.sleep(_CALM_S)
            for fault in plan:
                if fault.effect is Effect.TOPIC_MADE_AGAIN:
                    self._make_topic_again(load, fault)
                else:
                    self.parts.suffer((fault,))
            time.sleep(_AFTERWARDS_S)
        finally:
            load.stop()
            running.result()
        self._last = load
        ended = time.monotonic()
        wait_until(lambda: self.parts.is_caught_up(self.reader), _CAUGHT_UP_S,
                   f"everything is taken, see {self.parts.driver.log}")  # fmt: skip
        verdict = self._judge_when_settled()
        behind_s = time.monotonic() - ended
        duplicates, self._duplicates = verdict.duplicates - self._duplicates, verdict.duplicates
        return Round(number, plan, verdict, load.made, duplicates, self.parts.driver.ended[endings:], behind_s,
                     time.monotonic() - began)  # fmt: skip

    def judge(self) -> Verdict:
        """Return the verdict over the present content."""
        self._read(self.pipeline.table, self.pipeline.stream, self.pipeline.output)
        self.seen = self.parts.look()
        return judge(self.log, self.seen, self.settled, self.parts.settings.stream.delivery == EXACTLY_ONCE)

    def _read(self, *topics: Topic) -> None:
        for record in self.reader.read_on(*(topic.name for topic in topics)):
            self.log.take(record)
            if record.place.topic == self.pipeline.stream.name:
                self.sent.append(record)

    def _make_topic_again(self, load: Load, fault: Fault) -> None:
        """All that the former topic had is sent again, whether the stream had taken it or not, while records wait.

        Some are sent twice: else each record would have its offset again, and a place of the former topic would pass
        for one of the new.
        """
        time.sleep(fault.after_s)
        again, driver = self.parts.again, self.parts.driver
        wait_until(lambda: bool(self.parts.look().pending), _CAUGHT_UP_S, "a record is pending")
        if fault.place:
            driver.arm_pause(fault.place)
            if not driver.is_paused_at(fault.place):
                return
        with load.held():
            self._read(self.pipeline.table, self.pipeline.stream)
            try:
                former_id = again.make()
            finally:
                if fault.place:
                    driver.go_on(fault.place)
            again.wait_until_refused()
            self._read(self.pipeline.output)
            self.log.replace_stream(former_id)
            self.reader.begin_again(self.pipeline.stream.name)
            self.settled.clear()  # a row that is made again may name the same places, of the new topic
            driver.disarm_records()
            self.parts.poison.clear()
            sent, self.sent = self.sent, []
            again.send_again([*sent[::10], *sent])
            again.repair()
        self.parts.felt.add(fault.name)

    def _judge_when_settled(self) -> Verdict:
        """Records that waited for the table are sent after the others were taken: give that its time."""
        deadline = time.monotonic() + _SETTLED_S
        verdict = self.judge()
        while verdict.faults and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
            verdict = self.judge()
        assert self.seen is not None
        self.settled |= {row.key: row for row in self.seen.rows}
        return verdict
