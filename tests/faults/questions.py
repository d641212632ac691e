"""The proof of the order of questions: `python -m tests.faults.questions --rounds 20 --seed 7`.

The stream starts and takes all records, an archive run, a rebuild from the topics and one from the archive are made, a
ledger is repaired; all of them in this process, so that the questions that they ask Kafka and PostgreSQL can be
counted. Before one of the questions of each step, at a seeded number, something happens: a record of the day arrives in
a quiet partition, late or replayed, a deletion, a change, an author, or an archive run. Round after round takes each
step with each event. Then an independent consumer reads the raw topics, and what the day must show is computed from
them in plain Python: nothing is left out or counted twice, in the day, in the archive and in the ledger.
The first round has no events. Exit codes are those of `tests/faults/frame.py`; `--only N` runs a single round.
"""

import argparse
import contextlib
import dataclasses
import datetime as dt
import gc
import io
import itertools
import json
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import psycopg2
from pyspark.sql import SparkSession

from include.archive.catalogue import ArchiveBusy, ArchiveStore
from include.contracts.clock import SystemClock, epoch_ms, rfc3339
from include.contracts.day import Day
from include.contracts.errors import OK
from include.contracts.headers import ACCEPTED_AT, EVENT_ID
from include.contracts.topics import Topic
from include.database.named import fill
from include.database.offset_ledger import OffsetLedger
from include.integrity.days.comparison import verify
from include.integrity.days.publication import publish
from include.kafka.offsets import OffsetReader
from include.runtime.settings import Settings
from spark_jobs import repair
from spark_jobs.archive.archiver import archive_topics
from spark_jobs.archive.check import verify_archive
from spark_jobs.batch.rebuild import rebuild_day
from spark_jobs.connectors.archive_files import ArchiveFolder
from spark_jobs.speed.driver import QUERIES, Driver
from tests.faults import frame
from tests.faults.batch_parts import DayReader
from tests.faults.promises import Promises
from tests.faults.stream_topics import Log, TopicReader
from tests.servers import KafkaServer, PostgresTestServer, kafka_server, postgres_server
from tests.support.broker import remove_topics
from tests.support.oracle import day_of
from tests.support.pipeline import rows, with_topics
from tests.support.questions import before_question
from tests.support.records import value_of
from tests.support.sending import Sender
from tests.support.spark import opened_session
from tests.support.topic_log import TopicLog

_DEADLINE_S = 120.0
_LOOK_S = 0.2
_CALM = 3  # looks in a row at which nothing is left to do
_FEW = 15  # questions: each step asks more
_SURELY = 0.8  # of the questions of a step: a thread that looks every second asks fewer the next time
_ENOUGH_ROUNDS = 20  # for each event to have come at each step
_QUIET = 3  # a partition without records of the day or later
_STREAM_KEYS, _TABLE_KEYS, _UNKNOWN = range(1, 41), range(1, 9), range(101, 104)


class Step(StrEnum):
    """A step during which something happens."""

    START = "start of the stream"
    ARCHIVE = "archive run"
    REBUILD = "rebuild from the topics"
    REBUILD_ARCHIVED = "rebuild from the archive"
    REPAIR = "repair"


class Event(StrEnum):
    """An event between two questions."""

    RECORD = "a record"
    REPLAY = "a replayed record"
    DELETION = "a deletion"
    CHANGE = "a change"
    AUTHOR = "an author"
    ARCHIVE_RUN = "an archive run"


# an archive run beside an archive run would find it busy
KINDS = tuple((step, event) for step in Step for event in Event if (step, event) != (Step.ARCHIVE, Event.ARCHIVE_RUN))
Plan = dict[Step, tuple[Event, float]]  # what happens, and when: 0 before the first question, 1 after the last


def plans(seed: int, rounds: int) -> list[Plan]:
    """The event of each step in each round; none in the first round."""
    chance = random.Random(seed)
    waiting = {step: list[Event]() for step in Step}

    def draw(step: Step) -> tuple[Event, float]:
        if not waiting[step]:
            events = [event for each, event in KINDS if each is step]
            waiting[step] = chance.sample(events, len(events))
        return waiting[step].pop(), chance.random()

    return [{}, *({step: draw(step) for step in Step} for _ in range(rounds - 1))]


@dataclass
class Verdict(Promises):
    """The findings. Each list has the violations of one promise."""

    left_out: list[str] = field(default_factory=list)
    made_up: list[str] = field(default_factory=list)
    wrong_content: list[str] = field(default_factory=list)
    shown_twice: list[str] = field(default_factory=list)
    not_archived: list[str] = field(default_factory=list)
    archived_twice: list[str] = field(default_factory=list)
    repaired_wrongly: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Round:
    """A round that was run. `asked`: the questions of each step up to its event, or all of them without one."""

    number: int
    plan: Plan
    verdict: Verdict
    asked: dict[Step, int]
    happened: set[tuple[Step, Event]]
    took_s: float


class _Driver(Driver):
    """The stream's driver in a session that it does not close."""

    session: SparkSession

    def _open_session(self) -> SparkSession:
        for query in self._queries:
            query.preload()
        return self.session


class Parts:
    """A broker, a PostgreSQL and a session of Spark, for all rounds."""

    def __init__(
        self, kafka: KafkaServer, postgres: PostgresTestServer, spark: SparkSession, folder: Path, pipeline: str
    ) -> None:
        self.kafka, self.postgres, self.spark, self.folder, self.pipeline = kafka, postgres, spark, folder, pipeline
        self._questions = dict.fromkeys(Step, _FEW)  # of each step, as the round without events counted them

    def run(self, number: int, seed: int, plan: Plan) -> Round:
        """Run one round over new topics, a new database and a new archive."""
        began = time.monotonic()
        remove_topics(self.kafka.bootstrap_servers)
        folder = self.folder / f"round-{number}"
        folder.mkdir()
        settings = with_topics(self.kafka, self.postgres, f"questions_{number}", folder, self.pipeline)
        archive = dataclasses.replace(settings.batch, archive_dir=str(folder / "archive"))
        stream = dataclasses.replace(settings.stream, metrics_port=0)
        world = World(dataclasses.replace(settings, batch=archive, stream=stream), self.spark, seed + number)
        verdict, asked, happened = Verdict(), dict[Step, int](), set[tuple[Step, Event]]()
        world.fill()
        for step, work in world.steps(verdict).items():
            event, when = plan.get(step, (None, 0.0))
            if step is Step.REPAIR:
                world.lose_records()
            before = 0 if event is None else 1 + int(when * _SURELY * self._questions[step])
            happen = world.events()[event] if event else lambda: None
            with before_question(before, happen) as questions:
                work()
            asked[step] = questions.asked
            if event is None:
                self._questions[step] = questions.asked
            elif questions.has_happened:
                happened.add((step, event))
            world.start()
            world.judge_day(f"after {step}", verdict)
        self._end_sessions(settings.database.name)
        return Round(number, plan, verdict, asked, happened, time.monotonic() - began)

    def _end_sessions(self, database: str) -> None:
        """End what the round's drivers keep open: their processes would have ended."""
        with contextlib.closing(psycopg2.connect(self.postgres.superuser_dsn(database))) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                               " WHERE datname = %s AND pid <> pg_backend_pid()", (database,))  # fmt: skip


class World:
    """One pipeline with records of one day, the keys of which are all in partitions that their number gives."""

    def __init__(self, settings: Settings, spark: SparkSession, seed: int) -> None:
        self.settings, self._spark = settings, spark
        self.pipeline = settings.pipeline
        self.day = Day.of(SystemClock().now(), settings.timezone).before(4)
        self._chance = random.Random(seed)
        self._sender = Sender(settings.kafka.bootstrap_servers)
        self._reader = TopicReader(settings.kafka.bootstrap_servers, settings.kafka.partitions)
        self._log = Log(self.pipeline)
        self._days = DayReader(settings)
        self._clock = itertools.count(1)
        self._new_keys = itertools.count(1_001)
        self._runs = itertools.count(1)
        self._lost = ("", 0, 0, 0)  # topic, partition, from, to

    def fill(self) -> None:
        """Send the first records. The quiet partition has old ones alone."""
        table, stream = self.pipeline.table, self.pipeline.stream
        for key in _TABLE_KEYS:
            self.send(table, key, {}, timestamp=self.day.start - dt.timedelta(days=2))
        for key in _STREAM_KEYS:
            joined = self._chance.choice([*_TABLE_KEYS, *_UNKNOWN])
            self.send(stream, key, {self.pipeline.join_field: joined})
        long_ago = rfc3339(self.day.start - dt.timedelta(days=3))
        for key in range(901, 904):
            self.send(stream, key, {self.pipeline.join_field: 1, self.pipeline.day_field: long_ago}, _QUIET,
                      timestamp=self.day.start - dt.timedelta(days=3))  # fmt: skip

    def events(self) -> dict[Event, Callable[[], object]]:
        """Return the work of each event, with a key that nothing else concerns."""
        stream, joined = self.pipeline.stream, {self.pipeline.join_field: 1}
        return {
            Event.RECORD: lambda: self.send(stream, next(self._new_keys), joined, _QUIET, timestamp=self._now()),
            Event.REPLAY: lambda: self.send(stream, next(self._new_keys), joined, _QUIET),
            Event.DELETION: lambda: self.send(stream, self._chance.choice(_STREAM_KEYS), None, timestamp=self._now()),
            Event.CHANGE: lambda: self.send(stream, self._chance.choice(_STREAM_KEYS), joined, timestamp=self._now()),
            Event.AUTHOR: lambda: self.send(
                self.pipeline.table, self._chance.choice(_UNKNOWN), {}, timestamp=self._now()
            ),
            Event.ARCHIVE_RUN: self._archive_unless_busy,
        }

    def steps(self, verdict: Verdict) -> dict[Step, Callable[[], object]]:
        """The steps, in their order."""
        return {
            Step.START: self.start,
            Step.ARCHIVE: lambda: self._archive_and_judge(verdict),
            Step.REBUILD: lambda: self._rebuild(from_archive=False),
            Step.REBUILD_ARCHIVED: lambda: self._rebuild(from_archive=True),
            Step.REPAIR: lambda: self._repair(verdict),
        }

    def send(
        self, topic: Topic, key: int, fields: dict[str, Any] | None, partition: int | None = None,
        timestamp: dt.datetime | None = None,
    ) -> None:  # fmt: skip
        """Send a new version of a key: its day is the day, and each version is newer than the one before."""
        number = next(self._clock)
        at = rfc3339(self.day.start + dt.timedelta(hours=1, milliseconds=number))
        value = None
        if fields is not None:
            value = json.dumps({**value_of(topic, key, number, at), **fields}, ensure_ascii=False).encode()
        self._sender.send(
            topic.name, value, str(key).encode(), partition=key % _QUIET if partition is None else partition,
            timestamp=epoch_ms(timestamp or self.day.start + dt.timedelta(hours=2)),
            headers=[(EVENT_ID, f"e{number}".encode()), (ACCEPTED_AT, at.encode())],
        )  # fmt: skip
        self._sender.finish()

    def lose_records(self) -> None:
        """Retention removes records that the stream has not taken; one that came after them is left."""
        stream, fields = self.pipeline.stream, {self.pipeline.join_field: 1}
        offsets = OffsetReader(self.settings.kafka.connection)
        begin = offsets.ends(stream.name)[_QUIET]
        for _ in range(3):
            self.send(stream, next(self._new_keys), fields, _QUIET)
        self._lost = (stream.name, _QUIET, begin, begin + 2)
        TopicLog(self.settings.kafka.bootstrap_servers).delete_before(stream.name, _QUIET, begin + 2)

    def start(self) -> None:
        """Start the stream, and stop it when it has taken all records and nothing is left to send."""
        stop = threading.Event()
        driver = _Driver(self.settings, self.pipeline, list(QUERIES), stop)
        driver.session = self._spark
        with ThreadPoolExecutor(1, "driver") as executor:
            running = executor.submit(driver.run)
            calm, deadline = 0, time.monotonic() + _DEADLINE_S
            try:
                while calm < _CALM and not running.done():
                    assert time.monotonic() < deadline, "the stream does not catch up"
                    time.sleep(_LOOK_S)
                    calm = calm + 1 if self._is_calm() else 0
            finally:
                stop.set()
            running.result()
        del driver
        gc.unfreeze()  # the driver freezes all objects, since its process ends with it
        gc.collect()  # its connections

    def _is_calm(self) -> bool:
        """True if all is taken. A record whose author is known does not wait any more."""
        for record in self._reader.read_on(self.pipeline.table.name, self.pipeline.stream.name):
            self._log.take(record)
        waiting = "SELECT count(*) FROM pending_record WHERE {{table_key}} = ANY (%s) AND sent_at IS NULL"
        left = rows(self.settings, fill(waiting, self.pipeline), (list(self._log.table),))
        return left == [(0,)] and self._days.is_caught_up(self._reader)

    def judge_day(self, when: str, verdict: Verdict) -> None:
        """The day shows what the rules say of all records in the raw topics, whatever is final of it."""
        stream, table = ([*itertools.chain.from_iterable(of.values())] for of in (self._log.stream, self._log.table))
        expected = day_of(stream, table, self.day).rows
        shown = [(row.key, row.content) for row in self._days.day(self.day)]
        found = dict(shown)
        counts = Counter(key for key, _ in shown)
        verdict.shown_twice += [f"{when}: key {key}" for key, count in counts.items() if count > 1]
        verdict.left_out += [f"{when}: key {key}" for key in sorted(expected.keys() - found.keys())]
        verdict.made_up += [f"{when}: key {key}" for key in sorted(found.keys() - expected.keys())]
        verdict.wrong_content += [
            f"{when}: key {key}: {found[key]}, not {content}"
            for key, content in sorted(expected.items())
            if found.get(key, content) != content
        ]

    def _now(self) -> dt.datetime:
        return SystemClock().now()

    def _archive(self) -> None:
        """Archive the topics. Of records that are lost it says so: nobody could archive them any more."""
        gap = "removed by the test" if any(self._lost) else None
        run_id = f"run-{next(self._runs)}"
        archive_topics(lambda: self._spark.sparkContext, self.settings, self.pipeline, run_id, gap)

    def _archive_unless_busy(self) -> None:
        with contextlib.suppress(ArchiveBusy):
            self._archive()

    def _archive_and_judge(self, verdict: Verdict) -> None:
        store, folder = ArchiveStore(self.settings.database), ArchiveFolder.of(self.settings.batch)
        offsets = OffsetReader(self.settings.kafka.connection)
        self._archive()
        ends = {topic: offsets.ends(topic) for topic in (self.pipeline.stream.name, self.pipeline.table.name)}
        self._archive()
        verify_archive(lambda: self._spark.sparkContext, self.settings, self.pipeline)
        for topic, ends_before in ends.items():
            paths = [file.path for batch in store.batches(topic) for file in store.records_of(batch.id)]
            held = Counter(
                (row["partition"], row["offset"])
                for path in paths
                for table in folder.batches(path, ["partition", "offset"])
                for row in table.to_pylist()
            )
            there = {(p, offset) for p, end in ends_before.items() for offset in range(end)}
            verdict.not_archived += [f"{topic} {each}" for each in sorted(there - held.keys())]
            verdict.archived_twice += [f"{topic} {each}" for each, count in held.items() if count > 1]

    def _rebuild(self, from_archive: bool) -> None:
        run = f"rebuild-{next(self._runs)}"
        rebuild_day(lambda: self._spark.sparkContext, self.settings, self.pipeline, self.day, run, None, from_archive)
        verify(self.settings, self.day, run)
        publish(self.settings, self.day, run, accept_vanishing=True)

    def _repair(self, verdict: Verdict) -> None:
        """Move the ledger behind the records that are lost, once."""
        ledger = OffsetLedger(self.settings.database)
        tool = repair.Repair(self.settings, OffsetReader(self.settings.kafka.connection), ledger, SystemClock())
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            code = repair.run(tool, list(QUERIES), dry_run=False, force=False)
            left = repair.run(tool, list(QUERIES), dry_run=True, force=False)
        ledger.close()
        moves = rows(self.settings, "SELECT topic, partition, from_offset, to_offset FROM ledger_repair")
        if (code, left) != (OK, OK) or moves != [self._lost]:
            said = printed.getvalue()
            verdict.repaired_wrongly.append(f"exit codes {code} and {left}, moves {moves}, not {self._lost}: {said}")


@contextlib.contextmanager
def parts_in(folder: Path, pipeline: str, spark: SparkSession) -> Iterator[Parts]:
    """Yield the parts, with servers of their own, running; stop these at the end."""
    for name in ("kafka", "postgres"):
        (folder / name).mkdir(parents=True)
    with kafka_server(folder / "kafka") as kafka, postgres_server(folder / "postgres") as postgres:
        try:
            yield Parts(kafka, postgres, spark, folder, pipeline)
        finally:
            gc.collect()  # an admin client that lives on tells the terminal that its broker is gone


def main() -> int:
    """Run the rounds and print what each found."""
    parser = frame.parser_of("Lets records arrive between questions, and looks for what was left out.", one_round=True)
    arguments = frame.parsed(parser)
    return frame.prove("questions", arguments, partial(_prove, arguments))


def _prove(arguments: argparse.Namespace, folder: Path) -> bool:
    done: list[Round] = []
    with opened_session() as spark, parts_in(folder, arguments.pipeline, spark) as parts:
        spark.sparkContext.setLogLevel("OFF")  # a query that is stopped tells of each task
        for number, plan in frame.chosen(arguments, plans(arguments.seed, arguments.rounds)):
            one = parts.run(number, arguments.seed, plan)
            done.append(one)
            told = "; ".join(f"{step}: {event} before question {one.asked[step]}" for step, (event, _) in plan.items())
            print(f"round {number}: {told or 'no events'}\n    {one.took_s:.0f} s", flush=True)
            frame.print_broken(one.verdict.faults)
    frame.print_table([
        {"round": one.number, "happened": len(one.happened), "questions": sum(one.asked.values()),
         "broken": sum(map(len, one.verdict.faults.values())), "seconds": round(one.took_s)}
        for one in done
    ])  # fmt: skip
    happened = set[tuple[Step, Event]]().union(*(one.happened for one in done))
    print(f"events of {len(happened)} kinds, of {len(KINDS)}")
    missing = {*KINDS} - happened if len(done) >= _ENOUGH_ROUNDS else set()
    if missing:
        left = ", ".join(sorted(f"{event} in {step}" for step, event in missing))
        print(f"these never came, so nothing was proved of them: {left}")
    return not (missing or any(one.verdict.faults for one in done))


if __name__ == "__main__":
    sys.exit(main())
