"""Rate limit of a replay: at most its maximum rate, and at most half of the time while live events arrive. Pure."""

from dataclasses import dataclass

_BATCH_ALONE = 4000
_BATCH_BESIDE_LIVE_EVENTS = 500  # smaller, because a batch delays events that arrive meanwhile
_MAX_PAUSE_S = 0.25


@dataclass(frozen=True)
class Pace:
    """The limit. `max_rate` is in records per second."""

    max_rate: float

    def batch(self, is_live: bool) -> int:
        """Return the size of the next batch, in records."""
        largest = _BATCH_BESIDE_LIVE_EVENTS if is_live else _BATCH_ALONE
        return max(1, min(largest, int(self.max_rate * _MAX_PAUSE_S)))

    def pause_s(self, records: int, took_s: float, is_live: bool) -> float:
        """Return the seconds to pause after a batch of `records` that took `took_s`."""
        return max(0.0, records / self.max_rate - took_s, took_s if is_live else 0.0)
