"""The partition of a key, against values published with Kafka's sources."""

import pytest

from include.contracts.offsets import known_partition, murmur2


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_is_kafkas_hash(key, signed):
    assert murmur2(key) == signed % 2**32


def test_partition_is_unknown_without_topics_or_a_key():
    assert known_partition({}, "board", b"21") is None
    partitions = {"board": 8, "empty": 0}
    assert known_partition(partitions, "board", None) is None
    assert known_partition(partitions, "board", b"21") == ("board", ((-973932308) & 0x7FFFFFFF) % 8)


def test_partition_of_a_missing_topic_is_minus_one():
    partitions = {"board": 8, "empty": 0}
    found = [known_partition(partitions, topic, b"21") for topic in ("missing", "empty")]
    assert found == [
        ("missing", -1),
        ("empty", -1),
    ]
