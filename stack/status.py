"""What runs, where, and how it is."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stack import environment
from stack.health import probe
from stack.layout import Layout
from stack.service import Service
from stack.services import declare
from stack.supervisor import ALIVE, ProcessState, Supervisor


@dataclass(frozen=True)
class ServiceStatus:
    """One row of the table. `ailment` is None when healthy, else why not."""

    service: Service
    state: str
    ailment: str | None
    pid: int
    uptime_s: float
    log_file: Path | None


def collect(layout: Layout) -> list[ServiceStatus]:
    """Ask every service at once. Blocks a few seconds at most. Raises StackError when there is no `.env` yet."""
    services = [node for node in declare(environment.load_settings(layout)) if isinstance(node, Service)]
    states = Supervisor(layout).states()
    with ThreadPoolExecutor(max_workers=len(services)) as pool:
        return list(pool.map(lambda service: _status(service, states.get(service.name), layout), services))


def show(statuses: Sequence[ServiceStatus], layout: Layout, console: Console) -> None:
    """Print the table."""
    table = Table()
    for heading in ("service", "state", "healthy", "address", "pid", "uptime", "log"):
        table.add_column(heading, overflow="fold")
    for each in statuses:
        table.add_row(
            each.service.name,
            each.state,
            Text("yes", style="green") if each.ailment is None else Text(each.ailment, style="red"),
            each.service.address,
            str(each.pid or ""),
            _duration(each.uptime_s) if each.pid else "",
            _shorter(each.log_file, layout) if each.log_file else "",
        )
    console.print(table)


def _status(service: Service, process: ProcessState | None, layout: Layout) -> ServiceStatus:
    if service.external:
        return ServiceStatus(service, "yours", probe(service.health), 0, 0.0, None)
    log = layout.log_file(service.name)
    if process is None or process.state not in ALIVE:
        state = process.state.lower() if process else "stopped"
        return ServiceStatus(service, state, "no", 0, 0.0, log if log.exists() else None)
    ailment = probe(service.health, process.started_at)
    uptime = max(0.0, time.time() - process.started_at)
    return ServiceStatus(service, process.state.lower(), ailment, process.pid, uptime, log)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _shorter(path: Path, layout: Layout) -> str:
    return str(path.relative_to(layout.root)) if path.is_relative_to(layout.root) else str(path)
