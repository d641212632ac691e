"""The partition of a key: librdkafka's `murmur2_random`, the Java clients' default, computed without sending."""

from collections.abc import Mapping

from include.contracts.offsets import Partition

_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x5BD1E995


def place(partitions: Mapping[str, int], topic: str, key: bytes | None) -> Partition | None:
    """See ports.Producer.partition_of; `partitions` has the counts of all topics, as the last metadata had them.

    Takes some microseconds, so it is called only while a partition fails.
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
