"""The runbooks, as Airflow's API server shows them to users who are logged in: at /runbooks/nightly_rebuild."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import PlainTextResponse

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
