"""The partition of a key, against values published with Kafka's sources."""

import pytest

from include.adapters.kafka.partitioner import Partitioner, murmur2


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
    partitioner = Partitioner()
    assert partitioner.place("board", b"21") is None
    partitioner.learn({"board": 8, "empty": 0})
    assert partitioner.place("board", None) is None
    assert partitioner.place("board", b"21") == ("board", ((-973932308) & 0x7FFFFFFF) % 8)


def test_topic_that_is_not_there_is_a_place_of_its_own():
    partitioner = Partitioner()
    partitioner.learn({"board": 8, "empty": 0})
    assert [partitioner.place(topic, b"21") for topic in ("missing", "empty")] == [("missing", -1), ("empty", -1)]
