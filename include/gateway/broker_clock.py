"""The gateway's clock: the machine's, or the brokers' while the two differ.

Kafka goes by the clocks of its brokers (docs/adr/0055). The gateway's own clock gives the time of acceptance, which
each record carries, and by which the contract judges the record's version. So a clock that is wrong must not get there.
"""

import datetime as dt
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from include.contracts.clock import Clock, epoch_ms
from include.contracts.offsets import Partition

log = logging.getLogger(__name__)

MAX_SKEW_S = 5.0  # more than clocks that are kept by NTP differ
_LOOSE_MS = 1_000
_TOGETHER_MS = 60_000  # brokers are compared with each other by what they said within so long
_FRESH_MS = 10_000  # what a broker said counts alone for so long
_UNKNOWN = dt.timedelta(days=3653)  # a clock that no broker has confirmed may be behind by so much
_DRIFT = 500e-6  # NTP slews a clock by so much at most
_SOON = dt.timedelta(seconds=1)
_NONE = dt.timedelta()
# goes on while the machine is suspended, as CLOCK_MONOTONIC does on macOS
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class _Bounds(NamedTuple):
    """Bounds of what a broker's clock shows more than the monotonic one, and when they were seen, in ms."""

    least: float
    most: float
    seen_at: int

    def and_before(self, known: "_Bounds | None") -> "_Bounds":
        """Return the bounds with what was known before, unless a clock was set since. A slow answer loosens nothing."""
        if known is None:
            return self
        drift = (self.seen_at - known.seen_at) * _DRIFT
        least, most = max(self.least, known.least - drift), min(self.most, known.most + drift)
        return _Bounds(least, most, self.seen_at) if least <= most else self


class BrokerClock:
    """Implements `GatewayClock`. Compares the machine's clock with the brokers' whenever they acknowledge a record.

    If all brokers differ from the machine by more than five seconds, `now` returns the brokers' time, until one agrees
    again. A step of the machine's clock is noticed by a monotonic one, and changes nothing if brokers said what time it
    is. Otherwise a step ahead is followed, and after a step back the time goes on from where it was, until a broker has
    acknowledged a record.

    Not thread-safe: it belongs to the event loop.
    """

    def __init__(
        self, clock: Clock, elapsed_ms: Callable[[], int] = lambda: time.clock_gettime_ns(_ELAPSED) // 1_000_000
    ) -> None:
        """`elapsed_ms` is a monotonic clock that also counts while the machine is suspended."""
        self._clock = clock
        self._elapsed_ms = elapsed_ms
        self._bounds: dict[Partition, _Bounds] = {}  # by the partition that the broker leads
        self._is_compared = False
        self._correction = _NONE
        self._latest = clock.now()

    def now(self) -> dt.datetime:
        """See Clock."""
        now = self._clock.now() + self._correction
        if not self._latest <= now <= self._latest + _SOON:
            now = self._checked(now)
        self._latest = now
        return now

    def latest(self) -> dt.datetime:
        """See GatewayClock.

        That is `now` while brokers say the time. It is the machine's time if that is later and no broker has said
        anything for ten seconds, and ten years later if none ever has. Events that are refused cause no
        acknowledgement, so a gateway whose clock is behind would never notice if it went by that clock alone.
        """
        now, machine = self.now(), self._clock.now()
        if not self._is_compared:  # the newest records of the start are not enough: they may be of long ago
            return now + _UNKNOWN
        is_fresh = any(one.seen_at > self._elapsed_ms() - _FRESH_MS for one in self._bounds.values())
        return now if is_fresh else max(now, machine)

    def appended(self, partition: Partition, age_ms: int, appended_ms: int) -> None:
        """Compare: a broker appended a record that the producer was given `age_ms` ago, between then and now."""
        elapsed = self._elapsed_ms()
        least = appended_ms - elapsed
        bounds = _Bounds(least, least + age_ms, elapsed)
        self._bounds[partition] = bounds.and_before(self._bounds.get(partition))
        self._is_compared = True
        self._correct()

    def not_before(self, newest_ms: Mapping[Partition, int]) -> None:
        """Compare with the newest records of partitions, for a start: brokers appended them in the past."""
        elapsed, now_ms = self._elapsed_ms(), epoch_ms(self._clock.now())
        for partition, appended_ms in newest_ms.items():
            if appended_ms > now_ms:
                self._bounds[partition] = _Bounds(appended_ms - elapsed, math.inf, elapsed)
        self._correct()

    @property
    def ahead_s(self) -> float | None:
        """Seconds by which the machine's clock is ahead of the brokers', at least; negative behind, None if unknown.

        If the brokers' clocks differ, the one counts that differs most from the machine's.
        """
        furthest = self._furthest()
        return None if furthest is None else furthest[1] / 1000

    @property
    def problem(self) -> str | None:
        """A message with the difference and the remedy while the clocks differ, else None."""
        furthest = self._furthest()
        if furthest is None or abs(furthest[1]) <= MAX_SKEW_S * 1000:
            return None
        (topic, partition), ahead_s = furthest[0], furthest[1] / 1000
        differs = f"the clock of this machine is {abs(ahead_s):,.0f} s {'ahead of' if ahead_s > 0 else 'behind'}"
        remedy = "correct the clock that is wrong, see docs/runbooks/clock.md"
        if self._correction:
            return f"{differs} the brokers': events are accepted with the brokers' time; {remedy}"
        return f"{differs} that of the broker that leads {topic}/{partition}, and agrees with others; {remedy}"

    def _checked(self, now: dt.datetime) -> dt.datetime:
        """Return the time after a step of the machine's clock, or after a second without a call."""
        if self._bounds:
            self._correct()
        else:
            if now < self._latest:
                log.warning("the clock of this machine was set back by %s", self._latest - now)
            self._correction = max(_NONE, self._latest - self._clock.now())
        return self._clock.now() + self._correction

    def _correct(self) -> None:
        correction = dt.timedelta(milliseconds=-self._difference_ms())
        if bool(correction) != bool(self._correction):
            log.warning("%s", self.problem or "the clock of this machine agrees with the brokers' again")
        if correction != self._correction:
            self._correction = correction
            self._latest = self._clock.now() + correction

    def _furthest(self) -> tuple[Partition, float] | None:
        return max(self._ahead_ms().items(), key=lambda each: abs(each[1]), default=None)

    def _ahead_ms(self) -> dict[Partition, float]:
        """Return the milliseconds by which the machine is ahead of each broker that said its time lately."""
        here = epoch_ms(self._clock.now()) - self._elapsed_ms()
        return {at: max(here - one.most, 0) or min(here - one.least, 0) for at, one in self._lately().items()}

    def _lately(self) -> dict[Partition, _Bounds]:
        newest = max((one.seen_at for one in self._bounds.values()), default=0)
        return {at: one for at, one in self._bounds.items() if one.seen_at > newest - _TOGETHER_MS}

    def _difference_ms(self) -> float:
        """Return the milliseconds by which the machine is ahead of all brokers; 0 if one agrees with it."""
        by_partition, bounds = self._ahead_ms(), self._lately()
        closest = min(by_partition.values(), key=abs, default=0)
        if abs(closest) <= MAX_SKEW_S * 1000:
            return 0
        # a slow answer says that the clocks differ, but hardly by how much
        tightest = min(one.most - one.least for one in bounds.values())
        exact = [at for at, one in bounds.items() if one.most - one.least <= tightest + _LOOSE_MS]
        return min((by_partition[at] for at in exact), key=abs)
