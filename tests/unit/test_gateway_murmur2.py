"""The tests' own reference for the partitioner, against values published with Kafka's sources."""

import pytest

from tests.support.murmur2 import murmur2


@pytest.mark.parametrize(
    ("key", "signed"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536)],
)
def test_is_kafkas_hash(key, signed):
    assert murmur2(key) == signed % 2**32
