"""Where Kafka's Java clients put a key: the reference for the partitioner."""

_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key, unsigned."""
    multiplier = 0x5BD1E995
    value = (0x9747B28C ^ len(data)) & _MASK
    whole = len(data) // 4 * 4
    for index in range(0, whole, 4):
        part = int.from_bytes(data[index : index + 4], "little") * multiplier & _MASK
        part = (part ^ part >> 24) * multiplier & _MASK
        value = (value * multiplier & _MASK) ^ part
    tail = data[whole:]
    if tail:
        value = (value ^ int.from_bytes(tail, "little")) * multiplier & _MASK
    value = (value ^ value >> 13) * multiplier & _MASK
    return value ^ value >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
