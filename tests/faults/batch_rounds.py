"""One round of the batch layer: load, archive, rebuild, publish, undo, redo, each with its fault; then the verdict."""

import time
from dataclasses import dataclass, field

from include.contracts.clock import SystemClock
from include.contracts.day import Day
from include.integrity.days.due_days import days_to_rebuild
from tests.faults.batch_parts import Digest, Parts, Watch
from tests.faults.batch_plan import Effect, Fault, Plan, Step
from tests.faults.batch_verdict import DayVerdict, judge_changes, judge_corrections, judge_rows
from tests.faults.stream_load import Load
from tests.faults.stream_topics import Log, Record, TopicReader
from tests.servers import wait_until

RECORDS = 600
_RATE = 2_000.0  # records a second
_CAUGHT_UP_S = 120.0
_SETTLED_S = 2.0
_AGAIN = 5  # each so many rounds a day is built twice


@dataclass(frozen=True)
class Round:
    """A round that was run."""

    number: int
    day: Day
    plan: Plan
    verdict: DayVerdict
    looks: int
    took_s: float


@dataclass
class Proof:
    """Runs rounds over the same parts. Each verdict is over all keys of the round's day."""

    parts: Parts
    seed: int
    records: int = RECORDS
    sent: list[Record] = field(default_factory=list)  # all that the stream's topic has
    _last: Load | None = None

    def __post_init__(self) -> None:
        self.pipeline = self.parts.settings.pipeline
        self.log = Log(self.pipeline)
        self.reader = TopicReader(self.parts.broker.bootstrap_servers, self.parts.settings.kafka.partitions)

    def run(self, number: int, plan: Plan) -> Round:
        """Run one round and return its verdict. Raises AssertionError if a step does not succeed after its fault."""
        began = time.monotonic()
        self._load(number)
        day = self._day(number)
        faults = {fault.step: fault for fault in plan}
        verdict = DayVerdict()
        known: set[Digest] = {self.parts.digest(day)}
        run, twin = f"round-{number}", f"round-{number}-twin"
        with Watch(self.parts, day) as watch:
            self._archive(day, run, faults.get(Step.ARCHIVE), verdict)
            before, shown_before = self.parts.day(day), self.parts.digest(day)
            self.parts.run(self._rebuild(day, run), faults.get(Step.REBUILD), self._rebuild(day, twin))
            earlier = self.parts.published(day)
            self.parts.run(self._step("verify", day, "--run-id", run))
            self.parts.run(self._step("publish", day, "--run-id", run), faults.get(Step.PUBLISH))
            after, shown_after = self.parts.day(day), self.parts.digest(day)
            known |= {shown_before, shown_after}
            published = self.parts.published(day)
            assert published is not None, "nothing is published"
            generation = self.parts.generation(published)
            judge_rows(day, self.log, after, generation, verdict)
            judge_corrections(before, after, generation, verdict)
            back = ["--to", str(earlier or 0)]  # 0: the stream's rows alone
            reason = ["--reason", "a fault round"]
            self.parts.run(self._step("undo", day, *back, *reason), faults.get(Step.UNDO),
                           is_done=lambda: self.parts.published(day) == earlier)  # fmt: skip
            if self.parts.digest(day) != shown_before:
                verdict.not_undone.append(f"generation {published}: the day is not what it was before")
            self.parts.run(self._step("redo", day, *reason), faults.get(Step.REDO),
                           is_done=lambda: self.parts.published(day) == published)  # fmt: skip
            if self.parts.digest(day) != shown_after:
                verdict.not_undone.append(f"generation {published}: the day is not what it was after")
            if number % _AGAIN == 0:
                self._build_again(day, f"{run}-again", generation.content_hash, verdict)
        known_half = watch.seen - known
        if Step.CHANGE in faults:
            self._make_topic_again(day, f"{run}-rest", faults[Step.CHANGE], verdict)
        verdict.half_days = [f"{count} rows seen" for count, _ in sorted(known_half)]
        return Round(number, day, plan, verdict, watch.looks, time.monotonic() - began)

    def judge_left_behind(self) -> list[str]:
        """Run `collect`, and return the leftovers of builds that died."""
        self.parts.run(["-m", "pipeline", "days", "collect"])
        return self.parts.left_behind()

    def _archive(self, day: Day, run: str, fault: Fault | None, verdict: DayVerdict) -> None:
        if fault is None or fault.effect is not Effect.NIGHT_MISSED:
            self.parts.run(["spark_jobs/archive_day.py", "--run-id", run], fault)
            return
        yesterday = Day.of(SystemClock().now(), day.zone).before()
        if str(day) not in days_to_rebuild(self.parts.settings, yesterday):
            verdict.not_made_up_for.append(f"day {day} is not in the list of the night after")
        self.parts.felt.add(fault.name)

    def _load(self, number: int) -> None:
        load = Load(self.pipeline, self.parts.broker.bootstrap_servers, self.seed, number, _RATE, self._last)
        load.stop_after(self.records)
        load.run()
        self._last = load
        self._read_all()

    def _read_all(self) -> None:
        """Read the topics once the stream has caught up."""
        wait_until(lambda: self.parts.is_caught_up(self.reader), _CAUGHT_UP_S,
                   f"everything is taken, see {self.parts.driver.log}")  # fmt: skip
        time.sleep(_SETTLED_S)  # records that waited are sent after the others were taken
        wait_until(lambda: self.parts.is_caught_up(self.reader), _CAUGHT_UP_S, "what waited is taken")
        for record in self.reader.read_on(self.pipeline.table.name, self.pipeline.stream.name):
            self.log.take(record)
            if record.place.topic == self.pipeline.stream.name:
                self.sent.append(record)

    def _make_topic_again(self, day: Day, run: str, fault: Fault, verdict: DayVerdict) -> None:
        """Readers see what comes on the new topic, a build of that alone is refused; then the rest is sent again."""
        again, load = self.parts.again, self._last
        assert load is not None
        before = self.parts.day(day)
        former_id = again.make()
        again.wait_until_refused()
        again.repair()
        self.log.replace_stream(former_id)
        self.reader.begin_again(self.pipeline.stream.name)
        sent, self.sent = self.sent, []
        known = set(self.log.table)
        load.go_on()
        self._read_all()
        after = self.parts.day(day)
        judge_changes(day, self.log, before, after, self.log.table.keys() - known, verdict)
        self.parts.run(self._rebuild(day, run))
        self.parts.run(self._step("verify", day, "--run-id", run))
        if not self.parts.is_refused(self._step("publish", day, "--run-id", run)):
            verdict.rest_published.append(f"run {run}: published, although the new topic lacks rows of the day")
        differing = set(self.parts.day(day)) ^ set(after)
        verdict.rest_published += [f"run {run}: key {row.key}, though nothing was published" for row in differing]
        again.send_again(sent)
        self._read_all()
        self.parts.felt.add(fault.name)

    def _day(self, number: int) -> Day:
        """Return the day of the round's load."""
        created = next(v.created for v in reversed(self.log.stream[max(self.log.stream)]) if v.created is not None)
        day = Day.of(created, self.parts.settings.timezone)
        assert day.end <= SystemClock().now(), f"round {number} makes records of a day that is not over"
        return day

    def _build_again(self, day: Day, run: str, content_hash: str, verdict: DayVerdict) -> None:
        self.parts.run(self._rebuild(day, run))
        built = self.parts.newest_of(run)
        if built.content_hash != content_hash:
            verdict.not_the_same_again.append(f"generation {built.id}: {built.content_hash}, not {content_hash}")

    @staticmethod
    def _rebuild(day: Day, run: str) -> list[str]:
        return ["spark_jobs/rebuild_day.py", "--day", str(day), "--run-id", run]

    @staticmethod
    def _step(name: str, day: Day, *more: str) -> list[str]:
        return ["-m", "pipeline", "days", name, "--day", str(day), *more]
