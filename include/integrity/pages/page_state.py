"""The state of a pipeline now, as its page shows it: read from every source at once, within a few seconds."""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import psycopg2

from include.contracts.clock import SystemClock
from include.contracts.errors import PipelineError
from include.database.stream_progress import Pending, Seen
from include.integrity.days.due_days import Window, waiting_days
from include.integrity.days.gateways import Unsent
from include.integrity.watch.alerts import Finding, open_alerts
from include.integrity.watch.conditions import judge
from include.integrity.watch.snapshot import Snapshot, read_gateways, read_stream
from include.kafka.offsets import OffsetReader
from include.runtime.settings import Settings

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
