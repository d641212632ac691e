"""The content of a pipeline's Integrity page: its state now, the rows of its days, the calendar and the charts."""

import datetime as dt
import logging
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import psycopg2

from include.contracts.clock import SystemClock
from include.contracts.errors import PipelineError
from include.database.sessions import connect
from include.database.stream_progress import Pending, Seen
from include.integrity.days.day_status import DayStatus, select_days
from include.integrity.days.due_days import Window, waiting_days
from include.integrity.days.gateways import Unsent
from include.integrity.jobs import dag_ids
from include.integrity.pages.texts import Message
from include.integrity.watch.alerts import Finding, open_alerts
from include.integrity.watch.conditions import Snapshot, judge, read_gateways, read_stream
from include.kafka.offsets import OffsetReader
from include.runtime.settings import Role, Settings

log = logging.getLogger(__name__)

PART_TIMEOUT_S = 2.0  # somebody waits for the page
# Threads that wait for a frozen server are few: a part that finds none free did not answer in time either.
_READERS = ThreadPoolExecutor(16, thread_name_prefix="integrity")
_CONDITIONS = {
    "stream": ("stream_silent", "stream_behind", "pending_old"),
    "gateways": ("gateway_silent", "fallback_waiting", "events_set_aside"),
}


@dataclass(frozen=True)
class PipelineState:
    """The answers of the parts; None for a part that did not answer.

    `broker`: records by topic, from the first kept one on. `findings`: of each part, as the watch judges it.
    `waiting_days`: days that nights have to rebuild.
    """

    queries: Mapping[str, Seen] | None
    pending: Pending | None
    gateways: Mapping[str, Unsent | str] | None
    broker: Mapping[str, int] | None
    alerts: Sequence[Finding] | None
    findings: Mapping[str, Sequence[Finding]]
    waiting_days: int | None = None


def read_state(settings: Settings, timeout_s: float = PART_TIMEOUT_S) -> PipelineState:
    """Return the state as the page's own role reads it. Blocks up to the timeout; never raises our own errors."""
    asked: dict[str, Future[Any]] = {
        "stream": _READERS.submit(read_stream, settings, "integrity"),
        "gateways": _READERS.submit(read_gateways, settings, timeout_s * 0.9),
        "broker": _READERS.submit(_records_in_topics, settings, timeout_s * 0.9),
        "alerts": _READERS.submit(open_alerts, settings, "integrity"),
        "days": _READERS.submit(waiting_days, settings, "integrity"),
    }
    wait(asked.values(), timeout_s)
    found = {name: _answer(name, future) for name, future in asked.items()}
    queries, pending = found["stream"] or (None, None)
    return PipelineState(
        queries, pending, found["gateways"], found["broker"], found["alerts"],
        _findings(settings, queries, pending, found["gateways"]), found["days"],
    )  # fmt: skip


def _records_in_topics(settings: Settings, timeout_s: float) -> dict[str, int]:
    offsets, pipeline = OffsetReader(settings.kafka.connection, timeout_s), settings.pipeline
    topics = (pipeline.stream.name, pipeline.table.name, pipeline.output.name)
    return {topic: offsets.available(topic).count for topic in topics}


def _answer(name: str, asked: Future[Any]) -> Any:
    """Return the part's answer; None, with a line in the log, if it has none."""
    try:
        return asked.result(0)
    except TimeoutError:
        asked.cancel()
        log.warning("integrity page: %s did not answer in time", name)
    except (PipelineError, psycopg2.Error) as exc:
        log.warning("integrity page: %s: %s", name, exc)
    return None


def _findings(
    settings: Settings,
    queries: Mapping[str, Seen] | None,
    pending: Pending | None,
    gateways: Mapping[str, Unsent | str] | None,
) -> dict[str, list[Finding]]:
    """Judge the parts that answered by the conditions of the watch."""
    window = Window(SystemClock().now(), settings.timezone, settings.kafka.retention_days)
    snapshot = Snapshot(
        window=window, queries=queries or {}, pending=pending or Pending(0, 0.0), rejects=0, first_reject_at=None,
        days=(), unpublished=(), gateways=gateways or {},
    )  # fmt: skip
    found = judge(snapshot, settings.alerts).findings
    answered = {"stream": queries is not None, "gateways": gateways is not None}
    return {part: [one for one in found if one.name in names and answered[part]] for part, names in _CONDITIONS.items()}


@dataclass(frozen=True)
class DayRow:
    """A day as it is shown.

    `countdown` says for how long it can be rebuilt, and `rebuildable_until` is the last date: None if it no longer can
    (`is_lost`), if the archive has it (`is_archived`), or if that is not known before the archive's first run. `notes`
    are what a person has to know before trusting it.
    """

    status: DayStatus
    countdown: str
    can_rebuild: bool
    notes: tuple[Message, ...] = ()
    rebuildable_until: dt.date | None = None
    is_archived: bool = False
    is_lost: bool = False

    @property
    def needs_look(self) -> bool:
        """True if something stands against trusting the day, or reached it since."""
        return bool(self.notes or self.status.dirty_count)


def select_rows(days: list[DayStatus], window: Window, night: str) -> list[DayRow]:
    """The rows, in the order given; a day can be rebuilt when it is over and topics or archive hold it. Pure.

    `night` is the id of the pipeline's nightly DAG.
    """
    return [
        DayRow(
            status, _countdown(left, window.is_lost(status.day)),
            status.day in window, _notes(status, window, night),
            _last_date(window.today, left), left is None, window.is_lost(status.day),
        )
        for status in days
        for left in [window.days_left(status.day)]
    ]  # fmt: skip


def load_rows(settings: Settings, role: Role, limit: int = 90, day: dt.date | None = None) -> list[DayRow]:
    """The newest days, or one, newest first. Blocks; raises DatabaseUnavailable and psycopg2.Error."""
    with connect(settings.database, role, "integrity") as connection, connection.cursor() as cursor:
        days, window = select_days(cursor, settings, limit, day)
        return select_rows(days, window, dag_ids(settings.pipeline.name)["nightly_rebuild"])


def _last_date(today: dt.date, left: int | None) -> dt.date | None:
    return today + dt.timedelta(days=min(left - 1, (dt.date.max - today).days)) if left else None


def _countdown(left: int | None, is_lost: bool) -> str:
    if left is None:
        return "archived"
    if left == 0:
        return "no longer" if is_lost else "not known yet"
    return f"{left} more {'day' if left == 1 else 'days'}"


def _notes(status: DayStatus, window: Window, night: str) -> tuple[Message, ...]:
    notes = []
    if status.generation_id is None and not status.held_reason and status.day < window.newest:
        # yesterday is the coming night's
        notes.append(Message("note_never_published", dag=night))
    if unexplained := status.corrections.get("unexplained"):
        notes.append(Message("note_unexplained", count=unexplained))
    if status.held_reason:
        notes.append(Message("note_held", reason=status.held_reason))
    if status.uncertified_reason and status.status != "certified":
        notes.append(Message("note_uncertified", reason=status.uncertified_reason))
    if status.acknowledged_by:
        notes.append(Message("note_acknowledged", name=status.acknowledged_by, reason=status.acknowledged_why or ""))
    return tuple(notes)


WIDTH, HEIGHT = 900, 120  # of a chart, in units of the drawing
BASE = 100  # where its bars stand
WEEKS = 13
TICKS = (10, 100, 1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Bar:
    """A day in a chart. `mark` is the height of the part that needs a look."""

    day: dt.date
    count: int
    marked: int
    x: float
    width: float
    height: float
    mark: float


@dataclass(frozen=True)
class Chart:
    """Bars on a logarithmic scale, oldest day first, and the values of the lines behind them with their heights."""

    bars: Sequence[Bar]
    lines: Sequence[tuple[int, float]]

    @property
    def most(self) -> int:
        """The greatest count; 0 without days."""
        return max((bar.count for bar in self.bars), default=0)


def calendar(rows: Sequence[DayRow], today: dt.date) -> list[list[tuple[dt.date, DayRow | None]]]:
    """Return the last 13 weeks up to today's, Monday first, each day up to today with its row if it has one."""
    by_day = {row.status.day: row for row in rows}
    monday = today - dt.timedelta(days=today.weekday() + 7 * (WEEKS - 1))
    return [
        [
            (day, by_day.get(day))
            for number in range(7)
            if (day := monday + dt.timedelta(weeks=week, days=number)) <= today
        ]
        for week in range(WEEKS)
    ]


def corrections_chart(rows: Sequence[DayRow]) -> Chart:
    """Return the chart of corrections; unexplained ones are marked."""
    return _chart([(row.status.day, row.status.correction_count, row.status.corrections.get("unexplained", 0))
                   for row in rows])  # fmt: skip


def duplicates_chart(rows: Sequence[DayRow]) -> Chart:
    """Return the chart of the stream's duplicates; a day without a count has no bar."""
    return _chart([(row.status.day, row.status.duplicate_count or 0, 0) for row in rows])


def _chart(counts: Sequence[tuple[dt.date, int, int]]) -> Chart:
    top = max((count for _, count, _ in counts), default=0)
    scale = max(math.log10(1 + top), 1.0)

    def height(count: int) -> float:
        return round(math.log10(1 + count) / scale * (BASE - 12), 1)

    step = WIDTH / max(1, len(counts))
    bars = [
        Bar(day, count, marked, round(number * step, 1), round(min(step * 0.7, 24), 1), height(count), height(marked))
        for number, (day, count, marked) in enumerate(sorted(counts))
    ]
    return Chart(bars, [(tick, height(tick)) for tick in TICKS if tick <= top])
