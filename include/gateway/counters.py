"""Counts of the gateway since the start of the process. They are plain integers, so the hot path takes no lock."""

from collections import Counter as Tally

from include.gateway.latencies import Latencies


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

    def count_failure(self, kind: str, action: str) -> None:
        """Count one failure and the action that supervision decided on."""
        self.failures[kind, str(action)] += 1
