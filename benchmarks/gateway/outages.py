"""Benchmarks with the broker down. `outage`: rate and latency. `replay`: drain rate. `memory`: growth over time."""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.gateway.processes import Bench, target
from benchmarks.gateway.report import row
from benchmarks.gateway.wrk import Wrk, load, rss_bytes
from benchmarks.report import Goal, Report
from include.gateway.client import GatewayClient
from tests.servers import wait_until

_WARM_UP_S = 3
_OUTAGE_SHARE = 0.5
_OUTAGE_P99_MS = 100
_ARRAY = 500
_REPLAY_S = 30_000
_SAMPLE_S = 1.0
_FLAT_BYTES = 16 << 20
_DEADLINE_S = 600.0


def outage(bench: Bench, rounds: int, seconds: int) -> Report:
    """Measure runs before the outage, with the broker killed halfway, with the circuit open, and after the drain."""
    report = Report("outage")
    for number in range(1, rounds + 1):
        with bench.gateway() as gateway, gateway.client() as client:
            ours = target(gateway)
            load(ours, _WARM_UP_S)
            before = load(ours, seconds)
            report.add(row(f"{number} before", before))
            try:
                with Wrk(ours, seconds) as run:
                    time.sleep(seconds / 2)
                    bench.broker.kill()
                    across = run.result()
                report.add(row(f"{number} broker killed in it", across))
                _wait_for(client, "the circuit is open", lambda now: now["circuit"] == "open")
                during = load(ours, seconds)
                report.add(row(f"{number} circuit open", during))
                kept = client.fallback()["backlog"]
            finally:
                bench.broker.start()
            _wait_for(client, "the store is drained", lambda now: now["backlog"] == 0)
            after = load(ours, seconds)
            report.add(row(f"{number} after, {kept} drained", after))
            runs = (before, across, during, after)
            report.judge(
                Goal("events/s in the outage / before", during.rate / before.rate, at_least=_OUTAGE_SHARE),
                Goal("p99 in ms, circuit open", during.p99_ms, at_most=_OUTAGE_P99_MS),
                Goal("answers not 2xx, all runs", sum(one.bad_status for one in runs), at_most=0),
                Goal("broken calls, all runs", sum(one.broken + one.timeouts for one in runs), at_most=0),
            )
    return report


def replay(bench: Bench, rounds: int, records: int) -> Report:
    """Fill the store with the broker down, start the broker, and measure from the first record sent to the last."""
    report = Report("replay")
    for number in range(1, rounds + 1):
        with bench.gateway() as gateway, gateway.client() as client:
            ours = target(gateway)
            bench.broker.kill()
            with ThreadPoolExecutor(1) as watching:
                try:
                    load(ours, 1)  # opens the circuit
                    while client.fallback()["backlog"] < records:
                        load(ours, 2, _ARRAY)
                    held = client.fallback()["backlog"]
                    watch = watching.submit(_watch_replay, client)
                finally:
                    bench.broker.start()  # not in a thread: the broker gets a death signal when the thread ends
                sent, took_s = watch.result()
            report.add({"run": f"replay {number}", "records": held, "seconds": round(took_s, 2)})
            report.judge(Goal("records/s replayed", sent / took_s, at_least=_REPLAY_S))
            report.judge(Goal("records set aside", client.fallback()["setAside"], at_most=0))
    return report


def memory(bench: Bench, minutes: float, rate: int) -> Report:
    """Measure resident memory in a long outage at `rate` events/s: the last fifth of the time against the second."""
    report, samples = Report("memory"), []
    with bench.gateway() as gateway, gateway.client() as client:
        ours = target(gateway)
        bench.broker.kill()
        try:
            began = time.monotonic()
            with Wrk(ours, int(minutes * 60), rate=rate) as run:
                while run.is_running:
                    samples.append(rss_bytes(ours.pid))
                    if len(samples) % 30 == 1:
                        held, mib = client.fallback()["backlog"], samples[-1] >> 20
                        print(f"{time.monotonic() - began:6.0f} s  {mib:>5} MiB  {held:>9,} records", flush=True)
                    time.sleep(_SAMPLE_S)
                found = run.result()
            report.add(row("circuit open", found))
            held = client.fallback()["backlog"]
        finally:
            bench.broker.start()
    fifth = max(1, len(samples) // 5)
    early, late = statistics.median(samples[fifth : 2 * fifth]), statistics.median(samples[-fifth:])
    grown = {"run": "memory", "early MiB": early / 2**20, "late MiB": late / 2**20, "records held": held}
    report.rows.append(grown | {"samples MiB": [sample >> 20 for sample in samples]})
    print(grown)
    report.judge(
        Goal("growth in MiB, second fifth to last", (late - early) / 2**20, at_most=_FLAT_BYTES / 2**20),
        Goal("answers not 2xx", found.bad_status, at_most=0),
    )
    return report


def _watch_replay(client: GatewayClient) -> tuple[int, float]:
    """Return the records sent and the seconds, from the first poll that shows sent records until the store is empty."""
    _wait_for(client, "the replay begins", lambda now: now["replayed"] > 0)
    began, first = time.monotonic(), client.fallback()["replayed"]
    _wait_for(client, "the store is drained", lambda now: now["backlog"] == 0)
    return client.fallback()["replayed"] - first, time.monotonic() - began


def _wait_for(client: GatewayClient, what: str, is_so: Callable[[dict[str, Any]], bool]) -> None:
    wait_until(lambda: is_so(client.fallback()), _DEADLINE_S, what)
