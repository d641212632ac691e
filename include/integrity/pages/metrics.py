"""Metrics of the batch layer in Prometheus' format, of every pipeline (label `pipeline`), as gauges in base units.

Days are the newest DAYS ones. A value that is not known is left out. Airflow's API server serves them to whoever has
METRICS_TOKEN.
"""

import datetime as dt
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import psycopg2
from fastapi import FastAPI, Header, HTTPException, Response
from prometheus_client import CONTENT_TYPE_LATEST

from include.contracts.errors import ConfigurationError, DatabaseUnavailable
from include.database.named import query
from include.database.sessions import connect
from include.database.stream_progress import Pending
from include.integrity.days.day_status import DayStatus, select_days
from include.integrity.days.due_days import Window
from include.integrity.watch.audit import AUDITED, STREAM_AUDITED
from include.integrity.watch.conditions import (
    CONDITIONS,
    Snapshot,
    WatchedDay,
    day_expiring,
    day_not_certified,
    lost_days,
)
from include.runtime.metrics import Metric, Samples, gauge, metrics_page
from include.runtime.settings import AlertSettings, Settings, listed_pipelines

log = logging.getLogger(__name__)


DAYS = 60
_STATUSES = ("provisional", "rebuilt", "certified")
_SEVERITIES = {**{one.name: one.severity for one in CONDITIONS}, **AUDITED, **STREAM_AUDITED}


@dataclass(frozen=True)
class BatchState:
    """The batch layer of a pipeline, as its database has it.

    `generations` are counted by status, open `alerts` by name and severity. `unarchived`: offsets of the stream's topic
    that the speed layer has passed and the archive has not. `archived_at` is None if nothing was archived.
    """

    limits: AlertSettings
    window: Window
    days: Sequence[DayStatus]
    generations: Mapping[str, int]
    alerts: Mapping[tuple[str, str], int]
    unarchived: int
    archived_at: dt.datetime | None


def read_state(settings: Settings) -> BatchState:
    """Return the state as of now, read as role integrity. Blocks; raises DatabaseUnavailable and psycopg2.Error."""
    with connect(settings.database, "integrity", "metrics") as connection, connection.cursor() as cursor:
        days, window = select_days(cursor, settings, DAYS)
        cursor.execute(query("count_generations", cursor))
        generations = dict(cursor.fetchall())
        cursor.execute(query("count_open_alerts", cursor))
        alerts = {(name, severity): count for name, severity, count in cursor.fetchall()}
        cursor.execute(query("select_archive_lag", cursor), {"topic": settings.pipeline.stream.name})
        unarchived, archived_at = cursor.fetchone()
        return BatchState(settings.alerts, window, days, generations, alerts, unarchived, archived_at)


@dataclass(frozen=True)
class BatchLayer:
    """The state of each pipeline, None if its database does not answer, and the heartbeats of Airflow's components."""

    states: Mapping[str, BatchState | None]
    heartbeats: Mapping[str, dt.datetime]

    @property
    def known(self) -> dict[str, BatchState]:
        """The states of the pipelines whose databases answered."""
        return {name: state for name, state in self.states.items() if state is not None}


class BatchMetrics:
    """Reads the state of each pipeline on each scrape; of one whose database does not answer, says only that."""

    def __init__(
        self,
        pipelines: Sequence[str],
        read_settings: Callable[[str], Settings],
        heartbeats: Callable[[], Mapping[str, dt.datetime]],
        read: Callable[[Settings], BatchState] = read_state,
    ) -> None:
        """`heartbeats` returns those of Airflow's components by name."""
        self._pipelines = pipelines
        self._read_settings = read_settings
        self._heartbeats = heartbeats
        self._read = read

    def page(self) -> bytes:
        """Return the metrics in Prometheus' text format. Blocks as `read_state`, for each pipeline."""
        states = {name: self._state(name) for name in self._pipelines}
        return metrics_page("batch", METRICS, BatchLayer(states, self._heartbeats()))

    def _state(self, pipeline: str) -> BatchState | None:
        try:
            return self._read(self._read_settings(pipeline))
        except (DatabaseUnavailable, ConfigurationError) as exc:
            log.warning("metrics of %s: %s", pipeline, exc)
        except psycopg2.Error as exc:
            log.warning("metrics of %s: SQLSTATE %s", pipeline, exc.pgcode)
        return None


Values = Mapping[str, float | None]  # by the value of the label; one without a label has the key ""
ValuesOf = Callable[[BatchState], Values]


def _one(value: Callable[[BatchState], float | None]) -> ValuesOf:
    return lambda state: {"": value(state)}


def _sum(value: Callable[[DayStatus], int | None]) -> ValuesOf:
    return _one(lambda state: sum(value(day) or 0 for day in state.days))


def _sums(counts: Callable[[DayStatus], Mapping[str, int]], *always: str) -> ValuesOf:
    def add(state: BatchState) -> Values:
        found = Counter(dict.fromkeys(always, 0))
        for day in state.days:
            found.update(counts(day))
        return {**found}

    return add


def _snapshot(state: BatchState) -> Snapshot:
    """The days, as the watch judges them. Days of which PostgreSQL does not know are in the alerts alone."""
    days = [
        WatchedDay(one.day, one.status, one.generation_id is not None, bool(one.dirty_count), one.uncertified_reason,
                   one.held_reason is not None, None, one.acknowledged_by is not None)
        for one in state.days
    ]  # fmt: skip
    return Snapshot(
        window=state.window, queries={}, pending=Pending(0, 0.0), rejects=0, first_reject_at=None, days=days,
        unpublished=[one.day for one in days if not one.is_published],
    )  # fmt: skip


def _archive_lag_s(state: BatchState) -> float | None:
    if not state.unarchived:
        return 0.0
    return (state.window.now - state.archived_at).total_seconds() if state.archived_at else None


def _last_night(is_done: Callable[[DayStatus], bool]) -> ValuesOf:
    def look(state: BatchState) -> float | None:
        return next((float(is_done(day)) for day in state.days if day.day == state.window.newest), None)

    return _one(look)


def _newest(at: Callable[[DayStatus], dt.datetime | None]) -> ValuesOf:
    return _one(lambda state: max((when.timestamp() for day in state.days if (when := at(day))), default=None))


def _gauge(name: str, unit: str, text: str, values_of: ValuesOf, label: str = "") -> Metric[BatchLayer]:
    """Return a metric of each pipeline that answered, by `label` too if there is one."""

    def read(layer: BatchLayer) -> Samples:
        return {
            (pipeline, value) if label else pipeline: number
            for pipeline, state in layer.known.items()
            for value, number in values_of(state).items()
        }

    return gauge(f"batch_{name}", unit, text, read, "pipeline", *([label] if label else []))


def _open_alerts(layer: BatchLayer) -> Samples:
    none_open = dict.fromkeys(_SEVERITIES.items(), 0)
    return {
        (pipeline, *alert): count
        for pipeline, state in layer.known.items()
        for alert, count in (none_open | {**state.alerts}).items()
    }


METRICS: Sequence[Metric[BatchLayer]] = (
    gauge("batch_database_up", "0 or 1", "1 if the pipeline's database answered.",
          lambda layer: {name: state is not None for name, state in layer.states.items()}, "pipeline"),
    _gauge("days", "days", "Days by status.",
           lambda state: dict.fromkeys(_STATUSES, 0) | Counter(day.status for day in state.days), "status"),
    _gauge("days_dirty", "days", "Published days that records reached afterwards.",
           _sum(lambda day: day.dirty_count > 0)),
    _gauge("days_held", "days", "Days that a person holds, and that nobody acknowledged.",
           _sum(lambda day: day.held_reason is not None and day.acknowledged_by is None)),
    _gauge("days_overdue", "days", "Days without a certificate, which the watch finds too.",
           _one(lambda state: len([*day_not_certified(_snapshot(state), state.limits)]))),
    _gauge("days_expiring", "days", "Days that need a rebuild and soon cannot be rebuilt, which the watch finds too.",
           _one(lambda state: len([*day_expiring(_snapshot(state), state.limits)]))),
    _gauge("days_lost", "days", "Days that need a rebuild and can no longer be rebuilt, of the newest 60.",
           _one(lambda state: len(lost_days(_snapshot(state))))),
    _gauge("last_night_published", "0 or 1", "1 if yesterday shows a generation.",
           _last_night(lambda day: day.generation_id is not None)),
    _gauge("last_night_certified", "0 or 1", "1 if yesterday has a certificate.",
           _last_night(lambda day: day.status == "certified")),
    _gauge("last_publication_timestamp_seconds", "Unix time", "When a day was last published.",
           _newest(lambda day: day.published_at)),
    _gauge("last_certificate_timestamp_seconds", "Unix time", "When a day was last certified.",
           _newest(lambda day: day.certified_at)),
    _gauge("rows", "rows", "Rows of published days.", _sum(lambda day: day.row_count)),
    _gauge("live_rows", "rows", "Rows of the stream on top of them.", _sum(lambda day: day.live_row_count)),
    _gauge("pending_records", "records", "Records of these days that wait for their key of the table.",
           _sum(lambda day: day.pending_count)),
    _gauge("rejected_records", "records", "Records of published days that break the contract.",
           _sum(lambda day: day.rejected_count)),
    _gauge("duplicate_records", "records", "Records of the output topic beyond the first of their version.",
           _sum(lambda day: day.duplicate_count)),
    _gauge("corrections", "rows", "Differences that the published rebuilds corrected, by class.",
           _sums(lambda day: day.corrections, "unexplained"), "class"),
    _gauge("late_records", "records", "Records that reached days after their publication, by cause.",
           _sums(lambda day: day.dirty), "cause"),
    _gauge("generations", "generations", "Generations by status.", lambda state: state.generations, "status"),
    _gauge("archive_lag_records", "records",
           "Offsets of the stream's topic that the stream has passed and the archive has not.",
           _one(lambda state: state.unarchived)),
    _gauge("archive_lag_seconds", "seconds",
           "For how long the archive has taken nothing, though the stream did; else 0.",
           _one(_archive_lag_s)),
    gauge("batch_alerts_open", "alerts", "Open alerts of the watch and the audits.", _open_alerts,
          "pipeline", "name", "severity"),
    gauge("batch_airflow_heartbeat_timestamp_seconds", "Unix time",
          "When a component of Airflow last said that it is alive.",
          lambda layer: {component: at.timestamp() for component, at in layer.heartbeats.items()}, "component"),
)  # fmt: skip


def airflow_metrics_app() -> FastAPI:
    """The endpoint for Airflow's API server. Prometheus has no login of Airflow's, so it has a token of its own."""
    pipelines = listed_pipelines()
    read_settings = partial(Settings.from_environment, None)
    metrics = BatchMetrics(pipelines, read_settings, airflow_heartbeats)
    return create_metrics_app(lambda: read_settings(pipelines[0]).batch.metrics_token, metrics.page)


def create_metrics_app(read_token: Callable[[], str], page: Callable[[], bytes]) -> FastAPI:
    """`GET /metrics` as an app: 401 without the token, 503 if none is set."""
    app = FastAPI(title="Metrics", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/metrics")
    def metrics(authorization: str = Header("")) -> Response:
        """The metrics of all pipelines."""
        try:
            token = read_token()
        except ConfigurationError as exc:
            log.warning("metrics: %s", exc)
            raise HTTPException(503, "a setting is wrong; the log of the API server names it") from exc
        if not token:
            raise HTTPException(503, "METRICS_TOKEN is not set; set it in .env and restart Airflow's API server")
        if not secrets.compare_digest(authorization.encode(), f"Bearer {token}".encode()):
            raise HTTPException(401, "send METRICS_TOKEN as a bearer token", {"WWW-Authenticate": "Bearer"})
        return Response(page(), media_type=CONTENT_TYPE_LATEST, headers={"Cache-Control": "no-store"})

    return app


def airflow_heartbeats() -> Mapping[str, dt.datetime]:
    """Return the last heartbeat of Airflow's components by name; those that never ran are left out. Blocks."""
    from airflow.api.common.airflow_health import get_airflow_health

    health = get_airflow_health()
    found = {name: health[name][f"latest_{name}_heartbeat"] for name in ("scheduler", "triggerer", "dag_processor")}
    return {name: dt.datetime.fromisoformat(at) for name, at in found.items() if at}
