"""The parts that faults happen to: a broker, a PostgreSQL and the driver between them."""

import contextlib
import gc
import os
import random
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psycopg2
from confluent_kafka import Consumer, Producer, TopicPartition

from include.contracts.definition import SITE_NAME
from include.database.named import COORDINATES, fill, query
from include.database.sessions import connect
from include.kafka.access import delivery_name
from include.runtime.failpoints import TASK_FAILPOINTS
from include.runtime.settings import Settings
from tests.faults.stream_bulk import bulk_of_table_records, large_records, many_pending
from tests.faults.stream_driver import Driver
from tests.faults.stream_plan import OF_A_RECORD, Effect, Fault, Plan
from tests.faults.stream_poison import Poison
from tests.faults.stream_topics import Place, TopicReader, consumed, shortened
from tests.faults.stream_verdict import Row, Seen
from tests.faults.topic_again import TopicAgain
from tests.servers import KafkaServer, PostgresTestServer, postgres_server, wait_until
from tests.support.broker import Broker, make_pipeline_topics, proxied_broker
from tests.support.fenced import refuse_unfenced
from tests.support.pipeline import environment, migrated, rows
from tests.support.proxy import Proxy, proxy_to
from tests.support.records import content

_DATABASE = "stream_faults"
_TAKEN_S = 120.0
_RECOVERED_S = 60.0
_ACKNOWLEDGED_S = 1.0  # records that a paused driver has sent
_ISOLATED_S = 1_800.0  # some ten drivers
# Those that are in a transaction come first: a batch is under way there.
_BACKENDS = "SELECT pid FROM pg_stat_activity WHERE usename = 'stream' ORDER BY xact_start NULLS LAST"
_LEASE_WANTED = (
    "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%pg_advisory_xact_lock(7203005%'"
)
_VIEW = "SELECT {{served}} FROM {{view}}"
_PENDING = 'SELECT {{key}}, partition, "offset" FROM pending_record'
# Of a second driver: each is found out at another time.
_BROKEN = ({"SPARK_KAFKA_JARS_DIR": "/nowhere"}, {"STREAM_DRIVER_MEMORY": "1m"}, {"SPARK_KAFKA_JARS_DIR": "/nowhere"})
_REJECTED = 'SELECT 1 FROM reject WHERE topic = %(topic)s AND partition = %(partition)s AND "offset" = %(offset)s'
# One more end of a driver, and the record would become a reject.
_SUSPECTED = "SELECT 1 FROM stream_trial WHERE size = 1 AND failures > 1"
_LEDGER = "SELECT partition, next_offset FROM offset_ledger WHERE consumer = %s"

# A driver that starts has no JVM for a moment, and one to be superseded must lead.
_OF_ONE_THAT_RUNS = (
    Effect.SECOND_DRIVER,
    Effect.DRIVER_FROZEN,
    Effect.BROKEN_SECOND,
    Effect.JVM_KILLED,
    Effect.JVM_FROZEN,
    Effect.CLOCK_SET,
)


@dataclass
class Parts:
    """Real ones. Faults of a round come one after the other; the driver restarts meanwhile, so they meet there too."""

    broker: Broker
    postgres: PostgresTestServer
    driver: Driver
    settings: Settings
    proxy: Proxy  # between driver and PostgreSQL
    executor: ThreadPoolExecutor  # lives as long as the parts: the kernel ends a server with the thread that started it
    again: TopicAgain
    kafka_proxy: Proxy | None = None  # between driver and broker
    serve: Driver | None = None  # of the query of this name; `driver` then runs the other one alone
    felt: set[str] = field(default_factory=set)
    poison: set[Place] = field(default_factory=set)  # records that cannot be taken

    def suffer(self, plan: Plan) -> None:
        """Apply the faults; on return, a part may still be starting."""
        for fault in plan:
            time.sleep(fault.after_s)
            wait_until(lambda: not rows(self.settings, _SUSPECTED), _TAKEN_S, f"no record is suspected: {fault}")
            if self.executor.submit(self._with_driver_at(fault)._live_through, fault).result():
                self.felt.add(fault.name)

    def is_caught_up(self, reader: TopicReader) -> bool:
        """True if each query has processed its topic, according to the ledger."""
        return all(self.has_taken(query, reader) for query in consumed(self.settings.pipeline))

    def has_taken(self, consumer: str, reader: TopicReader) -> bool:
        """True if the query has processed its topic, according to the ledger."""
        ledger = dict(rows(self.settings, _LEDGER, (consumer,)))
        ends = reader.ends(consumed(self.settings.pipeline)[consumer])
        return {p: end for p, end in ends.items() if end != ledger.get(p, 0)} == {}

    def look(self) -> Seen:
        """Return the present content of the tables."""
        pipeline = self.settings.pipeline
        names = (*pipeline.relational_columns, *COORDINATES)
        view = [self._row(dict(zip(names, row, strict=True))) for row in rows(self.settings, fill(_VIEW, pipeline))]
        pending: dict[int, set[tuple[int, int]]] = defaultdict(set)
        for key, partition, offset in rows(self.settings, fill(_PENDING, pipeline)):
            pending[key].add((partition, offset))
        rejects = {Place(*row) for row in rows(self.settings, 'SELECT topic, partition, "offset" FROM reject')}
        return Seen(view, pending, rejects)

    def _row(self, row: Mapping[str, Any]) -> Row:
        pipeline = self.settings.pipeline
        source, joined, detail = (
            (row[f"{side}_partition"], row[f"{side}_offset"]) for side in ("stream", "table", "kafka")
        )
        return Row(row[pipeline.key_column], source, joined, detail, shortened(content(pipeline, "stream", row)),
                   shortened(content(pipeline, "table", row)))  # fmt: skip

    def _with_driver_at(self, fault: Fault) -> "Parts":
        """Return the same parts, with the driver that reaches the fault's failpoint."""
        is_of_serve = fault.place is not None and fault.place.startswith("serve.")
        return replace(self, driver=self.serve) if self.serve is not None and is_of_serve else self

    def _live_through(self, fault: Fault) -> bool:
        """Apply a fault; False if the driver never reached its failpoint."""
        place = fault.place
        if place is not None and fault.effect in OF_A_RECORD:
            self._poison(place, "fail" if fault.effect is Effect.RECORD_FAILS else "kill")
            return True
        if place is None:
            self._begin_and_end(fault)
            self.driver.wait_until_ended()
            return True
        if fault.effect is Effect.DRIVER_KILLED and place not in TASK_FAILPOINTS:
            self.driver.arm_kill(place)
            if place == "table.while_loading":
                self.driver.kill()
            return self.driver.is_killed_at(place)
        if fault.effect is Effect.COMMIT_UNANSWERED:  # a start commits what is committed, which cannot be told apart
            wait_until(self.driver.is_healthy, _TAKEN_S, f"a driver runs: {fault}")
        try:
            self.driver.arm_pause(place)
            if not self.driver.is_paused_at(place):
                return False
            self._begin_and_end(fault)
        finally:
            self.driver.go_on(place)
        self.driver.wait_until_ended()
        return True

    def _begin_and_end(self, fault: Fault) -> None:
        if fault.place is None and fault.effect in _OF_ONE_THAT_RUNS:  # one that pauses runs, but may not be healthy
            wait_until(self.driver.is_healthy, _TAKEN_S, f"a driver runs: {fault}")
        match fault.effect:
            case Effect.DRIVER_KILLED:
                self.driver.kill()
            case Effect.PYTHON_KILLED:
                self.driver.kill(jvm=False)
            case Effect.JVM_KILLED:
                self.driver.kill(python=False)
            case Effect.SECOND_DRIVER:
                before = self._epoch()
                self.driver.start_second()
                wait_until(lambda: self._epoch() > before or self._is_lease_wanted(), _TAKEN_S, "it takes the lease")
            case Effect.BACKENDS_TERMINATED:
                self._superuser(f"SELECT pg_terminate_backend(pid) FROM ({_BACKENDS}) one")
            case Effect.BACKEND_KILLED:
                self._kill_backend()
            case Effect.POSTGRES_RESTARTED:
                self.postgres.stop()
                self.postgres.start()
            case Effect.POSTGRES_CRASHED:
                self._crash_postgres()
            case Effect.POSTGRES_AWAY:
                self._away(fault, self.postgres.stop, self.postgres.start)
            case Effect.BROKER_FROZEN:
                self._away(fault, self.broker.freeze, self.broker.thaw)
            case Effect.BROKER_KILLED:
                self._away(fault, self.broker.kill, self.broker.start)
            case Effect.ANSWERS_LOST:
                assert self.kafka_proxy is not None
                self._away(fault, self.kafka_proxy.lose_answers, self.kafka_proxy.bring_answers)
            case Effect.COMMIT_UNANSWERED:
                self._leave_commit_unanswered(fault)
            case Effect.WORKERS_KILLED:
                self.driver.kill_workers(0.0 if fault.place else fault.lasts_s)
            case Effect.WORKERS_FROZEN:
                self._away(fault, self.driver.freeze_workers, self.driver.thaw_workers)
            case Effect.DAEMON_KILLED:
                self._away(fault, self.driver.kill_daemon, self.driver.kill_workers)  # Spark looks for it when they end
            case Effect.LARGE_RECORDS:
                large_records(self.settings)
            case Effect.MANY_PENDING:
                many_pending(self.settings)
            case Effect.BULK_OF_TABLE_RECORDS:
                bulk_of_table_records(self.settings)
            case Effect.DRIVER_FROZEN:
                self._freeze_driver()
            case Effect.JVM_FROZEN:
                self.driver.freeze(python=False)
            case Effect.HOST_LOST:
                self._lose_host()
            case Effect.BROKEN_SECOND:
                lease = self._lease()
                codes = [self.driver.run_broken(**broken) for broken in _BROKEN]
                assert 0 not in codes, codes
                assert self._lease() == lease, "a driver that cannot run took the lease"
            case Effect.OUT_OF_MEMORY:
                self.driver.exhaust()
            case Effect.TRANSACTION_HUNG:
                self._hang_transaction(fault.lasts_s)
            case Effect.CLOCK_SET:
                self._set_clock(fault.wrong_s, fault.lasts_s)
            case Effect.DATABASE_RESTORED:
                self._restore_database(fault.lasts_s)
            case Effect.SEGMENTS_DAMAGED:
                self._damage_segments()
                self.driver.kill()

    def _restore_database(self, lasts_s: float) -> None:
        """Put its files of a while before in their place, and note that, before the next driver begins."""
        postgres = self.postgres
        backup = postgres.data.with_name("backup")
        postgres.stop()
        subprocess.run(["cp", "-a", postgres.data, backup], check=True)  # with their owner
        postgres.start()
        wait_until(self.driver.is_healthy, _TAKEN_S, "a driver runs beside the database that will be lost")
        time.sleep(lasts_s)
        with self.driver.held():  # nothing of it may go on beside a database of before
            postgres.stop()
            shutil.rmtree(postgres.data)
            backup.rename(postgres.data)
            postgres.start()
            database = self.settings.database
            with connect(database, "gateway", "restored") as connection, connection.cursor() as cursor:
                cursor.execute(query("note_restored", cursor))
            self.driver.kill()

    def _damage_segments(self) -> None:
        """Put a copy with one other byte in the place of each segment; the driver that runs goes on with its own."""
        for path in self.settings.stream.state_dir.rglob("*.arrow"):
            with contextlib.suppress(FileNotFoundError):  # merged meanwhile
                content = bytearray(path.read_bytes())
                content[random.randrange(len(content))] ^= 0x10
                beside = path.with_suffix(".damaged")
                beside.write_bytes(content)
                beside.rename(path)

    def _freeze_driver(self) -> None:
        """Another one stands by, leads when the frozen one is silent, and that one finds out when it goes on."""
        before = self._epoch()
        frozen = self.driver.freeze()
        try:
            self.driver.start_standby()
            wait_until(lambda: self._epoch() > before, _TAKEN_S, "the other one leads")
        finally:
            self.driver.thaw(frozen)

    def _set_clock(self, wrong_s: float, lasts_s: float) -> None:
        """It ends when it is set back, to a wrong time or to the right one. The next one goes by what it finds."""
        try:
            if wrong_s > 0:
                self.driver.clock.set(wrong_s)
                time.sleep(lasts_s)
            self.driver.set_clock_back(min(wrong_s, 0.0))
            if wrong_s < 0:
                wait_until(self.driver.is_healthy, _TAKEN_S, "the next one runs with a clock that is behind")
                time.sleep(lasts_s)
        finally:
            self.driver.clock.set(0.0)

    def _lose_host(self) -> None:
        """PostgreSQL keeps the lost host's sessions; the next driver leads nevertheless."""
        before = self._epoch()
        self.proxy.fall_silent()
        try:
            self.driver.lose_host()
            wait_until(lambda: self._epoch() > before, _TAKEN_S, "the next one leads")
        finally:
            self.proxy.forget()

    def _poison(self, place: str, action: str) -> None:
        """A record among others that no driver can take: it must become a reject, and the stream go on."""
        wait_until(self.driver.is_healthy, _TAKEN_S, "a driver takes records")
        pid = self.driver.pid
        poison = Poison(self.settings, place)
        with self.driver.held():  # it must not be taken before it is known where it is
            record = poison.send()
            self.driver.arm_record(place, action, "/".join(map(str, record)))
        self.poison.add(record)
        poison.release(record)
        wait_until(lambda: rows(self.settings, _REJECTED, record._asdict()) != [], _ISOLATED_S,
                   f"{record} is a reject, see {self.driver.log}")  # fmt: skip
        wait_until(self.driver.is_healthy, _TAKEN_S, "the stream goes on")
        assert self.driver.pid == pid or not place.startswith("task."), f"a driver ended at {place}"

    def _hang_transaction(self, lasts_s: float) -> None:
        """Records come behind it, which nobody can read until it is aborted."""
        producer = Producer({"bootstrap.servers": self.settings.kafka.bootstrap_servers, "transactional.id": "hung"})
        producer.init_transactions(_RECOVERED_S)
        producer.begin_transaction()
        for partition in range(self.settings.kafka.partitions):
            producer.produce(self.settings.pipeline.stream.name, b"{}", partition=partition)
        assert producer.flush(_RECOVERED_S) == 0
        time.sleep(lasts_s)
        producer.abort_transaction(_RECOVERED_S)

    def _away(self, fault: Fault, begin: Callable[[], None], end: Callable[[], None]) -> None:
        """Stop the server while a driver pauses at a failpoint, and let the driver continue."""
        try:
            begin()
            if fault.place is not None:
                self.driver.go_on(fault.place)
            time.sleep(fault.lasts_s)
        finally:
            end()

    def _leave_commit_unanswered(self, fault: Fault) -> None:
        """The broker has committed, and the driver is killed before it is told."""
        assert self.kafka_proxy is not None
        assert fault.place is not None
        time.sleep(_ACKNOWLEDGED_S)
        before = self._committed()
        self.kafka_proxy.lose_answers()
        try:
            self.driver.go_on(fault.place)
            wait_until(lambda: self._committed() != before, _RECOVERED_S, "the commit has arrived")
            self.driver.kill()
        finally:
            self.kafka_proxy.bring_answers()

    def _committed(self) -> list[tuple[int, str | None]]:
        """Return what the join's group has committed: each partition's offset, and its metadata."""
        pipeline, kafka = self.settings.pipeline, self.settings.kafka
        consumer = Consumer({
            "bootstrap.servers": kafka.bootstrap_servers, "group.id": delivery_name(pipeline),
            "isolation.level": "read_uncommitted",  # the broker answers although a transaction is open
        })  # fmt: skip
        wanted = [TopicPartition(pipeline.stream.name, partition) for partition in range(kafka.partitions)]
        with contextlib.closing(consumer):
            return [(each.offset, each.metadata) for each in consumer.committed(wanted, _RECOVERED_S)]

    def _kill_backend(self) -> None:
        """PostgreSQL then ends every connection, and recovers as from a crash."""
        backends = self._superuser(_BACKENDS)
        if backends:
            with contextlib.suppress(ProcessLookupError):
                os.kill(backends[0][0], signal.SIGKILL)
            wait_until(self._answers, _RECOVERED_S, "PostgreSQL has recovered")

    def _answers(self) -> bool:
        try:
            return bool(self._superuser("SELECT 1"))
        except psycopg2.Error:  # the connection may also end between two statements
            return False

    def _crash_postgres(self) -> None:
        """Stop PostgreSQL without a checkpoint; it recovers at its next start."""
        assert self.postgres.pid is not None
        os.kill(self.postgres.pid, signal.SIGQUIT)
        self.postgres.stop()
        self.postgres.start()

    def _epoch(self) -> int:
        return int(rows(self.settings, "SELECT COALESCE(max(epoch), 0) FROM stream_driver")[0][0])

    def _lease(self) -> list[tuple[Any, ...]]:
        return rows(self.settings, "SELECT epoch, driver_id FROM stream_driver")

    def _is_lease_wanted(self) -> bool:
        return bool(self._superuser(_LEASE_WANTED))

    def _superuser(self, statement: str) -> list[tuple[Any, ...]]:
        connection = psycopg2.connect(self.postgres.superuser_dsn(_DATABASE))
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall())
        finally:
            connection.close()


@contextlib.contextmanager
def parts_in(
    folder: Path,
    pipeline: str = SITE_NAME,
    is_apart: bool = False,
    more: Mapping[str, str] = MappingProxyType({}),
    cluster: KafkaServer | None = None,
) -> Iterator[Parts]:
    """Yield the parts of a pipeline, running and healthy, with their logs in the folder; stop them at the end.

    `is_apart`: each query in a process of its own. `more` are variables of the driver. `cluster`: a broker that runs
    already, in place of one behind a proxy.
    """
    for name in ("kafka", "postgres", "driver", "serve"):
        (folder / name).mkdir(parents=True)
    with (
        ThreadPoolExecutor(1) as executor,
        contextlib.nullcontext((cluster, None)) if cluster else proxied_broker(folder / "kafka") as (kafka, far),
        postgres_server(folder / "postgres") as postgres,
        proxy_to(postgres.host, postgres.port) as proxy,
    ):
        bounds = {"STREAM_DRIVER_MEMORY": "1g", "STREAM_MAX_BATCH_BYTES": str(4 << 20), **more}
        variables = {**environment(kafka, postgres, _DATABASE, folder / "driver", pipeline), **bounds}
        migrated(kafka, postgres, _DATABASE, folder / "driver", pipeline)
        settings = Settings.from_environment(variables)
        make_pipeline_topics(settings.kafka)
        refuse_unfenced(settings)
        gc.collect()  # an admin client that lives on tells the terminal of every outage
        variables["DATABASE_PORT"] = str(proxy.port)
        if far is not None:
            variables["KAFKA_BOOTSTRAP_SERVERS"] = far.address
        driver = Driver(variables, folder / "driver", "join" if is_apart else None)
        serve = Driver(variables, folder / "serve", "serve") if is_apart else None
        broker = Broker(kafka)
        try:
            driver.start()
            if serve is not None:
                serve.start()
            again = TopicAgain(settings, driver, variables, folder / "repair.log")
            yield Parts(broker, postgres, driver, settings, proxy, executor, again, far, serve)
        finally:
            driver.close()
            if serve is not None:
                serve.close()
            broker.mend()
