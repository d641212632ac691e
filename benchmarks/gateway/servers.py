"""Our server beside others that run the same intake: granian by RSGI as the process, and aiohttp, both on uvloop.

`python -m benchmarks.gateway.servers`: rounds in turns, single events and arrays, against the hand-written gateway.
`--hostile SEED`: instead, rounds of `tests.faults.clients` with hostile clients against each server.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from statistics import median
from types import SimpleNamespace
from typing import Any

from benchmarks.gateway.processes import Bench, bench, listens, target
from benchmarks.gateway.report import row
from benchmarks.gateway.wrk import Load, Target, load, require_wrk
from benchmarks.peer_python import peer_python
from benchmarks.report import Report
from include.contracts.pipelines import SITE_PIPELINE
from stack.layout import PROJECT_ROOT
from tests.faults import clients
from tests.faults.clients_plan import plan
from tests.servers import wait_until
from tests.support.gateway_process import GatewayProcess
from tests.support.hostile import resident_bytes

_ARRAY = 500
_WARM_UP_S = {1: 6, _ARRAY: 3}  # the broker's JIT compiler makes the first calls expensive
_START_S = 30.0
_GRANIAN = ("-m", "granian", "benchmarks.gateway.same_intake:granian", "--interface", "rsgi", "--loop", "uvloop",
            "--http", "1", "--no-ws", "--workers", "1", "--backlog", "2048",
            "--http1-header-read-timeout", "10000", "--backpressure", "4096")  # fmt: skip
_AIOHTTP = ("-m", "benchmarks.gateway.same_intake")


@contextlib.contextmanager
def _same_intake(parts: Bench, name: str, *command: str) -> Iterator[Target]:
    """Run the intake behind another server, with the settings of our gateway."""
    folder = parts.folder / name
    folder.mkdir()
    process = GatewayProcess.over(folder, parts.broker.bootstrap_servers)
    pid, port = folder / "pid", process.settings.gateway.port
    path = os.pathsep.join((str(PROJECT_ROOT), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    environment = {**process.environment, "PYTHONPATH": path, "PID_FILE": str(pid)}
    port_option = ("--port", str(port)) if "granian" in command else ()
    with process.log.open("ab") as log:
        running = subprocess.Popen([str(peer_python()), *command, *port_option], env=environment, cwd=PROJECT_ROOT,
                                   stdout=log, stderr=log, start_new_session=True)  # fmt: skip
    try:
        wait_until(lambda: pid.exists() and listens(port), _START_S, f"{name} listens, see {process.log}")
        yield Target(name, f"{process.url}/topics/board/events", int(pid.read_text()), process.settings.gateway.token)
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def servers(parts: Bench, rounds: int, seconds: int) -> Report:
    """Measure all servers in turns; the last rows are medians of the ratios to the hand-written gateway's."""
    report = Report("servers")
    with (
        parts.gateway() as gateway,
        parts.peer() as peer,
        _same_intake(parts, "granian", *_GRANIAN) as granian,
        _same_intake(parts, "aiohttp", *_AIOHTTP) as aiohttp,
    ):
        targets = [peer, target(gateway), granian, aiohttp]
        for events in (1, _ARRAY):
            found: dict[str, list[Load]] = {one.name: [] for one in targets}
            for one in targets:
                load(one, _WARM_UP_S[events], events)
            for number in range(rounds):
                turn = number % len(targets)
                for one in targets[turn:] + targets[:turn]:
                    found[one.name].append(load(one, seconds, events))
                    report.add(row(f"{one.name} {number + 1}, {events} a call", found[one.name][-1], events))
            for name, loads in found.items():
                pairs = list(zip(loads, found[peer.name], strict=True))
                rate = median(ours.rate / theirs.rate for ours, theirs in pairs)
                cpu = median(ours.cpu_us / theirs.cpu_us for ours, theirs in pairs)
                print(f"{name}, {events} a call: {median(one.rate for one in loads) * events:,.0f} events/s, "
                      f"{median(one.cpu_us for one in loads) / events:.1f} µs of CPU an event; "
                      f"of the hand-written one's: rate {rate:.2f}, CPU {cpu:.2f}", flush=True)  # fmt: skip
    return report


def hostile(parts: Bench, seed: int) -> None:
    """Run rounds of hostile clients, the same ones against each server, and print what is broken in each."""
    for name, command in (("ours", ()), ("granian", _GRANIAN), ("aiohttp", _AIOHTTP)):
        with _paying(parts, name, command) as (paying, pid):
            paying.call(clients._WINDOW_S)
            before = resident_bytes(pid)
            for number, kinds in enumerate(plan(seed, 11), 1):
                found = clients._round(paying, kinds, f"{seed}-{number}")
                grown = resident_bytes(pid) - before
                if grown > clients._MEMORY:
                    found["memory"] = [f"grown by {grown >> 20} MiB"]
                print(f"{name} {number}: {', '.join(kinds) or 'nobody'}; {grown >> 20} MiB more; {found or 'holds'}")


@contextlib.contextmanager
def _paying(parts: Bench, name: str, command: tuple[str, ...]) -> Iterator[tuple[clients.Paying, int]]:
    with contextlib.ExitStack() as started:
        if command:
            found = started.enter_context(_same_intake(parts, name, *command))
        else:
            found = target(started.enter_context(parts.gateway()))
        settings = SimpleNamespace(gateway=SimpleNamespace(token=found.token))
        url, process = found.url.rsplit("/topics", 1)[0], SimpleNamespace(pid=found.pid)
        gateway: Any = SimpleNamespace(url=url, process=process, settings=settings)
        yield clients.Paying(gateway, SITE_PIPELINE.stream), found.pid


def main() -> int:
    """Measure and print; returns 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--hostile", type=int, metavar="SEED")
    arguments = parser.parse_args()
    require_wrk()
    with bench() as parts:
        if arguments.hostile is not None:
            hostile(parts, arguments.hostile)
            return 0
        servers(parts, arguments.rounds, arguments.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
