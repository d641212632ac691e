"""The applications that are measured, with one broker, one PostgreSQL and the reference volume."""

import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import psycopg2
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient

from benchmarks.peer_python import peer_python
from benchmarks.stream.application import Application
from benchmarks.stream.clock import Timing, time_until
from benchmarks.stream.details import details
from benchmarks.stream.peers import FLINK, KAFKA_STREAMS, command
from demo import records
from demo.load import as_gateway, send
from include.contracts.pipelines import BOARD, BOARD_DETAIL, MEMBER, SITE_PIPELINE
from include.kafka.access import delivery_name
from include.kafka.admin import create_topics
from include.kafka.committed import committed_by_group
from include.kafka.offsets import OffsetReader
from include.kafka.reader import TopicTail
from include.runtime.kafka_connection import KafkaConnection
from include.runtime.settings import AT_LEAST_ONCE, Settings
from stack.layout import PROJECT_ROOT, Layout
from stack.machine import unused
from tests.servers import DEFAULTS, KafkaServer, PostgresTestServer, kafka_server, postgres_server, wait_until
from tests.support.pipeline import environment, migrated, rows

PARTITIONS = 8
RETENTION_DAYS = 3_650  # records of benchmarks have fixed days
SEED = 7
_DATABASE = "bench"
_READY_S = 180.0
_LEDGER = "SELECT COALESCE(sum(next_offset), 0) FROM offset_ledger WHERE consumer = %s"
_SETTINGS_OF_TESTS = ("STREAM_TRIGGER_INTERVAL_S",)  # removed, so that the default is measured


@dataclass
class Bench:
    """Running servers; `members` and `boards` are the sizes of the reference volume."""

    kafka: KafkaServer
    postgres: PostgresTestServer
    folder: Path
    members: int
    boards: int
    _names: int = 0

    def __post_init__(self) -> None:
        self.offsets = OffsetReader(KafkaConnection(self.kafka.bootstrap_servers))
        self._admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers})
        self.settings = self._new_database()

    def begin(self, *topics: str) -> None:
        """Create these topics and board-detail again, and empty the database."""
        names = [*topics, BOARD_DETAIL.name]
        existing = [name for name in names if name in self._admin.list_topics(timeout=30).topics]
        if existing:
            for future in self._admin.delete_topics(existing, operation_timeout=30).values():
                future.result()
        create_topics(self.settings.kafka)
        self.empty_database()

    def empty_database(self) -> None:
        """Create a new database with our schema, and run a checkpoint, so that no writes of earlier runs remain."""
        self.settings = self._new_database()
        self._checkpoint()

    def fill(self, topic: str, count: int | None = None, first: int = 0) -> int:
        """Send the reference volume, or `count` records, to the topic; returns their number. `first` shifts the ids."""
        began = time.monotonic()
        if topic == MEMBER.name:
            made = as_gateway(topic, records.members(count or self.members, SEED))
        else:
            boards = (
                {**board, "id": board["id"] + first}
                for board in records.boards(count or self.boards, self.members, SEED)
            )
            made = as_gateway(topic, boards) if topic == BOARD.name else details(boards, self.members, SEED, first)
        sent = send(self.kafka.bootstrap_servers, topic, made)
        if sent > 1_000:
            print(f"    {sent:,} records in {topic}, {time.monotonic() - began:.0f} s", flush=True)
        return sent

    def from_standstill(
        self, application: Application, boards: int, progress: Callable[[], int], topic: str = BOARD.name
    ) -> tuple[Timing, float]:
        """Send boards (or details) while the application is stopped, and measure until it has processed them.

        Returns the timing and the application's CPU seconds.
        """
        before = progress()
        application.freeze()
        try:
            self.fill(topic, boards, first=before)
            cpu_s = application.cpu_s()
        finally:
            application.thaw()
        timing = time_until(boards, lambda: progress() - before, time.monotonic(), application)
        return timing, application.cpu_s() - cpu_s

    def in_topic(self, topic: str) -> int:
        """Return the number of records in a topic, from its end offsets."""
        return sum(self.offsets.ends(topic).values())

    def forget_group(self) -> None:
        """Remove the offsets of the join's group, so that exactly-once delivery begins at the topic's start."""
        for future in self._admin.delete_consumer_groups([delivery_name(SITE_PIPELINE)]).values():
            with contextlib.suppress(KafkaException):  # there is none yet
                future.result()

    def delivered(self) -> int:
        """Read board-detail as a reader of committed records does, and return their number.

        Transactions end in markers, which take offsets: the end of the topic does not tell it.
        """
        ends = self.offsets.ends(BOARD_DETAIL.name)
        with contextlib.closing(TopicTail(KafkaConnection(self.kafka.bootstrap_servers), BOARD_DETAIL.name)) as tail:
            tail.begin(dict.fromkeys(ends, 0))
            return sum(map(len, tail.iter_to(ends)))

    def joined(self) -> int:
        """Return the number of committed records in board-detail, and of markers of transactions."""
        return self.in_topic(BOARD_DETAIL.name)

    def served(self) -> int:
        """Return the number of records of board-detail in PostgreSQL, from our offset ledger."""
        return int(rows(self.settings, _LEDGER, ("serve",))[0][0])

    def in_view(self) -> int:
        """Return the number of boards in the view."""
        return int(rows(self.settings, "SELECT count(*) FROM board_detail")[0][0])

    def variables(self, **more: str) -> dict[str, str]:
        """Return the environment of our applications."""
        found = self._environment()
        for name in _SETTINGS_OF_TESTS:
            found.pop(name)
        return {**os.environ, **found, "PYTHONPATH": str(PROJECT_ROOT), **more}

    @contextlib.contextmanager
    def ours(self, *arguments: str, keep_state: bool = False, **more: str) -> Iterator[Application]:
        """Run our speed layer, `spark_jobs/stream.py`, with these arguments and settings.

        The state of earlier runs is removed, as that of Kafka Streams and Flink is, unless `keep_state` is true.
        """
        shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)
        if not keep_state:
            shutil.rmtree(self.folder / "stream-state", ignore_errors=True)
        with self._started(
            "ours", [sys.executable, "spark_jobs/stream.py", "--take-over", *arguments], self.variables(**more)
        ) as started:
            yield started

    def ours_standing_by(self) -> AbstractContextManager[Application]:
        """Run a second driver beside the one that leads, with a port of its own."""
        variables = self.variables(STREAM_METRICS_PORT=str(*unused(1)))
        return self._started("ours standing by", [sys.executable, "spark_jobs/stream.py"], variables)

    @contextlib.contextmanager
    def kafka_streams(self, guarantee: str = AT_LEAST_ONCE) -> Iterator[Application]:
        """Run Kafka Streams with two threads and no state; its internal topics are removed afterwards."""
        name = f"join-{self._next()}"
        try:
            with self.kafka_streams_of(name, self._state(), guarantee) as started:
                yield started
        finally:
            made = [topic for topic in self._admin.list_topics(timeout=30).topics if topic.startswith(name)]
            for future in self._admin.delete_topics(made).values() if made else ():
                future.result()

    def kafka_streams_of(
        self, name: str, state: Path, guarantee: str = AT_LEAST_ONCE, standbys: int = 0
    ) -> AbstractContextManager[Application]:
        """Run an instance of the application `name` with two threads; its state and topics stay."""
        arguments = [self.kafka.bootstrap_servers, name, str(state), "2", str(standbys), guarantee]
        return self._started(f"Kafka Streams {state.name}", [*command(KAFKA_STREAMS, self.folder), *arguments])

    @contextlib.contextmanager
    def flink(self, backend: str, guarantee: str = AT_LEAST_ONCE) -> Iterator[Application]:
        """Run Flink with a parallelism of two, in one process."""
        name, state = f"join-{self._next()}", str(self._state())
        arguments = [self.kafka.bootstrap_servers, name, state, "2", backend, guarantee]
        with self._started(f"Flink {backend}", [*command(FLINK, self.folder), *arguments]) as started:
            yield started

    @contextlib.contextmanager
    def sink(self, way: str) -> Iterator[tuple[Application, Callable[[], int]]]:
        """Run the hand-written sink with its own database; yields it with a function that counts its records."""
        self.postgres.new_database("sink")
        self._checkpoint()
        group = f"sink-{self._next()}"
        arguments = [self.kafka.bootstrap_servers, self.postgres.superuser_dsn("sink"), group, way]
        program = str(Path(__file__).with_name("sink.py"))
        settings = {"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": group, "enable.auto.commit": False}
        with (
            self._started(f"sink {way}", [str(peer_python()), program, *arguments]) as started,
            contextlib.closing(Consumer(settings)) as asked,
        ):
            yield started, lambda: _committed_records(asked)

    def wait_until_loaded(self, application: Application) -> None:
        """Wait until Kafka Streams has read all members."""
        self._wait(application, lambda: _members_read(application) >= self.members, "the members are loaded")

    def wait_until_running(self, application: Application) -> None:
        """Wait until our queries are running."""
        self._wait(application, lambda: "queries run" in application.log.read_text(), "the queries run")

    def _wait(self, application: Application, condition: Callable[[], bool], what: str) -> None:
        def holds() -> bool:
            application.check()
            return condition()

        wait_until(holds, _READY_S, f"{what}, see {application.log}")

    @contextlib.contextmanager
    def _started(self, name: str, line: list[str], variables: Mapping[str, str] | None = None) -> Iterator[Application]:
        log = self.folder / f"{name.replace(' ', '-').lower()}.log"
        application = Application(name, line, log, os.environ if variables is None else variables, PROJECT_ROOT)
        try:
            yield application
        finally:
            application.end()

    def _new_database(self) -> Settings:
        migrated(self.kafka, self.postgres, _DATABASE, self.folder)
        return Settings.from_environment(self._environment())

    def _environment(self) -> dict[str, str]:
        found = environment(self.kafka, self.postgres, _DATABASE, self.folder)
        return {**found, "KAFKA_PARTITIONS": str(PARTITIONS), "KAFKA_RETENTION_DAYS": str(RETENTION_DAYS)}

    def _checkpoint(self) -> None:
        connection = psycopg2.connect(self.postgres.superuser_dsn())
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                cursor.execute("CHECKPOINT")
        finally:
            connection.close()

    def _state(self) -> Path:
        folder = self.folder / "state"
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def _next(self) -> int:
        self._names += 1
        return self._names


def _committed_records(group: Consumer) -> int:
    found = committed_by_group(group, BOARD_DETAIL.name, range(PARTITIONS), 30)
    return sum(max(0, each.offset) for each in found)


def _members_read(application: Application) -> int:
    """Return the last number of members in the log of Kafka Streams."""
    said = re.findall(r"^members ([0-9]+)$", application.log.read_text(), re.MULTILINE)
    return int(said[-1]) if said else 0


@contextlib.contextmanager
def bench(members: int, boards: int) -> Iterator[Bench]:
    """Run the servers with data on the project's disk; the data are removed at the end."""
    folder = Layout.of().state / "bench-stream"
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("kafka", "postgres"):
        (folder / name).mkdir(parents=True)
    try:
        with (
            kafka_server(folder / "kafka", java_options=()) as kafka,
            postgres_server(folder / "postgres", DEFAULTS) as postgres,
        ):
            yield Bench(kafka, postgres, folder, members, boards)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
