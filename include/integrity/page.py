"""The Integrity page: how far each day is, and how much it can be trusted. Served inside Airflow's API server."""

import datetime as dt
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import psycopg2
from fastapi import Depends, FastAPI
from fastapi.responses import HTMLResponse

from include.clock import SystemClock
from include.contracts.day import Day
from include.errors import ConfigurationError, DatabaseUnavailable
from include.integrity.page_model import DayRow, load_days, select_rows
from include.settings import Settings

log = logging.getLogger(__name__)

TEMPLATES = Path(__file__).parent / "templates"


def airflow_app() -> FastAPI:
    """The page for Airflow's API server, open to whoever may see Airflow's website.

    Airflow does not authenticate a plugin's app by itself: without this dependency the page is open to everyone.
    """
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.core_api.security import requires_access_view

    return create_app(requires_access_view(AccessView.WEBSITE), load_rows)


def create_app(authorize: Callable[..., Any], read_rows: Callable[[], list[DayRow]]) -> FastAPI:
    """The page as an app. `authorize` is a FastAPI dependency that raises for who may not look."""
    # no generated docs: an app's dependencies do not guard them
    app = FastAPI(title="Integrity", dependencies=[Depends(authorize)], docs_url=None, redoc_url=None, openapi_url=None)
    template = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True).get_template(
        "integrity.html"
    )

    @app.get("/", response_class=HTMLResponse)
    def integrity() -> HTMLResponse:
        """The days as a table; 503 with the reason when the database can't be read."""
        try:
            rows, problem = read_rows(), None
        except DatabaseUnavailable as exc:
            log.warning("integrity page: %s", exc)
            rows, problem = [], "The database does not answer."
        except ConfigurationError as exc:
            log.warning("integrity page: %s", exc)
            rows, problem = [], str(exc)
        except psycopg2.Error as exc:
            log.warning("integrity page: SQLSTATE %s", exc.pgcode)
            rows, problem = [], f"The database refused the question (SQLSTATE {exc.pgcode})."
        nonce = secrets.token_urlsafe(16)
        body = template.render(rows=rows, problem=problem, nonce=nonce, now=SystemClock().now())
        return HTMLResponse(body, status_code=503 if problem else 200, headers=_headers(nonce))

    return app


def load_rows() -> list[DayRow]:
    """The page's rows as of now. Blocks on PostgreSQL; errors as `load_days`, and ConfigurationError."""
    settings = Settings.from_environment()
    return select_rows(load_days(settings.database), _today(settings.timezone))


def _today(zone: str) -> dt.date:
    return Day.of(SystemClock().now(), zone).date


def _headers(nonce: str) -> dict[str, str]:
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )
    return {"Content-Security-Policy": policy, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
