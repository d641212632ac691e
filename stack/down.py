"""Stops the stack and ends every process that it started; removes its data, unless they exist nowhere else.

Standard library only: it works while the environment is gone.
"""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from include.gateway.fallback import schema as sql
from stack import env_file, leftovers
from stack.layout import DATA_FOLDERS, Layout, StackError, exclusive
from stack.services import declare, external_services, stop_order


def down(layout: Layout) -> None:
    """Stop every service, dependents first, then the supervisor, then any other process that the stack started.

    It is no error if nothing is running. Raises StackError if a process could not be ended.
    """
    with exclusive(layout):
        stop_all(layout)


def clean(layout: Layout, force: bool = False) -> None:
    """Stop everything and remove the data: topics, tables, fallback store, checkpoints, Airflow's history, logs.

    Keeps `.env`, the virtual environment and the jars. Raises StackError, and removes nothing, if a process that is not
    the stack's uses the data. Unless forced, it also does so if there are accepted events that are in no topic, or
    archive files that an external catalogue lists.
    """
    with exclusive(layout):
        _require_replaceable(layout, force)  # before stopping, so that a refusal leaves the stack running
        stop_all(layout)
        _require_replaceable(layout, force)
        folders = [layout.state / name for name in DATA_FOLDERS]
        users = leftovers.find_users(folders)
        if users:
            raise StackError(f"data in {layout.state} is in use, end it first: {leftovers.describe(users[0])}")
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        print("data removed")


def _require_replaceable(layout: Layout, force: bool) -> None:
    found = [] if force else irreplaceable(layout)
    if found:
        raise StackError(f"{'; '.join(found)}. To remove them for good: make clean FORCE=1")


def stop_all(layout: Layout) -> None:
    """Stop every process of the stack; the caller holds its lock. Raises StackError if one could not be ended."""
    try:
        _stop_in_order(layout)
    except ModuleNotFoundError:
        print("there is no environment: services are ended without their order")
    except StackError as exc:
        print(f"services are ended without their order: {exc}")
    remaining = leftovers.find(layout.state)
    if remaining:
        leftovers.terminate(remaining)
        for process in remaining:
            print(f"ended what was left: {leftovers.describe(process)}")
    stubborn = leftovers.find(layout.state)
    if stubborn:
        raise StackError(f"could not be ended: {leftovers.describe(stubborn[0])}; end it by hand")
    print("down; no process is left")


def _stop_in_order(layout: Layout) -> None:
    from stack.supervisor import Supervisor  # comes with the environment

    supervisor = Supervisor(layout)
    if supervisor.is_running():
        for names in stop_order(declare(env_file.load_settings(layout))):
            supervisor.stop(names)
        supervisor.shut_down()


def irreplaceable(layout: Layout) -> list[str]:
    """Return one line per kind of data below `.state` that exist nowhere else: accepted events and archived files.

    A line has the count and the remedy; empty if there are none.
    """
    found = []
    if held := events_in(layout.state / "fallback"):
        found.append(f"{held} in the gateway's fallback store: start the stack and let them drain")
    settings = env_file.read(layout.env_file) if layout.env_file.exists() else {}
    archives = (layout.state / "archive", *(layout.state / "pipelines").glob("*/archive"))
    archived = sum(1 for folder in archives for _ in folder.rglob("*.parquet"))
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
