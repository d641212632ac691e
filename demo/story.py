"""The story: a post travels from HTTP to the analyst's view, outages lose nothing, and last night corrects a day."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from demo.airflow_client import AirflowClient, TaskStates
from demo.chapters import Chapters
from demo.narrator import Narrator, NotAsTold
from demo.records import SiteRecords
from include.contracts.topics import PYTHON_PRODUCER_SETTINGS
from include.gateway.client import GatewayRefused
from include.kafka.offsets import OffsetReader

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
