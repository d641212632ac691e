"""The Integrity pages: how far each day is, and how much it can be trusted. Served inside Airflow's API server.

Each pipeline has a page: the first one at `/`, every one at `/NAME/`; its days are at `/NAME/days/2026-11-20`, and
`/NAME/find` finds a record. The pages only read. They start runs, and answer questions of runs, by Airflow's own API in
the browser of the user, so nothing is written with other rights than the user's.

Runbooks are served beside them, at /runbooks/NAME.
"""

import logging
import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
import psycopg2
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import HTMLResponse, PlainTextResponse
from psycopg2.errors import QueryCanceled
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from include.contracts.clock import SystemClock
from include.contracts.day import Day, DayFormatError
from include.contracts.errors import ConfigurationError, DatabaseUnavailable
from include.database.sessions import SessionLimits
from include.integrity.days.due_days import MAX_DAYS
from include.integrity.days.gateways import unsent
from include.integrity.jobs import dag_ids
from include.integrity.pages import page_model, whereabouts
from include.integrity.pages.day_page import SAMPLES, DayPage, Difference, load_day, load_difference
from include.integrity.pages.page_model import PART_TIMEOUT_S, DayRow, PipelineState, load_rows, read_state
from include.integrity.pages.texts import LANGUAGES, Message, PageTexts, chosen_language
from include.integrity.pages.whereabouts import SearchLimits, SearchTooLong, Whereabouts
from include.runtime.settings import Settings, listed_pipelines

log = logging.getLogger(__name__)

TEMPLATES = Path(__file__).parent / "templates"
RUNBOOKS = Path(__file__).resolve().parents[3] / "docs" / "runbooks"
LANGUAGE_COOKIE = "integrity_language"
YEAR_S = 365 * 24 * 3600
LONGEST_INPUT = 200
FINDS_AT_ONCE = 2
FIND_LIMITS = SearchLimits("integrity", SessionLimits(statement_s=5.0, lock_s=2.0), place_s=5.0)
KINDS = ("certified", "rebuilt", "provisional", "held")
_POLICY = "frame-ancestors 'self'"  # of pages without a policy of their own
_KEY = re.compile(r"-?\d{1,18}", re.ASCII)


@dataclass(frozen=True)
class Sources:
    """The functions that read the content of the pages."""

    rows: Callable[[Settings], list[DayRow]]
    state: Callable[[Settings], PipelineState]
    day: Callable[[Settings, Day], DayPage | None]
    difference: Callable[[Settings, Day, int, int], Difference]
    find: Callable[[Settings, int | None, str | None], Whereabouts]


def airflow_app() -> FastAPI:
    """The pages for Airflow's API server, open to whoever may see Airflow's website.

    Airflow does not authenticate a plugin's app by itself: without this dependency the page is open to everyone.
    """
    return create_app(_sees_website(), listed_pipelines(), partial(Settings.from_environment, None))


def runbooks_app() -> FastAPI:
    """The runbooks for Airflow's API server, open to the same users."""
    return show_runbooks(_sees_website())


def _sees_website() -> Callable[..., Any]:
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.core_api.security import requires_access_view

    return requires_access_view(AccessView.WEBSITE)


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


def find_record(settings: Settings, key: int | None, event_id: str | None) -> Whereabouts:
    """Find a record as the page's own role, within seconds. Raises as `whereabouts.find`."""
    found = whereabouts.find(settings, None, key, event_id, partial(unsent, timeout_s=PART_TIMEOUT_S), FIND_LIMITS)
    for place in found.unknown:
        log.warning("integrity page: find: %s", place)
    return found


READ = Sources(partial(load_rows, role="integrity"), read_state, load_day, load_difference, find_record)


class _Refused(Exception):
    """A part of the page that can't be shown, with the reason and the status of the answer."""

    def __init__(self, reason: Message, status: int) -> None:
        super().__init__(reason)
        self.reason, self.status = reason, status


def create_app(
    authorize: Callable[..., Any],
    pipelines: Sequence[str],
    read_settings: Callable[[str], Settings],
    sources: Sources = READ,
) -> FastAPI:
    """The pages of the pipelines as an app. `authorize` is a FastAPI dependency that raises for who may not look."""
    # no generated docs: an app's dependencies do not guard them
    app = FastAPI(title="Integrity", dependencies=[Depends(authorize)], docs_url=None, redoc_url=None, openapi_url=None)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"zip": zip}
    environment.globals |= {"samples": SAMPLES, "languages": LANGUAGES, "kinds": KINDS, "most_days": MAX_DAYS}
    searches = threading.BoundedSemaphore(FINDS_AT_ONCE)

    @app.get("/", response_class=HTMLResponse)
    def first(request: Request) -> HTMLResponse:
        """The page of the first pipeline."""
        return answer(request, "integrity.html", pipelines[0], ".", read_days)

    @app.get("/{pipeline}/", response_class=HTMLResponse)
    def one(request: Request, pipeline: str) -> HTMLResponse:
        """The page of a pipeline; 404 for a name that is not listed."""
        return answer(request, "integrity.html", pipeline, "..", read_days)

    @app.get("/{pipeline}/state", response_class=HTMLResponse)
    def state(request: Request, pipeline: str) -> HTMLResponse:
        """The part of the page that has the state now, which the page asks for again and again."""
        return answer(request, "state.html", pipeline, "..", read_now)

    @app.get("/{pipeline}/find", response_class=HTMLResponse)
    def find(request: Request, pipeline: str, q: str = "") -> HTMLResponse:
        """The form that finds a record, and what it found; 429 while others search, 503 if it takes too long."""
        return answer(request, "find.html", pipeline, "..", partial(read_find, q.strip()), asked=q.strip())

    @app.get("/{pipeline}/days/{day}", response_class=HTMLResponse)
    def one_day(request: Request, pipeline: str, day: str) -> HTMLResponse:
        """The page of a day, with the difference of two generations if they are given; 404 for an unknown day."""
        return answer(request, "day.html", pipeline, "../..", partial(read_day, request, day), day=day)

    def read_days(settings: Settings, content: dict[str, Any]) -> None:
        content["state"] = sources.state(settings)
        rows = content["rows"] = sources.rows(settings)
        today = Day.of(content["now"], settings.timezone).date
        content["calendar"] = page_model.calendar(rows, today)
        content["charts"] = page_model.corrections_chart(rows), page_model.duplicates_chart(rows)

    def read_now(settings: Settings, content: dict[str, Any]) -> None:
        content["state"] = sources.state(settings)

    def read_day(request: Request, day: str, settings: Settings, content: dict[str, Any]) -> None:
        try:
            parsed = Day.parse(day, settings.timezone)
        except DayFormatError as exc:
            raise HTTPException(404, str(exc)) from exc
        page = content["page"] = sources.day(settings, parsed)
        if page is None:
            raise HTTPException(404, f"nothing is known of day {day}")
        compared = [request.query_params.get(name, "") for name in ("from", "to")]
        if not any(compared):
            return
        kept = {str(each.generation_id) for each in page.kept}
        if not kept.issuperset(compared):
            content["difference_problem"] = Message("difference_not_kept")
            return
        try:
            content["difference"] = sources.difference(settings, parsed, *map(int, compared))
        except (DatabaseUnavailable, psycopg2.Error) as exc:
            content["difference_problem"] = _problem(exc)

    def read_find(asked: str, settings: Settings, content: dict[str, Any]) -> None:
        if not asked:
            return
        if len(asked) > LONGEST_INPUT or not asked.isprintable():
            raise _Refused(Message("problem_input", most=LONGEST_INPUT), 400)
        if not searches.acquire(blocking=False):
            raise _Refused(Message("problem_busy"), 429)
        try:
            is_key = _KEY.fullmatch(asked) is not None
            content["found"] = sources.find(settings, int(asked) if is_key else None, None if is_key else asked)
        finally:
            searches.release()

    def answer(
        request: Request,
        template: str,
        pipeline: str,
        root: str,
        read: Callable[[Settings, dict[str, Any]], None],
        **given: Any,
    ) -> HTMLResponse:
        """A page; without an answer of the database one that says so, with 503. `root` leads to the first page."""
        if pipeline not in pipelines:
            raise HTTPException(404, "no such pipeline")
        content: dict[str, Any] = {**_EMPTY, "now": SystemClock().now(), **given}
        status = 200
        try:
            settings = content["settings"] = read_settings(pipeline)
            read(settings, content)
        except _Refused as exc:
            content["problem"], status = exc.reason, exc.status
        except (DatabaseUnavailable, SearchTooLong, ConfigurationError, psycopg2.Error) as exc:
            content["problem"], status = _problem(exc), 503
        asked = request.query_params.get("lang")
        language = chosen_language(
            asked, request.cookies.get(LANGUAGE_COOKIE), accepted=request.headers.get("accept-language", "")
        )
        nonce = secrets.token_urlsafe(16)
        body = environment.get_template(template).render(
            pipeline=pipeline, pipelines=pipelines, dags=dag_ids(pipeline), root=root, nonce=nonce,
            texts=PageTexts(language), language=language, switches=_switches(request.query_params), **content,
        )  # fmt: skip
        response = HTMLResponse(body, status_code=status, headers=_headers(nonce, language))
        if asked in LANGUAGES:
            response.set_cookie(
                LANGUAGE_COOKIE, asked, max_age=YEAR_S, httponly=True, samesite="lax",
                secure=request.url.scheme == "https",
            )  # fmt: skip
        return response

    return app


_EMPTY: Mapping[str, Any] = {
    "settings": None, "problem": None, "state": None, "rows": None, "calendar": None, "charts": None, "page": None,
    "difference": None, "difference_problem": None, "found": None, "asked": "",
}  # fmt: skip


def _switches(query: Mapping[str, str]) -> dict[str, str]:
    """Return the query of this page in each language."""
    return {language: "?" + urlencode({**query, "lang": language}) for language in LANGUAGES}


def _problem(error: Exception) -> Message:
    """Return the reason for people; the details are for the log alone."""
    if isinstance(error, SearchTooLong) or isinstance(error.__cause__ or error, QueryCanceled):
        return Message("problem_too_long")
    if isinstance(error, psycopg2.Error):
        log.warning("integrity page: SQLSTATE %s", error.pgcode)
        return Message("problem_refused", code=error.pgcode)
    log.warning("integrity page: %s", error)
    if isinstance(error, ConfigurationError):
        return Message("problem_setting", reason=str(error))
    return Message("problem_database")


def _headers(nonce: str, language: str) -> dict[str, str]:
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
        "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'"
    )
    return {
        "Content-Security-Policy": policy, "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
        "Content-Language": language, "Referrer-Policy": "same-origin",
    }  # fmt: skip


class OwnFramesOnly:
    """Forbids every other site to frame a page, and so to have a user press its buttons unseen.

    A page with a policy of its own keeps that. Airflow's pages have none.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the app does, with the policy."""

        async def send_with_policy(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("Content-Security-Policy", _POLICY)
            await send(message)

        await self._app(scope, receive, send_with_policy)


def show_runbooks(authorize: Callable[..., Any]) -> FastAPI:
    """Return an app that shows a runbook as text. `authorize` is a FastAPI dependency that raises for others."""
    app = FastAPI(title="Runbooks", dependencies=[Depends(authorize)], docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/{name}")
    def runbook(name: str) -> PlainTextResponse:
        """A runbook; 404 for a name that is not one of them."""
        names = {path.stem: path for path in RUNBOOKS.glob("*.md")}
        if name not in names:
            raise HTTPException(404, "no such runbook")
        return PlainTextResponse(names[name].read_text(encoding="utf-8"), headers={"X-Content-Type-Options": "nosniff"})

    return app
