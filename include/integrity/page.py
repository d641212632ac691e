"""The Integrity page: how far each day is, and how much it can be trusted. Served inside Airflow's API server."""

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
from include.errors import ConfigurationError, DatabaseUnavailable
from include.gateway.client import GatewayRefused, GatewayUnavailable
from include.integrity.gateways import unsent
from include.integrity.page_model import DayRow, counts_text, load_rows
from include.settings import Settings

log = logging.getLogger(__name__)

TEMPLATES = Path(__file__).parent / "templates"
GATEWAY_TIMEOUT_S = 2.0  # somebody waits for the page


def airflow_app() -> FastAPI:
    """The page for Airflow's API server, open to whoever may see Airflow's website.

    Airflow does not authenticate a plugin's app by itself: without this dependency the page is open to everyone.
    """
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.core_api.security import requires_access_view

    return create_app(requires_access_view(AccessView.WEBSITE), read_rows, read_backlog)


def create_app(
    authorize: Callable[..., Any], read_rows: Callable[[], list[DayRow]], read_backlog: Callable[[], str]
) -> FastAPI:
    """The page as an app. `authorize` is a FastAPI dependency that raises for who may not look."""
    # no generated docs: an app's dependencies do not guard them
    app = FastAPI(title="Integrity", dependencies=[Depends(authorize)], docs_url=None, redoc_url=None, openapi_url=None)
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True)
    environment.filters["counts"] = counts_text
    template = environment.get_template("integrity.html")

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
        backlog = "" if problem else read_backlog()
        body = template.render(rows=rows, problem=problem, backlog=backlog, nonce=nonce, now=SystemClock().now())
        return HTMLResponse(body, status_code=503 if problem else 200, headers=_headers(nonce))

    return app


def read_rows() -> list[DayRow]:
    """The page's rows as of now, read as the page's own role. Blocks; errors as `load_rows`, and ConfigurationError."""
    return load_rows(Settings.from_environment(), "integrity")


def read_backlog() -> str:
    """One sentence on the gateways' fallback stores. Blocks 2 s at most; never raises our own errors."""
    try:
        held = unsent(Settings.from_environment(), GATEWAY_TIMEOUT_S)
    except (GatewayUnavailable, GatewayRefused, ConfigurationError) as exc:
        log.warning("integrity page: %s", exc)
        return "The fallback backlog is not known; the log of the API server says why."
    waiting, set_aside = sum(each.waiting for each in held.values()), sum(each.set_aside for each in held.values())
    lost = sum(each.lost for each in held.values())
    more = f" {set_aside:,} are set aside, {lost:,} were lost: see the runbook." if set_aside or lost else ""
    return f"{waiting:,} events wait in the fallback stores of {len(held)} gateways.{more}"


def _headers(nonce: str) -> dict[str, str]:
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )
    return {"Content-Security-Policy": policy, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
