"""Which keys wait in a fallback store: a counting filter of fixed size."""

from array import array

_SLOTS = 1 << 22  # 16 MiB, whatever the backlog: the price is a false alarm, never a miss; 1 in 5 at a million keys


class WaitingKeys:
    """Counts records by the hash of topic and key. `holds` may be wrongly true, never wrongly false."""

    def __init__(self) -> None:
        self._counts = array("I", bytes(4 * _SLOTS))
        self._total = 0

    def add(self, topic: str, key: bytes | None) -> None:
        """One more record of that key waits."""
        self._counts[hash((topic, key)) % _SLOTS] += 1
        self._total += 1

    def remove(self, topic: str, key: bytes | None) -> None:
        """One record of that key, added before, waits no longer."""
        self._counts[hash((topic, key)) % _SLOTS] -= 1
        self._total -= 1

    def holds(self, topic: str, key: bytes | None) -> bool:
        """May a record of that key wait?"""
        return self._total > 0 and self._counts[hash((topic, key)) % _SLOTS] > 0
