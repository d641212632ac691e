"""The Integrity page: how far each day is, and how much it can be trusted. Served inside Airflow's API server.

Each pipeline has a page: the first one at `/`, every one at `/NAME/`, and each of its days at `/NAME/days/2026-11-20`.
"""

import logging
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import psycopg2
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse

from include.airflow_support.dag_ids import dag_ids
from include.clock import SystemClock
from include.contracts.day import Day, DayFormatError
from include.errors import ConfigurationError, DatabaseUnavailable
from include.gateway.client import GatewayRefused, GatewayUnavailable
from include.integrity.day_page import SAMPLES, DayPage, load_day
from include.integrity.gateways import unsent
from include.integrity.page_model import DayRow, counts_text, load_rows
from include.settings import Settings, listed_pipelines

log = logging.getLogger(__name__)

TEMPLATES = Path(__file__).parent / "templates"
GATEWAY_TIMEOUT_S = 2.0  # somebody waits for the page


def airflow_app() -> FastAPI:
    """The page for Airflow's API server, open to whoever may see Airflow's website.

    Airflow does not authenticate a plugin's app by itself: without this dependency the page is open to everyone.
    """
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.core_api.security import requires_access_view

    authorize = requires_access_view(AccessView.WEBSITE)
    return create_app(authorize, listed_pipelines(), partial(Settings.from_environment, None), read_rows, read_backlog)


def navigation(prefix: str) -> list[dict[str, Any]]:
    """Return Airflow's navigation entries of the pages: the first pipeline's and, with its name, each further one's."""
    further = listed_pipelines()[1:]
    pages = {"Integrity": "", **{f"Integrity {pipeline}": f"{pipeline}/" for pipeline in further}}
    return [
        {
            "name": name,
            "href": f"{prefix}/{path}",
            "destination": "nav",
            "url_route": name.lower().replace(" ", "_"),  # Airflow keeps one view of each route
            "nav_top_level": True,
        }
        for name, path in pages.items()
    ]


def create_app(
    authorize: Callable[..., Any],
    pipelines: Sequence[str],
    read_settings: Callable[[str], Settings],
    read_rows: Callable[[Settings], list[DayRow]],
    read_backlog: Callable[[Settings], str],
    read_day: Callable[[Settings, Day], DayPage | None] = load_day,
) -> FastAPI:
    """The pages of the pipelines as an app. `authorize` is a FastAPI dependency that raises for who may not look."""
    # no generated docs: an app's dependencies do not guard them
    app = FastAPI(title="Integrity", dependencies=[Depends(authorize)], docs_url=None, redoc_url=None, openapi_url=None)
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True)
    environment.filters |= {"counts": counts_text, "zip": zip}
    environment.globals |= {"samples": SAMPLES}

    @app.get("/", response_class=HTMLResponse)
    def first() -> HTMLResponse:
        """The page of the first pipeline."""
        return answer("integrity.html", pipelines[0], ".", days)

    @app.get("/{pipeline}/", response_class=HTMLResponse)
    def one(pipeline: str) -> HTMLResponse:
        """The page of a pipeline; 404 for a name that is not listed."""
        return answer("integrity.html", pipeline, "..", days)

    @app.get("/{pipeline}/days/{day}", response_class=HTMLResponse)
    def one_day(pipeline: str, day: str) -> HTMLResponse:
        """The page of a day; 404 for a day of which nothing is known."""

        def read(settings: Settings) -> dict[str, Any]:
            try:
                page = read_day(settings, Day.parse(day, settings.timezone))
            except DayFormatError as exc:
                raise HTTPException(404, str(exc)) from exc
            if page is None:
                raise HTTPException(404, f"nothing is known of day {day}")
            return {"page": page}

        return answer("day.html", pipeline, "../..", read, day=day)

    def days(settings: Settings) -> dict[str, Any]:
        return {"rows": read_rows(settings), "backlog": read_backlog(settings)}

    def answer(
        template: str, pipeline: str, root: str, read: Callable[[Settings], dict[str, Any]], **content: Any
    ) -> HTMLResponse:
        """A page; 503 with the reason when the database can't be read. `root` leads to the first page."""
        if pipeline not in pipelines:
            raise HTTPException(404, "no such pipeline")
        settings = problem = None
        try:
            settings = read_settings(pipeline)
            content |= read(settings)
        except DatabaseUnavailable as exc:
            log.warning("integrity page: %s", exc)
            problem = "The database does not answer."
        except ConfigurationError as exc:
            log.warning("integrity page: %s", exc)
            problem = str(exc)
        except psycopg2.Error as exc:
            log.warning("integrity page: SQLSTATE %s", exc.pgcode)
            problem = f"The database refused the question (SQLSTATE {exc.pgcode})."
        nonce = secrets.token_urlsafe(16)
        body = environment.get_template(template).render(
            pipeline=pipeline, pipelines=pipelines, dags=dag_ids(pipeline), root=root, settings=settings,
            problem=problem, nonce=nonce, now=SystemClock().now(), **content,
        )  # fmt: skip
        return HTMLResponse(body, status_code=503 if problem else 200, headers=_headers(nonce))

    return app


def read_rows(settings: Settings) -> list[DayRow]:
    """The page's rows as of now, read as the page's own role. Blocks; errors as `load_rows`, and ConfigurationError."""
    return load_rows(settings, "integrity")


def read_backlog(settings: Settings) -> str:
    """One sentence on the gateways' fallback stores. Blocks 2 s at most; never raises our own errors."""
    try:
        held = unsent(settings, GATEWAY_TIMEOUT_S)
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
