"""The partition of a key, against values published with Kafka's sources."""

import pytest

from include.kafka.partitioner import murmur2, place


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


def test_knows_no_place_before_it_has_heard_of_the_topics_nor_without_a_key():
    assert place({}, "board", b"21") is None
    partitions = {"board": 8, "empty": 0}
    assert place(partitions, "board", None) is None
    assert place(partitions, "board", b"21") == ("board", ((-973932308) & 0x7FFFFFFF) % 8)


def test_topic_that_is_not_there_is_a_place_of_its_own():
    partitions = {"board": 8, "empty": 0}
    assert [place(partitions, topic, b"21") for topic in ("missing", "empty")] == [("missing", -1), ("empty", -1)]
