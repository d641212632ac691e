"""The partition of a key: librdkafka's `murmur2_random`, the Java clients' default, computed without sending."""

from collections.abc import Mapping

from include.gateway.ports import Partition

_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x5BD1E995


class Partitioner:
    """Maps keys to partitions, by the partition counts of the last metadata."""

    def __init__(self) -> None:
        self._partitions: Mapping[str, int] = {}

    def learn(self, partitions: Mapping[str, int]) -> None:
        """Replace the counts by those of a broker's metadata: all topics with their number of partitions."""
        self._partitions = partitions

    def place(self, topic: str, key: bytes | None) -> Partition | None:
        """See ports.Producer.partition_of. Takes some microseconds, so it is called only while a partition fails."""
        if key is None or not self._partitions:
            return None
        partitions = self._partitions.get(topic, 0)
        return topic, partition_of(key, partitions) if partitions > 0 else -1


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
