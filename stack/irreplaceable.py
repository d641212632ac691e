"""Finds data below `.state` that exist nowhere else and must not be lost: accepted events and archived files."""

import sqlite3
from contextlib import closing
from pathlib import Path

from include.gateway.fallback import schema as sql
from stack import env_file
from stack.layout import Layout
from stack.services import external_services

_PARQUET = "*.parquet"


def find(layout: Layout) -> list[str]:
    """Return one line per kind of such data, with the count and the remedy; empty if there are none."""
    found = []
    if held := events_in(layout.state / "fallback"):
        found.append(f"{held} in the gateway's fallback store: start the stack and let them drain")
    settings = env_file.read(layout.env_file) if layout.env_file.exists() else {}
    archives = (layout.state / "archive", *(layout.state / "pipelines").glob("*/archive"))
    archived = sum(1 for folder in archives for _ in folder.rglob(_PARQUET))
    if archived and "postgres" in external_services(settings):
        found.append(
            f"{archived} files of the archive, which the catalogue in your own PostgreSQL lists: move them first"
        )
    return found


def events_in(folder: Path) -> str | None:
    """Describe the accepted events in a fallback store; None if there are none."""
    path = folder / sql.FILE
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as store:
            [count, *_] = store.execute(sql.ROWS).fetchone()
    except sqlite3.Error as exc:
        return f"accepted events, how many cannot be read ({exc}), are"
    return f"{count} accepted event{'s are' if count > 1 else ' is'}" if count else None
