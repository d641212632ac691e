"""Sends the reference volume and waits until the view holds all of it: `make load`, `python -m demo.load --help`.

The exit code is 0 only if every board sent is in the view, none is pending and none was rejected.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from confluent_kafka import Producer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from demo import records
from demo.warehouse import Warehouse
from include.contracts import headers
from include.contracts.clock import SystemClock, rfc3339
from include.contracts.day import Day
from include.contracts.errors import PipelineError
from include.contracts.topics import PYTHON_PRODUCER_SETTINGS
from include.gateway.client import GatewayClient
from include.integrity.days.catch_up import wait_until_caught_up
from include.kafka.offsets import OffsetReader
from include.runtime.settings import Settings
from stack.env_file import load_environment
from stack.layout import StackError

_TELL_EVERY = 2_000


Headers = list[tuple[str, bytes]]
Record = tuple[str, dict[str, Any], Headers]  # key, value, headers


def as_gateway(topic: str, values: Iterable[dict[str, Any]]) -> Iterator[Record]:
    """Yield members or boards as records of their topic."""
    accepted = rfc3339(SystemClock().now()).encode()
    for value in values:
        event_id = f"load-{topic}-{value['id']}-{value['modifiedAt']}"
        yield str(value["id"]), value, [(headers.EVENT_ID, event_id.encode()), (headers.ACCEPTED_AT, accepted)]


def send(
    bootstrap_servers: str,
    topic: str,
    records: Iterable[Record],
    reached: Callable[[int], None] | None = None,
    timestamp_ms: int = 0,
) -> int:
    """Send all records; returns their number. Raises PipelineError if Kafka does not acknowledge one.

    `reached` is called with the number of acknowledged records. The records' timestamp is now, unless `timestamp_ms`
    (since 1970) is given.
    """
    failed: list[str] = []
    producer = Producer({
        "bootstrap.servers": bootstrap_servers, **PYTHON_PRODUCER_SETTINGS, "linger.ms": 20, "batch.size": 262_144,
        "queue.buffering.max.messages": 500_000,
    })  # fmt: skip

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(str(error))

    sent = 0
    for key, value, marks in records:
        encoded = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        while True:
            try:
                producer.produce(topic, encoded, key, headers=marks, timestamp=timestamp_ms, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        sent += 1
        if sent % _TELL_EVERY == 0:
            producer.poll(0)
            if reached is not None:
                reached(sent - len(producer))
    left = producer.flush(120)
    if reached is not None:
        reached(sent - left)
    if failed or left:
        raise PipelineError(
            f"Kafka did not take {len(failed) + left} of {sent} records",
            topic=topic,
            first=failed[0] if failed else "timed out",
        )
    return sent


POLL_S = 1.0
CALL_EVENTS = 1_000
PLAIN_EVERY_S = 10.0


@dataclass
class Stage:
    """Progress of one stage: records done and expected, and the times of the first and the last."""

    name: str
    total: int
    done: int = 0
    first_at: float | None = None
    last_at: float | None = None

    def reached(self, done: int) -> None:
        """Record the number of records done."""
        now = time.monotonic()
        if done > self.done:
            self.first_at = self.first_at or now
            self.last_at = now
        self.done = done

    @property
    def rate(self) -> float:
        """Records per second between the first and the last."""
        if self.first_at is None or self.last_at is None or self.last_at == self.first_at:
            return float(self.done)
        return self.done / (self.last_at - self.first_at)


@dataclass
class Board:
    """Shows the stages: as progress bars on a terminal, as plain lines otherwise."""

    stages: list[Stage]
    console: Console = field(default_factory=Console)
    _last_plain: float = 0.0

    def follow(self, refresh: Callable[[], None], is_done: Callable[[], bool], timeout_s: float) -> bool:
        """Refresh and show until done. Returns False if there was no progress for `timeout_s`, else True."""
        columns = (TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(),
                   TextColumn("{task.fields[rate]:>9}/s"), TimeElapsedColumn())  # fmt: skip
        with Progress(*columns, console=self.console, disable=not self.console.is_terminal) as progress:
            bars = [progress.add_task(stage.name, total=stage.total, rate="") for stage in self.stages]
            moved_at, seen = time.monotonic(), -1
            while not is_done():
                refresh()
                self._show(progress, bars)
                total = sum(stage.done for stage in self.stages)
                if total != seen:
                    moved_at, seen = time.monotonic(), total
                if time.monotonic() - moved_at > timeout_s:
                    return False
                time.sleep(POLL_S)
            self._show(progress, bars)
        return True

    def _show(self, progress: Progress, bars: list[TaskID]) -> None:
        for stage, bar in zip(self.stages, bars, strict=True):
            progress.update(bar, completed=stage.done, rate=f"{stage.rate:,.0f}")
        if not self.console.is_terminal and time.monotonic() - self._last_plain > PLAIN_EVERY_S:
            self._last_plain = time.monotonic()
            self.console.print("  ".join(f"{s.name} {s.done:,}/{s.total:,}" for s in self.stages))


def main() -> int:
    """Run the command; returns the exit code."""
    arguments = _arguments()
    try:
        settings = Settings.from_environment(load_environment())
        created_on = Day.parse(arguments.created_on, settings.timezone).start if arguments.created_on else None
        return run(settings, arguments, created_on)
    except (PipelineError, StackError) as exc:
        print(f"load: {exc}", file=sys.stderr)
        return 1


def run(settings: Settings, arguments: argparse.Namespace, created_on: Any) -> int:
    """Send the records, wait for them, count and report. Returns the exit code."""
    warehouse, offsets = Warehouse(settings), OffsetReader(settings.kafka.connection)
    stages = {
        "members sent": Stage("members sent", arguments.members),
        "boards sent": Stage("boards sent", arguments.boards),
        "joined": Stage("joined", arguments.boards),
        "served": Stage("served", arguments.boards),
    }
    rejects_before = warehouse.reject_count()
    joined_before = sum(offsets.ends(settings.pipeline.output.name).values())
    served_before = warehouse.served_offsets()
    send_through = _through_gateway if arguments.through == "gateway" else _through_topics
    failure: list[BaseException] = []

    def sending() -> None:
        try:
            send_through(settings, "member", records.members(arguments.members, arguments.seed), stages["members sent"])
            send_through(
                settings,
                "board",
                records.boards(arguments.boards, arguments.members, arguments.seed, created_on),
                stages["boards sent"],
            )
        except (PipelineError, OSError) as exc:
            failure.append(exc)

    def refresh() -> None:
        if failure:
            raise failure[0]
        joined = sum(offsets.ends(settings.pipeline.output.name).values()) - joined_before
        stages["joined"].reached(min(joined, arguments.boards))
        stages["served"].reached(min(warehouse.served_offsets() - served_before, arguments.boards))

    started = time.monotonic()
    threading.Thread(target=sending, name="send", daemon=True).start()
    board = Board(list(stages.values()))
    board.follow(refresh, lambda: stages["served"].done >= arguments.boards, arguments.max_wait_s)
    wait_until_caught_up(settings, arguments.max_wait_s)

    in_view = warehouse.count(records.FIRST_ID, records.FIRST_ID + arguments.boards)
    waiting = warehouse.pending_count(records.FIRST_ID, records.FIRST_ID + arguments.boards)
    rejected = warehouse.reject_count() - rejects_before
    say = board.console.print
    for stage in stages.values():
        say(f"{stage.name:<14} {stage.done:>9,} records  {stage.rate:>9,.0f} records/s")
    say(f"from the first call to all boards in the view: {time.monotonic() - started:.1f} s")
    say(
        f"balance: {arguments.boards:,} boards sent = {in_view:,} in the view + {waiting:,} pending + "
        f"{rejected:,} rejected"
    )
    if in_view != arguments.boards or waiting or rejected:
        say(f"[bold red]not clean:[/] {in_view:,} of {arguments.boards:,} boards are in the view")
        return 1
    say(f"[bold green]{in_view:,} = {arguments.boards:,}[/]")
    return 0


def _through_topics(settings: Settings, topic: str, values: Iterable[dict[str, Any]], stage: Stage) -> None:
    send(settings.kafka.bootstrap_servers, topic, as_gateway(topic, values), stage.reached)


def _through_gateway(settings: Settings, topic: str, values: Iterable[dict[str, Any]], stage: Stage) -> None:
    sent = 0
    with GatewayClient(settings.gateway, timeout_s=60) as gateway:
        for batch in _batches(iter(values)):
            refused = [result for result in gateway.post_events(topic, batch) if result["status"] >= 300]
            if refused:
                raise PipelineError(f"the gateway refused {len(refused)} events", first=refused[0])
            sent += len(batch)
            stage.reached(sent)


def _batches(values: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while batch := list(islice(values, CALL_EVENTS)):
        yield batch


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo.load", description=__doc__)
    parser.add_argument("--members", type=int, default=records.MEMBERS)
    parser.add_argument("--boards", type=int, default=records.BOARDS)
    parser.add_argument("--seed", type=int, default=7, help="the same seed gives the same records")
    parser.add_argument("--through", choices=["topics", "gateway"], default="topics")
    parser.add_argument("--created-on", metavar="YYYY-MM-DD", help="all boards of this day instead of two years")
    parser.add_argument("--max-wait-s", type=float, default=180, help="give up after so long without any progress")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
