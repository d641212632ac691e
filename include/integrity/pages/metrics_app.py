"""Serves the metrics of the batch layer inside Airflow's API server, to whoever has METRICS_TOKEN."""

import datetime as dt
import logging
import secrets
from collections.abc import Callable, Mapping
from functools import partial

from fastapi import FastAPI, Header, HTTPException, Response
from prometheus_client import CONTENT_TYPE_LATEST

from include.contracts.errors import ConfigurationError
from include.integrity.pages.metrics import BatchMetrics
from include.runtime.settings import Settings, listed_pipelines

log = logging.getLogger(__name__)


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
