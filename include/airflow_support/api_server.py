"""Additions to Airflow's API server: runbooks at /runbooks/NAME for users who are logged in, and the frame policy."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import PlainTextResponse
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLICY = "frame-ancestors 'self'"


class OwnFramesOnly:
    """Forbids every other site to frame a page, and so to have a user press its buttons unseen.

    A page with a policy of its own keeps that. Airflow's pages have none.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the app does, with the policy."""

        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("Content-Security-Policy", _POLICY)
            await send(message)

        await self._app(scope, receive, send_with_policy)


RUNBOOKS = Path(__file__).resolve().parents[2] / "docs" / "runbooks"


def runbooks_app() -> FastAPI:
    """Return the app for Airflow's API server, open to whoever may see Airflow's website."""
    from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
    from airflow.api_fastapi.core_api.security import requires_access_view

    return create_app(requires_access_view(AccessView.WEBSITE))


def create_app(authorize: Callable[..., Any]) -> FastAPI:
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
