"""Counts and latency histograms of the gateway since the start of the process.

They are plain integers, so the hot path takes no lock.
"""

from bisect import bisect_left
from collections import Counter as Tally
from itertools import accumulate

from prometheus_client.utils import floatToGoString

from include.gateway.auth.token_file import series_of
from include.runtime.metrics import Histogram

# upper bounds in seconds
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, float("inf"))


class Latencies:
    """Counts of requests by latency, for each call and client, those of the issuer together.

    Not thread-safe: the loop writes and reads it.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], tuple[list[int], list[float]]] = {}

    def observe(self, call: str, client: str, seconds: float) -> None:
        """Count a request that was answered after so many seconds."""
        key = call, series_of(client)
        found = self._of.get(key)
        if found is None:
            found = self._of[key] = ([0] * len(BOUNDS), [0.0])
        counts, total = found
        counts[bisect_left(BOUNDS, seconds)] += 1
        total[0] += seconds

    def histograms(self) -> dict[tuple[str, str], Histogram]:
        """Return the histograms by call and client."""
        bounds = [*map(floatToGoString, BOUNDS)]
        return {
            key: Histogram(list(zip(bounds, accumulate(counts), strict=True)), total[0])
            for key, (counts, total) in self._of.items()
        }


class Counters:
    """Counts since the start of the process."""

    def __init__(self) -> None:
        self.kept: Tally[tuple[str, str]] = Tally()  # topic, where
        self.answered_with_fault: Tally[int] = Tally()  # by status; one per event of an array, else one per request
        self.failures: Tally[tuple[str, str]] = Tally()  # kind, action
        self.latencies = Latencies()
        self.in_flight = 0
        self.replayed = 0
        self.set_aside = 0

    @property
    def acknowledged(self) -> int:
        """The number of records that Kafka has acknowledged."""
        return self.replayed + sum(count for (_, where), count in self.kept.items() if where == "kafka")

    def count_failure(self, kind: str, action: str) -> None:
        """Count one failure and the action that supervision decided on."""
        self.failures[kind, str(action)] += 1
