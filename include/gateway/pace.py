"""How fast a replay may go: never faster than its rate, and half of the time at most beside live events. Pure."""

from dataclasses import dataclass

_ALONE = 4000
_BESIDE_LIVE_EVENTS = 500  # what is sent in one go delays who comes meanwhile
_LONGEST_PAUSE_S = 0.25


@dataclass(frozen=True)
class Pace:
    """`max_rate` in records a second."""

    max_rate: float

    def batch(self, is_live: bool) -> int:
        """How many records to take at once."""
        return max(1, min(_BESIDE_LIVE_EVENTS if is_live else _ALONE, int(self.max_rate * _LONGEST_PAUSE_S)))

    def pause_s(self, records: int, took_s: float, is_live: bool) -> float:
        """How long to rest after a batch of so many records that took so long."""
        return max(0.0, records / self.max_rate - took_s, took_s if is_live else 0.0)
