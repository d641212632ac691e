"""Shows the state, address and health of each service, and the progress of the stream."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from include.contracts.errors import PipelineError
from include.database.stream_progress import Seen, StreamProgressStore
from include.integrity.days.gateways import unsent
from include.runtime.settings import Settings
from stack import env_file, leftovers
from stack.health import unhealthy_reason
from stack.layout import Layout, StackError
from stack.services import Service, declare, pipelines_of, services_of, suffix_of
from stack.supervisor import ALIVE, ProcessState, Supervisor

SILENT_S = 10.0
_UNSENT_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class ServiceStatus:
    """One row of the table. `unhealthy_reason` is None if the service is healthy."""

    service: Service
    state: str
    unhealthy_reason: str | None
    pid: int
    uptime_s: float


def collect(layout: Layout) -> list[ServiceStatus]:
    """Check all services in parallel. Blocks for a few seconds at most. Raises StackError if there is no `.env`."""
    services = services_of(declare(env_file.load_settings(layout), layout))
    states = Supervisor(layout).states()
    orphans = {} if states else leftovers.find_services(layout.state)

    def ask(service: Service) -> ServiceStatus:
        return _status(service, states.get(service.name), orphans.get(service.name))

    with ThreadPoolExecutor(max_workers=len(services)) as pool:
        return list(pool.map(ask, services))


def show(statuses: Sequence[ServiceStatus], layout: Layout, console: Console) -> None:
    """Print the services, unsent events and the stream's last recorded progress. Blocks for up to 10 s."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("service", "state", "address", "pid", "uptime"):
        table.add_column(heading, no_wrap=True)  # they fit into 80 columns, and an address can be copied
    table.add_column("healthy", overflow="fold")
    for each in statuses:
        table.add_row(
            each.service.name,
            each.state,
            each.service.address,
            str(each.pid or ""),
            _duration(each.uptime_s) if each.uptime_s else "",
            Text("yes", style="green") if each.unhealthy_reason is None else Text(each.unhealthy_reason, style="red"),
        )
    console.print(table)
    console.print(Text(f"logs: {_shorter(layout.logs, layout)}/SERVICE.log"))
    processes = leftovers.find(layout.state)
    console.print(Text(f"memory: {leftovers.memory_bytes(processes) / 1e9:.1f} GB in {len(processes)} processes"))
    console.print(Text(read_unsent(layout)))
    for name, progress in read_progress(layout).items():
        if isinstance(progress, str):
            console.print(Text(f"{name}: {progress}"))
        else:
            console.print(progress_table(progress, name))


def read_unsent(layout: Layout) -> str:
    """Describe accepted events that are in no topic, one line per gateway; the reason if that is unknown."""
    try:
        held = unsent(Settings.from_environment(env_file.load_settings(layout)), _UNSENT_TIMEOUT_S)
    except (PipelineError, StackError) as exc:
        return f"gateway: no metrics: {str(exc).splitlines()[0]}"
    return "\n".join(
        f"gateway {url}: {each.waiting:,} events wait, {each.set_aside:,} are set aside, {each.lost:,} were lost"
        for url, each in held.items()
    )


def read_progress(layout: Layout) -> dict[str, list[Seen] | str]:
    """Return the recorded progress of each pipeline's queries; the reason, as text, if there is none."""
    try:
        settings = env_file.load_settings(layout)
    except StackError as exc:
        return {"stream": f"no metrics: {str(exc).splitlines()[0]}"}
    return {f"stream{suffix_of(name, settings)}": _progress_of(name, settings) for name in pipelines_of(settings)}


def _progress_of(pipeline: str, settings: Mapping[str, str]) -> list[Seen] | str:
    try:
        store = StreamProgressStore(Settings.from_environment(settings, pipeline).database, "batch")
        try:
            return store.read() or "it has not run yet"
        finally:
            store.close()
    except PipelineError as exc:
        return f"no metrics: {str(exc).splitlines()[0]}"


def progress_table(progress: Sequence[Seen], stream: str = "stream") -> Table:
    """Return a table with one row per query, and one row with the counts of their drivers, one or two."""
    table = Table()
    for heading in (
        stream, "in /s", "done /s", "lag", "lag s", "batch", "pending", "rejects", "duplicates", "waiting for"
    ):  # fmt: skip
        table.add_column(heading, overflow="fold")
    for seen in progress:
        p = seen.progress
        table.add_row(
            p.query,
            _number(p.input_rate),
            _number(p.processed_rate),
            _number(p.lag_records),
            _number(p.lag_s, digits=1),
            "" if p.duration_ms is None else f"{p.input_rows:,} in {p.duration_ms / 1000:.2f} s",
            *[""] * 3,
            _waiting(seen),
        )
    newest_s = min(seen.age_s for seen in progress)
    drivers = {seen.progress.driver_id: seen.progress for seen in progress if seen.age_s <= max(newest_s, SILENT_S)}
    metrics: Counter[str] = Counter()
    for driver in drivers.values():
        metrics.update(driver.metrics or {})
    pending, oldest_s = metrics.get("pending"), metrics.get("pending_oldest_s", 0.0)
    waiting = f"{pending:,}, oldest {_duration(oldest_s)}" if pending else _number(pending)
    table.add_section()
    counts = (_number(metrics.get(name, 0)) for name in ("rejects", "duplicates"))
    table.add_row("both", *[""] * 5, waiting, *counts)
    mib = (metrics.get("table_memory_bytes", 0) + metrics.get("table_disk_bytes", 0)) / 2**20
    epochs = ", ".join(str(driver.epoch) for driver in drivers.values())
    table.caption = f"member table: {metrics.get('table_rows', 0):,} rows, {mib:,.0f} MiB; driver {epochs}"
    return table


def _waiting(seen: Seen) -> Text:
    if seen.age_s > SILENT_S:
        return Text(f"no heartbeat for {_duration(seen.age_s)}", style="red")
    return Text(seen.progress.waiting_for or "", style="yellow")


def _number(value: float | None, digits: int = 0) -> str:
    return "?" if value is None else f"{value:,.{digits}f}"


def _status(service: Service, process: ProcessState | None, orphan: leftovers.Process | None) -> ServiceStatus:
    if service.external:
        return ServiceStatus(service, "yours", unhealthy_reason(service), 0, 0.0)
    if orphan is not None:  # its supervisor has died
        return ServiceStatus(service, "running", "no supervisor: run `make up`", orphan.pid, 0.0)
    if process is None or process.state not in ALIVE:
        state = process.state.lower() if process else "stopped"
        return ServiceStatus(service, state, "no", 0, 0.0)
    reason = unhealthy_reason(service, process.pid, process.started_at)
    uptime = max(0.0, time.time() - process.started_at)
    return ServiceStatus(service, process.state.lower(), reason, process.pid, uptime)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _shorter(path: Path, layout: Layout) -> str:
    return str(path.relative_to(layout.root)) if path.is_relative_to(layout.root) else str(path)
