"""The keys with waiting records in a fallback store, as a counting filter of fixed size."""

from array import array

_SLOTS = 1 << 22  # 16 MiB for any backlog; with a million keys, one in five lookups is a false positive


class WaitingKeys:
    """Counts records by the hash of topic and key. `holds` has false positives, but no false negatives."""

    def __init__(self) -> None:
        self._counts = array("I", bytes(4 * _SLOTS))
        self._total = 0

    def add(self, topic: str, key: bytes | None) -> None:
        """Count one more waiting record of the key."""
        self._counts[hash((topic, key)) % _SLOTS] += 1
        self._total += 1

    def remove(self, topic: str, key: bytes | None) -> None:
        """Count one waiting record of the key less. It must have been added before."""
        self._counts[hash((topic, key)) % _SLOTS] -= 1
        self._total -= 1

    def holds(self, topic: str, key: bytes | None) -> bool:
        """True if a record of the key may be waiting."""
        return self._total > 0 and self._counts[hash((topic, key)) % _SLOTS] > 0
