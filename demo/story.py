"""The demo's stories: that of board_detail, and that of any other pipeline.

In the first a post travels from HTTP to the analyst's view, outages lose nothing, and last night corrects a day. A
story stops, kills and starts the services of the local stack, or of another deployment of the pipeline. It ends at the
first step that fails.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table

from demo.airflow_client import AirflowClient, TaskStates
from demo.records import GeneratedRecords, Records, SiteRecords
from demo.warehouse import Warehouse
from include.contracts.errors import OK, TRY_LATER
from include.contracts.topics import PYTHON_PRODUCER_SETTINGS
from include.gateway.client import GatewayClient, GatewayRefused
from include.kafka.offsets import OffsetReader
from include.runtime.settings import Settings
from stack import control
from stack.layout import Layout

_LAYOUT = Layout.of()

Found = TypeVar("Found")

POLL_S = 0.2
_WIDTH = 120


class NotAsTold(Exception):
    """A step of the story did not come out as it should."""


class Narrator:
    """Prints the story on one console."""

    def __init__(self) -> None:
        console = Console()
        self._console = console if console.is_terminal else Console(width=_WIDTH)
        self._begun = time.monotonic()
        self._chapter = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the story began."""
        return time.monotonic() - self._begun

    def chapter(self, title: str) -> None:
        """Begin the next step."""
        self._chapter += 1
        self._console.print(f"\n[bold cyan]{self._chapter}. {title}[/]  [dim]({self.elapsed_s:.0f} s)[/]")

    def say(self, text: str) -> None:
        """Print one line."""
        self._console.print(f"   {text}", highlight=False)

    def table(self, headings: Iterable[str], rows: Iterable[Iterable[Any]], fold: bool = True) -> None:
        """Print a table. Unless `fold`, cells are not wrapped, so that they can be copied from narrow terminals too."""
        table = Table(box=None, padding=(0, 2, 0, 1), header_style="dim")
        for heading in headings:
            table.add_column(heading, overflow="fold", no_wrap=not fold)
        for row in rows:
            table.add_row(*["" if value is None else str(value) for value in row])
        console = self._console if fold else Console(width=max(self._console.width, _WIDTH))
        console.print(table)

    def check(self, fact: bool, told: str) -> None:
        """Print `told` if `fact` is true, else raise NotAsTold."""
        if not fact:
            raise NotAsTold(told)
        self._console.print(f"   [green]✓[/] {told}", highlight=False)

    def until(
        self,
        what: str,
        look: Callable[[], Found],
        is_done: Callable[[Found], bool],
        timeout_s: float,
        progress: Callable[[Found], str] | None = None,
    ) -> tuple[Found, float]:
        """Poll `look` until it is done; returns the last value and the seconds. Raises NotAsTold after the timeout."""
        begun = time.monotonic()
        told = ""
        while True:
            seen = look()
            took = time.monotonic() - begun
            if is_done(seen):
                return seen, took
            if took > timeout_s:
                raise NotAsTold(f"{what}: not after {timeout_s:.0f} s; last seen: {seen}")
            text = progress(seen) if progress else ""
            if text != told:
                told = text
                self.say(f"[dim]{text}[/]")
            time.sleep(POLL_S)


class Services(Protocol):
    """Stops, starts and kills services for the stories. Calls block until it is done; errors end the story."""

    def stop_broker(self) -> None:
        """Stop Kafka."""

    def start_broker(self) -> None:
        """Start Kafka, and wait until it is healthy."""

    def kill_stream(self) -> str:
        """End the stream's driver with SIGKILL; returns which process or container that was."""

    def wait_until_stream_restarted(self) -> str:
        """Wait until the killed driver has a healthy successor; returns which process or container that is."""

    def checkpoints(self) -> Path:
        """Return a folder with the checkpoints that the killed driver left."""


@dataclass
class LocalServices:
    """The services of the local stack. Raises StackError for a service that is not its own."""

    checkpoint_dir: Path
    _killed_pid: int = 0

    def stop_broker(self) -> None:
        """Stop the broker."""
        control.stop_service("kafka", _LAYOUT)

    def start_broker(self) -> None:
        """Start the broker."""
        control.start_service("kafka", _LAYOUT)

    def kill_stream(self) -> str:
        """Kill the driver, which the supervisor restarts."""
        self._killed_pid = control.kill_service("stream", _LAYOUT)
        return f"pid {self._killed_pid}"

    def wait_until_stream_restarted(self) -> str:
        """Wait for the supervisor."""
        return f"pid {control.wait_until_restarted('stream', self._killed_pid, _LAYOUT)}"

    def checkpoints(self) -> Path:
        """Return the driver's own folder."""
        return self.checkpoint_dir


OUTAGE_RECORDS = 300


@dataclass
class Chapters:
    """Chapters that the stories share.

    `next_record` is the first unused number, so that every chapter can count its records. `table_size` is
    the number of the table's records that the stream's ones refer to.
    """

    settings: Settings
    gateway: GatewayClient
    warehouse: Warehouse
    records: Records
    narrator: Narrator
    services: Services
    table_size: int = 20
    next_record: int = 0

    @property
    def stream(self) -> str:
        """The topic of the stream."""
        return self.settings.pipeline.stream.name

    @property
    def table(self) -> str:
        """The topic of the table."""
        return self.settings.pipeline.table.name

    def records_arrive(self, count: int, evening: dict[str, Any]) -> None:
        """Send the table's records, number 0 also in its version of the evening, and the stream's ones."""
        # the stream keeps only the newest version, also for records of the morning
        self.keep(self.table, [*map(self.records.table_value, range(self.table_size)), evening])
        self.keep(self.stream, self.stream_values(count))
        self.all_in_view(60)

    def a_table_record_comes_late(self) -> None:
        """Send a record of the stream whose record of the table follows later."""
        tell, late = self.narrator, self.next_record
        self.keep(self.stream, [self.records.stream_value(late, self.table_size)])
        tell.until(
            f"the {self.stream} without its {self.table} is kept",
            lambda: self.warehouse.pending(self.records.key(late)), bool, 30,
        )  # fmt: skip
        tell.say(f"one {self.stream} whose {self.table} nobody knows yet waits as pending")
        self.keep(self.table, [self.records.table_value(self.table_size)])
        self.next_record += 1
        self.all_in_view(60)
        tell.check(True, f"it appeared when its {self.table} arrived")

    def the_broker_goes_out(self) -> None:
        """Stop Kafka, send records, and start it again."""
        tell = self.narrator
        tell.chapter("The broker fails; nothing is lost")
        self.services.stop_broker()
        tell.say(f"Kafka is stopped; records of {self.stream} go on coming")
        where = self.keep(self.stream, self.stream_values(OUTAGE_RECORDS))
        tell.check(where["fallback"] == OUTAGE_RECORDS, f"each was answered 2xx, kept in: {dict(where)}")
        store = self.gateway.fallback()
        tell.say(f"GET /fallback → backlog {store['backlog']}, oldest {store['oldestAgeS']:.1f} s")
        tell.check(store["backlog"] >= OUTAGE_RECORDS, "the messages lie in the fallback store, on disk")
        tell.say("Kafka starts again")
        self.services.start_broker()
        _, seconds = tell.until(
            "the drain",
            lambda: int(self.gateway.fallback()["backlog"]),
            lambda backlog: backlog == 0,
            60,
            lambda backlog: f"backlog {backlog}",
        )
        tell.check(True, f"drained by itself in {seconds:.1f} s")
        self.all_in_view(120)

    def stream_values(self, count: int) -> list[dict[str, Any]]:
        """Return the next records of the stream."""
        first = self.next_record
        self.next_record += count
        return [self.records.stream_value(number, number % self.table_size) for number in range(first, first + count)]

    def keep(self, topic: str, values: list[dict[str, Any]]) -> Counter[str]:
        """Send events; returns where they were kept, counted. Raises NotAsTold if one was not."""
        results = self.gateway.post_events(topic, values)
        refused = [result for result in results if result["status"] >= 300]
        if refused:
            raise NotAsTold(f"{len(refused)} of {len(results)} events were not kept; the first: {refused[0]}")
        return Counter(result["keptIn"] for result in results)

    def in_view(self) -> int:
        """Count the story's records in the view."""
        return self.warehouse.count(self.records.key(0), self.records.key(self.next_record))

    def all_in_view(self, timeout_s: float) -> None:
        """Wait until the view has all of the story's records."""
        wanted = self.next_record
        _, seconds = self.narrator.until(
            f"{wanted} rows in the view", self.in_view, lambda count: count == wanted, timeout_s
        )
        self.narrator.check(True, f"{wanted} of {wanted} records are in the view, {seconds:.1f} s later")


BOARDS = 200
BURST = 4_000
BURSTS_AT_MOST = 4
NIGHTLY, REBUILD = "nightly_rebuild", "rebuild_day"


@dataclass(kw_only=True)
class Story(Chapters):
    """One run of the story of board_detail."""

    records: SiteRecords
    airflow: AirflowClient

    def tell(self) -> None:
        """Run all chapters in order. Raises NotAsTold at the first failed check."""
        self._switch_on_the_nightly_run()
        self.a_post_arrives()
        self.the_broker_goes_out()
        self.the_stream_is_killed()
        self.bad_records_come()
        self.the_night_corrects_the_day()
        self.the_analyst_asks()

    def a_post_arrives(self) -> None:
        """Chapter 1."""
        tell = self.narrator
        tell.chapter("Members sign up and post; a post reaches the analyst's view")
        member = self.gateway.post_member({"nickname": "행복한고양이", "city": "서울특별시", "phone": "010-1234-5678"})
        board = self.gateway.post_board(
            {"memberId": member["id"], "title": "첫 글입니다 · Hello", "body": "안녕하세요! Nice to meet you all."}
        )
        tell.say(
            f"POST /members → id {member['id']} ({member['keptIn']}), "
            f"POST /boards → id {board['id']} ({board['keptIn']})"
        )
        row, seconds = tell.until("the post in the view", lambda: self.warehouse.row(board["id"]), bool, 60)
        assert row is not None
        tell.table(
            ("board_id", "nickname", "title", "finality", "kafka_partition", "kafka_offset"),
            [[row[n] for n in ("board_id", "nickname", "title", "finality", "kafka_partition", "kafka_offset")]],
        )
        tell.check(row["nickname"] == "행복한고양이", f"joined with its author, {seconds:.1f} s after the HTTP answer")

        tell.say(f"now {self.table_size} members and {BOARDS} posts with dates of {self.records.day}, as array calls")
        self.records_arrive(BOARDS, self.records.table_value(0, 20) | {"nickname": "저녁에 바꾼 이름"})
        self.a_table_record_comes_late()

    def the_stream_is_killed(self) -> None:
        """Chapter 3."""
        tell = self.narrator
        tell.chapter("The streaming driver is killed in mid-batch")
        for _ in range(BURSTS_AT_MOST):
            if self._killed_in_mid_batch():
                break
            tell.say("that batch had just ended; once more")
            self.services.wait_until_stream_restarted()
        else:
            raise NotAsTold(f"the driver was never caught in mid-batch in {BURSTS_AT_MOST} tries")
        tell.check(True, f"it was started again, {self.services.wait_until_stream_restarted()}")
        self.all_in_view(180)

    def bad_records_come(self) -> None:
        """Chapter 4."""
        tell = self.narrator
        tell.chapter("Bad records come")
        number = self.next_record
        try:
            self.gateway.post_event("board", {**self.records.stream_value(number, 0), "memberId": "seven"})
        except GatewayRefused as refusal:
            tell.check("/memberId" in str(refusal), f"the gateway refuses: {refusal.where['reason']}")
        else:
            raise NotAsTold("the gateway took a board without a member id")
        good = self.records.stream_value(number, 0)
        key = str(good["id"])
        bad = {
            "not JSON": (key, b"{nonsense"),
            "a wrong type": (key, _json({**good, "memberId": "seven"})),
            "a date that does not exist": (key, _json({**good, "createdAt": "2026-02-30T00:00:00Z"})),
            "NUL in a text": (key, _json({**good, "title": "a\x00b"})),
            "another key": ("0", _json(good)),
        }
        tell.say("a careless producer writes to the topic directly: " + ", ".join(bad))
        places = self._produce_directly(list(bad.values()))
        rows, _ = tell.until(
            "the rejects", lambda: self.warehouse.rejects(places), lambda rows: len(rows) == len(places), 60
        )
        tell.table(("topic", "partition", "offset", "reason"), [row.values() for row in rows])
        tell.check(len(rows) == len(bad), "each is a reject with its reason; the batches went on")

    def the_night_corrects_the_day(self) -> None:
        """Chapter 5."""
        tell = self.narrator
        day = self.records.day
        tell.chapter(f"An operator runs {NIGHTLY} for {day}, as a one-day backfill in Airflow")
        night = self.airflow.backfill_day(NIGHTLY, day.date)
        tell.say(f"run {night.run_id}")
        self.airflow.wait(night, 600, _task_progress(tell))
        (run,) = self.airflow.rebuilds_of(night, REBUILD)
        tell.say(f"it has started run {run.run_id} of {REBUILD}, whose partition key is {run.partition_key}")
        self.airflow.wait(run, 600, _task_progress(tell))

        status = self.warehouse.day_status(day)
        corrections = self.warehouse.corrections(day)
        tell.say("corrections of the rebuild:")
        tell.table(("class", "boards"), corrections.items())
        changed = self.warehouse.changed_authors(day, [self.records.key(0)])
        tell.table(("board_id", "the stream had", "the rebuild says"), [row.values() for row in changed])
        tell.check(len(changed) == 1, "the morning's post has the author's name of the morning again")
        tell.check(corrections.get("unexplained", 0) == 0, "no difference is unexplained")
        raw, rows, pending, rejected = (
            status[name] for name in ("raw_distinct", "row_count", "pending_count", "rejected_count")
        )
        tell.check(
            raw == rows + pending + rejected and status["status"] == "certified",
            f"the day is {status['status']}: {raw} boards in raw = {rows} rows + {pending} pending "
            f"+ {rejected} rejected",
        )
        tell.check(
            self.in_view() == self.next_record, f"all {self.next_record} boards of this story are in the view, once"
        )

    def the_analyst_asks(self) -> None:
        """Chapter 6."""
        tell = self.narrator
        tell.chapter("The analyst asks")
        names = ("board_id", "nickname", "city", "title", "created_at", "finality")
        rows = self.warehouse.sample(self.records.day, 5)
        tell.table(names, [[row[name] for name in names] for row in rows])
        tell.check(len(rows) == 5 and all(row["finality"] == "final" for row in rows), "the day's rows are final")

    def _switch_on_the_nightly_run(self) -> None:
        """Wait for last night's run, which Airflow creates at its start: it takes the story's day, but too early.

        Before 04:00 the last night is that of the day before, and takes all days that are over.
        """
        self.airflow.wait_for_dag(NIGHTLY, timeout_s=120)
        self.airflow.wait_for_dag(REBUILD)
        for dag_id in (REBUILD, NIGHTLY):
            self.airflow.unpause(dag_id)  # in case a user has paused it
        for day in (self.records.day, self.records.day.before()):
            for night in self.airflow.runs_of_day(NIGHTLY, day.date):
                if not night.is_finished:
                    self.airflow.wait(night, 600)
                    for run in self.airflow.rebuilds_of(night, REBUILD):
                        self.airflow.wait(run, 600)

    def _killed_in_mid_batch(self) -> bool:
        offsets = OffsetReader(self.settings.kafka.connection)
        output = self.settings.pipeline.output.name
        before = sum(offsets.ends(output).values())
        self.keep("board", self.stream_values(BURST))
        self.narrator.until(
            "the join writes", lambda: sum(offsets.ends(output).values()), lambda count: count > before, 60
        )
        killed = self.services.kill_stream()
        batches = _unfinished_batches(self.services.checkpoints())
        self.narrator.say(f"{BURST} posts sent, SIGKILL to {killed}; batches under way: {batches or 'none'}")
        return bool(batches)

    def _produce_directly(self, records: list[tuple[str, bytes]]) -> list[tuple[str, int, int]]:
        places: list[tuple[str, int, int]] = []
        producer = Producer({"bootstrap.servers": self.settings.kafka.bootstrap_servers, **PYTHON_PRODUCER_SETTINGS})

        def delivered(error: object, message: Any) -> None:
            if error is None:
                places.append((message.topic(), message.partition(), message.offset()))

        for key, value in records:
            producer.produce(self.settings.pipeline.stream.name, value, key, on_delivery=delivered)
        producer.flush(10)
        if len(places) != len(records):
            raise NotAsTold(f"Kafka took {len(places)} of {len(records)} bad records")
        return places


def _unfinished_batches(checkpoints: Path) -> list[str]:
    """Return the batches that the last driver planned and did not commit, as `query/number`."""
    found = []
    driver = max((folder for folder in checkpoints.iterdir() if folder.is_dir()), key=lambda f: f.stat().st_mtime)
    for query in sorted(driver.glob("*")):
        planned, committed = (
            {path.name for path in (query / part).glob("*") if path.name.isdigit()} for part in ("offsets", "commits")
        )
        found += [f"{query.name}/{number}" for number in sorted(planned - committed)]
    return found


def _task_progress(tell: Narrator) -> Any:
    told: TaskStates = {}

    def show(states: TaskStates) -> None:
        for task, state in states.items():
            if told.get(task) != state and state in {"running", "success", "failed", "up_for_retry"}:
                tell.say(f"[dim]{tell.elapsed_s:4.0f} s  {task}: {state}[/]")
            told[task] = state

    return show


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


RECORDS = 100
MORNING, EVENING = 1, 20  # versions of the table's record 0


@dataclass(kw_only=True)
class PipelineStory(Chapters):
    """The story of any pipeline: its records reach the view, a broker goes out, and a rebuild corrects a day.

    `environment` is that of the commands of the batch layer.
    """

    records: GeneratedRecords
    environment: Mapping[str, str]

    def tell(self) -> None:
        """Run all chapters in order. Raises NotAsTold at the first failed check."""
        self.records_reach_the_view()
        self.the_broker_goes_out()
        self.a_rebuild_corrects_the_day()
        self.the_day_is_undone()

    def records_reach_the_view(self) -> None:
        """Chapter 1."""
        tell = self.narrator
        tell.chapter(f"Records of {self.table} and {self.stream} come; their join reaches the view {self._view}")
        tell.say(f"{self.table_size} of {self.table}, {RECORDS} of {self.stream} with times of {self.records.day}")
        self.records_arrive(RECORDS, self.records.table_value(0, EVENING))
        self._is_joined_with(EVENING, f"joined with the newest {self.table}, in every column")
        self.a_table_record_comes_late()

    def a_rebuild_corrects_the_day(self) -> None:
        """Chapter 3."""
        tell = self.narrator
        tell.chapter("A rebuild corrects the day")
        self._command("gateway drain")
        self._command("stream catch-up")
        self._command("days rebuild", "--publish", "--reason", "demo", day=True)
        corrections = self.warehouse.corrections(self.records.day)
        tell.say("corrections of the rebuild:")
        tell.table(("class", "records"), corrections.items())
        tell.check(corrections.get("unexplained", 0) == 0, "no difference is unexplained")
        self._is_joined_with(MORNING, f"the {self.stream} has the {self.table} of its time again, in every column")
        self._are_all("final")
        certificate = self._command("days certify", day=True)
        terms = {term["name"]: term["value"] for term in certificate["terms"]}
        raw, rows, pending, rejected = (int(terms[name]) for name in ("raw_distinct", "rows", "pending", "rejected"))
        tell.check(
            certificate["reason"] is None and raw == rows + pending + rejected and rows >= self.next_record,
            f"the day is certified: {raw} in raw = {rows} rows + {pending} pending + {rejected} rejected",
        )

    def the_day_is_undone(self) -> None:
        """Chapter 4."""
        tell = self.narrator
        tell.chapter("The publication is undone, and done again")
        self._command("days undo", "--to", "0", "--reason", "demo", day=True)
        self._are_all("live")
        self._is_joined_with(EVENING, "the day shows the stream's rows again")
        self._command("days redo", "--reason", "demo", day=True)
        self._are_all("final")

    @property
    def _view(self) -> str:
        return self.settings.pipeline.name

    def _is_joined_with(self, hour: int, told: str) -> None:
        row = self.warehouse.row(self.records.key(0))
        expected = self.records.row(0, 0, hour)
        names = (*expected, "finality")
        self.narrator.table(("column", "value"), [] if row is None else [(name, row[name]) for name in names])
        wrong = [name for name in expected if row is None or row[name] != expected[name]]
        self.narrator.check(not wrong, told if not wrong else f"{told}: {', '.join(wrong)} differ from {expected}")

    def _are_all(self, finality: str) -> None:
        count = self.warehouse.count(self.records.key(0), self.records.key(self.next_record), finality)
        self.narrator.check(count == self.next_record, f"{count} of {self.next_record} rows are {finality}")

    def _command(self, name: str, *arguments: str, day: bool = False) -> Any:
        """Run a command of `pipeline` and return its result. Waits while the night's run has the day."""
        command = ["pipeline", *name.split(), *(("--day", str(self.records.day)) if day else ()), *arguments]
        self.narrator.say(f"[dim]PIPELINE={self._view} {' '.join(command)}[/]")
        done, _ = self.narrator.until(
            name,
            lambda: subprocess.run(
                [sys.executable, "-m", *command, "--json"],
                env=self.environment,
                capture_output=True,
                text=True,
                check=False,
            ),
            lambda done: done.returncode != TRY_LATER,
            300,
        )
        if done.returncode != OK:
            raise NotAsTold(f"{name}: exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}")
        return json.loads(done.stdout)


def show_addresses(environment: Mapping[str, str], settings: Settings, narrator: Narrator, is_terminal: bool) -> None:
    """Print the table of URLs. Without a terminal it has the names of the passwords in `.env` instead of passwords."""

    def secret(name: str) -> str:
        return environment[name] if is_terminal else f"{name} in .env"

    airflow = f"http://127.0.0.1:{environment['AIRFLOW_PORT']}"
    database = f"{settings.database.host}:{settings.database.port}/{settings.database.name}"
    rows = [
        ("Airflow", airflow, "admin", secret("AIRFLOW_ADMIN_PASSWORD")),
        ("", "", "operator", secret("AIRFLOW_OPERATOR_PASSWORD")),
        ("", "", "viewer", secret("AIRFLOW_VIEWER_PASSWORD")),
        ("Gateway", environment["GATEWAY_URL"], "Bearer token", secret("GATEWAY_TOKEN")),
        ("  its fallback store", f"{environment['GATEWAY_URL']}/fallback", "Bearer token",
         secret("GATEWAY_ADMIN_TOKEN")),
        ("PostgreSQL, for analysts", f"postgresql://{database}", "analyst", secret("DB_ANALYST_PASSWORD")),
        ("Kafka", environment["KAFKA_BOOTSTRAP_SERVERS"], "", ""),
        ("Stream, metrics", f"http://127.0.0.1:{settings.stream.metrics_port}/metrics", "", ""),
    ]  # fmt: skip
    narrator.say("")
    narrator.table(("what", "where", "user", "password"), rows, fold=False)
    narrator.say("the stack keeps running: make status shows it, make down stops it")
