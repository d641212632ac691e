"""Chapters that the stories of all pipelines share: records arrive, the table's one late, and the broker goes down.

A story stops, kills and starts the services of the local stack, or of another deployment of the pipeline.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from demo.narrator import Narrator, NotAsTold
from demo.records import Records
from demo.warehouse import Warehouse
from include.gateway.client import GatewayClient
from include.runtime.settings import Settings
from stack import control
from stack.layout import Layout

_LAYOUT = Layout.of()


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
    """One run of a story. `next_record` is the first unused number, so that every chapter can count its records.

    `table_size` is the number of the table's records that the stream's ones refer to.
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
