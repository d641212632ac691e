"""The end of the time that a search may take."""

import time
from dataclasses import dataclass, field

from include.contracts.errors import Retryable


class SearchTooLong(Retryable):
    """The search did not end within its time."""


@dataclass(frozen=True)
class Deadline:
    """A time limit that begins now; None: no limit."""

    seconds: float | None = None
    _began: float = field(default_factory=time.monotonic)

    def left_s(self, at_most: float) -> float:
        """Return the seconds that are left, `at_most` of them. Raises SearchTooLong if none are."""
        if self.seconds is None:
            return at_most
        left = self.seconds - (time.monotonic() - self._began)
        if left <= 0:
            raise SearchTooLong(f"the search took longer than {self.seconds:.0f} s")
        return min(left, at_most)
