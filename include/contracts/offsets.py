"""Partitions of topics, the partition of a key, offsets, and ranges of offsets.

The partition of a key is librdkafka's `murmur2_random`, the Java clients' default, computed without sending.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Partition = tuple[str, int]  # topic, number of the partition; -1 for a topic that does not exist yet
Offsets = dict[int, int]  # partition → offset


@dataclass(frozen=True)
class OffsetRange:
    """`start <= offset < end` in each partition of a topic. A partition that `start` does not name begins at 0."""

    start: Offsets
    end: Offsets

    @property
    def count(self) -> int:
        """Number of offsets. There may be fewer records, since transaction markers take offsets too."""
        return sum(end - self.start.get(partition, 0) for partition, end in self.end.items())

    def holds(self, partition: int, offset: int) -> bool:
        """True if the offset is in the range."""
        return self.start.get(partition, 0) <= offset < self.end.get(partition, 0)

    @property
    def at(self) -> dict[str, list[int]]:
        """The range in its JSON form: partition → [start, end]."""
        return {str(partition): [self.start.get(partition, 0), end] for partition, end in self.end.items()}

    def is_at(self, at: dict[str, list[int]]) -> bool:
        """True if this range starts where the range `at`, in JSON form, starts."""
        return {p: start for p, (start, _) in self.at.items()} == {p: start for p, (start, _) in at.items()}

    def resumed(self, at: dict[str, list[int]]) -> "OffsetRange":
        """Return the range with this one's start and the ends of `at`, in JSON form.

        A topic grows in each partition, so `cut` of a grown range would give other first records.
        """
        return OffsetRange(self.start, {int(partition): end for partition, (_, end) in at.items()})

    def cut(self, count: int) -> "tuple[OffsetRange, OffsetRange]":
        """Split the range into its first `count` offsets, partition by partition, and the rest."""
        middle: Offsets = {}
        for partition, end in sorted(self.end.items()):
            begin = self.start.get(partition, 0)
            middle[partition] = begin + min(end - begin, count)
            count -= middle[partition] - begin
        return OffsetRange(self.start, middle), OffsetRange(middle, self.end)


_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x5BD1E995


def known_partition(partitions: Mapping[str, int], topic: str, key: bytes | None) -> Partition | None:
    """Return the partition of a key by the number of partitions of each topic; None without a key or any topics.

    The partition of a topic that `partitions` lacks is -1. Takes some microseconds.
    """
    if key is None or not partitions:
        return None
    count = partitions.get(topic, 0)
    return topic, partition_of(key, count) if count > 0 else -1


def murmur2(data: bytes) -> int:
    """Return Kafka's hash of a key, unsigned."""
    value = (0x9747B28C ^ len(data)) & _MASK
    whole = len(data) & ~3
    for index in range(0, whole, 4):
        part = int.from_bytes(data[index : index + 4], "little") * _MULTIPLIER & _MASK
        part = (part ^ part >> 24) * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ part
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
