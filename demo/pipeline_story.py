"""The story of any pipeline: records of its types reach the view, a broker goes out, and a rebuild corrects a day."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from demo.chapters import Chapters
from demo.narrator import NotAsTold
from demo.records import GeneratedRecords
from include.contracts.errors import OK, TRY_LATER

COUNT = 100
MORNING, EVENING = 1, 20  # versions of the table's record 0


@dataclass(kw_only=True)
class PipelineStory(Chapters):
    """One run of the story. `environment` is that of the commands of the batch layer."""

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
        tell.say(f"{self.table_size} of {self.table}, {COUNT} of {self.stream} with times of {self.records.day}")
        self.records_arrive(COUNT, self.records.table_value(0, EVENING))
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
