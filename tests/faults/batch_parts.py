"""The parts of the batch layer's proof: a broker, a PostgreSQL, the stream before it, and its steps as processes."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psycopg2
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from include.contracts.day import Day
from include.contracts.definition import SITE_NAME
from include.database.named import fill
from include.runtime.failpoints import FOLDER_VARIABLE, VARIABLE
from include.runtime.process_tree import descendants, kill_with_children
from include.runtime.settings import Settings
from stack import leftovers
from stack.env_file import MARKER
from tests.faults.batch_plan import CLOCKS_S, Effect, Fault
from tests.faults.batch_verdict import EXPLAINED_BY_COUNT, DayRow, Generation
from tests.faults.cluster_faults import ClusterEffect
from tests.faults.stream_driver import Driver
from tests.faults.stream_topics import TopicReader, consumed, shortened
from tests.faults.topic_again import TopicAgain
from tests.servers import PostgresTestServer, kafka_server, postgres_server, wait_until
from tests.support.broker import Broker
from tests.support.pipeline import ROOT, environment, rows, with_topics
from tests.support.records import content
from tests.support.set_clock import SetClock

_DATABASE = "batch_faults"
STEP_S = 180.0
_REACHED_S = 60.0
_TRIES = 3
_DONE = (0, 3)  # 3: done, and a person must look at what it found
_AWAY_S = 2.0
_LOOK_S = 0.02
_DAY = "SELECT {{columns}}, finality FROM {{view}} WHERE day = %s ORDER BY {{key}}"
_DIGEST = f"SELECT count(*), COALESCE(sum(hashtextextended(v::text, 0)::numeric), 0) FROM ({_DAY}) v"
_EXCLUDED = "SELECT kind, {{key}} FROM generation_excluded WHERE generation_id = %s"
_CORRECTIONS = "SELECT {{key}}, class FROM detail_correction WHERE generation_id = %s AND class <> %s"
_GENERATION = """
SELECT id, content_hash, raw_distinct, row_count, pending_count, rejected_count FROM generation WHERE id = %s
"""
_LEDGER = "SELECT consumer, topic, partition, next_offset FROM offset_ledger"
_FILE = "SELECT path FROM archive_file WHERE kind = 'versions' AND retired_at IS NULL ORDER BY path LIMIT 1"
_TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'batch'"

Digest = tuple[int, int]


class DayReader:
    """Reads what the database has of a day, and how far the stream is."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def is_caught_up(self, reader: TopicReader) -> bool:
        """True if the stream has processed its topics. Pending records may be left to send."""
        ledger = {(c, t, p): offset for c, t, p, offset in rows(self.settings, _LEDGER)}
        return all(
            ledger.get((consumer, topic, partition), 0) == end
            for consumer, topic in consumed(self.settings.pipeline).items()
            for partition, end in reader.ends(topic).items()
        )

    def day(self, day: Day) -> list[DayRow]:
        """Return the view's rows of the day."""
        pipeline = self.settings.pipeline
        found = self._rows(_DAY, (day.date,))
        shown = [dict(zip((*pipeline.relational_columns, "finality"), row, strict=True)) for row in found]
        return [
            DayRow(row[pipeline.key_column], shortened(content(pipeline, "table", row)),
                   shortened(content(pipeline, "stream", row)), row["finality"])
            for row in shown
        ]  # fmt: skip

    def digest(self, day: Day) -> Digest:
        """Return the number of rows that the view shows of the day, and their hash."""
        count, total = self._rows(_DIGEST, (day.date,))[0]
        return int(count), int(total)

    def published(self, day: Day) -> int | None:
        """Return the generation that the day shows."""
        found = rows(self.settings, "SELECT generation_id FROM day_publication WHERE day = %s", (day.date,), "batch")
        return found[0][0] if found else None

    def generation(self, generation_id: int) -> Generation:
        """Return a generation with its excluded records and corrections."""
        terms = rows(self.settings, _GENERATION, (generation_id,), "batch")[0]
        return Generation(  # type: ignore[misc]  # the row has as many columns as _GENERATION
            *terms,
            excluded=set(self._rows(_EXCLUDED, (generation_id,))),
            corrections=dict(self._rows(_CORRECTIONS, (generation_id, EXPLAINED_BY_COUNT))),
        )

    def newest_of(self, run: str) -> Generation:
        """Return the run's last build."""
        newest = "SELECT max(id) FROM generation WHERE run_id = %s"
        return self.generation(rows(self.settings, newest, (run,), "batch")[0][0])

    def _rows(self, statement: str, parameters: tuple[object, ...]) -> list[Any]:
        return rows(self.settings, fill(statement, self.settings.pipeline), parameters, "batch")


@dataclass
class Parts(DayReader):
    """The real parts. A step that met its fault is run again until it succeeds, as a retry would."""

    broker: Broker
    postgres: PostgresTestServer
    driver: Driver
    settings: Settings
    variables: Mapping[str, str]
    folder: Path
    executor: ThreadPoolExecutor  # lives as long as the parts: the kernel ends a server with the thread that started it
    again: TopicAgain
    felt: set[str] = field(default_factory=set)

    @property
    def log(self) -> Path:
        """The file with the log of all steps."""
        return self.folder / "steps.log"

    def run(
        self,
        line: Sequence[str],
        fault: Fault | None = None,
        twin: Sequence[str] | None = None,
        is_done: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run a step, the first time with its fault, then until it is done.

        Raises AssertionError when it does not succeed after its fault.
        """
        if fault is not None and self.executor.submit(self._with_fault, line, fault, twin or line).result():
            self.felt.add(fault.name)
        for _ in range(_TRIES):
            if is_done() or self._start(line).wait(STEP_S) in _DONE:
                return
        raise AssertionError(f"{' '.join(line)} fails; see {self.log}")

    def is_refused(self, line: Sequence[str]) -> bool:
        """True if the step ends without having done anything."""
        return self._start(line).wait(STEP_S) not in _DONE

    def left_behind(self) -> list[str]:
        """Return tables of unknown generations, and generations without their table."""
        tables = {
            name
            for (name,) in rows(
                self.settings,
                r"SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^detail_final_g\d+$'",
            )
        }
        kept = {
            f"detail_final_g{id_}"
            for (id_,) in rows(
                self.settings,
                "SELECT id FROM generation WHERE status IN ('built', 'published', 'superseded')",
                role="batch",
            )
        }
        return sorted(tables ^ kept)  # fmt: skip

    def _with_fault(self, line: Sequence[str], fault: Fault, twin: Sequence[str]) -> bool:
        """True if the fault met the step: a step may end before the fault's time."""
        if fault.place is not None and fault.effect is Effect.KILLED:
            return self._start(line, {VARIABLE: f"{fault.place}:kill:1"}).wait(STEP_S) not in _DONE
        if fault.place is not None:
            return self._at_place(line, fault, fault.place)
        if fault.effect in (Effect.FILE_MISSING, Effect.FILE_TRUNCATED):
            return self._without_file(line, fault.effect)
        if isinstance(fault.effect, Effect) and fault.effect in CLOCKS_S:
            return self._with_clock(line, CLOCKS_S[fault.effect])
        process = self._start(line)
        if fault.effect is Effect.TWIN:
            other = self._start(twin)
            codes = [process.wait(STEP_S), other.wait(STEP_S)]
            assert set(codes) & set(_DONE), f"both ended with {codes}; see {self.log}"
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(fault.after_s)
            return False
        self._do(fault.effect, process)
        process.wait(STEP_S)
        return True

    def _at_place(self, line: Sequence[str], fault: Fault, place: str) -> bool:
        points = self.folder / "failpoints"
        points.mkdir(exist_ok=True)
        paused = points / f"{place}.paused"
        process = self._start(line, {VARIABLE: f"{place}:pause:1", FOLDER_VARIABLE: str(points)})
        try:
            wait_until(lambda: paused.exists() or process.poll() is not None, _REACHED_S, f"{place}, see {self.log}")
            came = paused.exists()
            if came:
                self._do(fault.effect, process)
        finally:
            paused.unlink(missing_ok=True)
        process.wait(STEP_S)
        return came

    def _with_clock(self, line: Sequence[str], wrong_s: float) -> bool:
        """Run the step with a wrong clock, which must not keep it from being done."""
        with contextlib.closing(SetClock(self.folder / "clock")) as clock:
            clock.set(wrong_s)
            program = line[1:] if line[0] == "-m" else line
            code = self._start(["-m", "tests.support.set_clock", *program], clock.variables).wait(STEP_S)
        assert code in _DONE, f"{' '.join(line)} ended with {code} by a clock that is {wrong_s} s ahead; see {self.log}"
        return True

    def _without_file(self, line: Sequence[str], effect: Effect | ClusterEffect) -> bool:
        """Remove or truncate a file of the archive, which the step must detect. False if there is no file yet."""
        found = rows(self.settings, _FILE, role="batch")
        if not found:
            return False
        path = Path(self.variables["ARCHIVE_DIR"]) / found[0][0]
        kept = path.with_suffix(".kept")
        path.rename(kept)
        try:
            if effect is Effect.FILE_TRUNCATED:
                path.write_bytes(kept.read_bytes()[:-1])
            code = self._start(line).wait(STEP_S)
        finally:
            kept.replace(path)
        assert code not in _DONE, f"{' '.join(line)} went on without {path}; see {self.log}"
        return True

    def _cut_log_short(self) -> None:
        """Delete all archived records from half of the partitions."""
        admin = AdminClient({"bootstrap.servers": self.settings.kafka.bootstrap_servers})
        stream = self.settings.pipeline.stream.name
        archived = {p: end for consumer, topic, p, end in rows(self.settings, _LEDGER)
                    if (consumer, topic) == ("archive", stream)}  # fmt: skip
        places = [TopicPartition(stream, partition, end) for partition, end in archived.items() if partition % 2]
        for each in admin.delete_records(places).values():
            each.result(30)

    def _do(self, effect: Effect | ClusterEffect, process: subprocess.Popen[bytes]) -> None:
        match effect:
            case Effect.KILLED:
                kill_with_children(process.pid)
            case Effect.JVM_KILLED:
                for pid in descendants(process.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            case Effect.BACKENDS_TERMINATED:
                connection = psycopg2.connect(self.postgres.superuser_dsn(_DATABASE))
                with contextlib.closing(connection), connection, connection.cursor() as cursor:
                    cursor.execute(_TERMINATE)
            case Effect.POSTGRES_RESTARTED:
                self.postgres.stop()
                self.postgres.start()
            case Effect.POSTGRES_CRASHED:
                assert self.postgres.pid is not None
                os.kill(self.postgres.pid, signal.SIGQUIT)
                self.postgres.stop()
                self.postgres.start()
            case Effect.BROKER_KILLED:
                self.broker.kill()
                time.sleep(_AWAY_S)
                self.broker.start()
            case Effect.LOG_CUT_SHORT:
                self._cut_log_short()

    def _start(self, line: Sequence[str], more: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        variables = {**os.environ, **self.variables, MARKER: str(self.folder), "PYTHONPATH": str(ROOT), **(more or {})}
        with self.log.open("ab") as log:
            log.write(f"--- {' '.join(line)} {more or ''}\n".encode())
            log.flush()
            return subprocess.Popen([sys.executable, *line], cwd=ROOT, env=variables, stdout=log, stderr=log)


class Watch:
    """Reads a day repeatedly, as analysts would."""

    def __init__(self, parts: Parts, day: Day) -> None:
        self.seen: set[Digest] = set()
        self.looks = 0
        self._parts, self._day = parts, day
        self._stopping = threading.Event()
        self._lane = ThreadPoolExecutor(1, "watch")
        self._looking: Future[None] | None = None

    def __enter__(self) -> "Watch":
        self._looking = self._lane.submit(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._lane.shutdown()
        assert self._looking is not None
        self._looking.result()  # raises what ended it before its time

    def _look(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            try:
                self.seen.add(self._parts.digest(self._day))
                self.looks += 1
            except (psycopg2.OperationalError, psycopg2.InterfaceError):
                continue  # PostgreSQL is being restarted, or ended the connection: these are faults of the plan


@contextlib.contextmanager
def parts_in(
    folder: Path, pipeline: str = SITE_NAME, more: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Parts]:
    """Yield the parts of a pipeline, running and healthy, with their logs in the folder; stop them at the end.

    `more` are variables of the steps.
    """
    for name in ("kafka", "postgres", "driver", "steps"):
        (folder / name).mkdir(parents=True)
    with (
        ThreadPoolExecutor(1) as executor,
        kafka_server(folder / "kafka") as kafka,
        postgres_server(folder / "postgres") as postgres,
    ):
        settings = with_topics(kafka, postgres, _DATABASE, folder / "driver", pipeline)
        gc.collect()  # an admin client that lives on tells the terminal of every outage
        variables = {
            **environment(kafka, postgres, _DATABASE, folder / "driver", pipeline),
            "ARCHIVE_DIR": str(folder / "steps" / "archive"),
        }
        driver = Driver({**variables, "STREAM_DRIVER_MEMORY": "1g"}, folder / "driver")
        broker = Broker(kafka)
        try:
            driver.start()
            again = TopicAgain(settings, driver, variables, folder / "steps" / "repair.log")
            of_steps = {**variables, **more}
            yield Parts(broker, postgres, driver, settings, of_steps, folder / "steps", executor, again)
        finally:
            broker.mend()
            driver.close()
            for left in leftovers.find(folder / "steps"):
                kill_with_children(left.pid)
