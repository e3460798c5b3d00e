"""Keys go where every other client puts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from kbroker.client.partitioning import murmur2, partition_of_key


@pytest.mark.parametrize(
    ("key", "expected"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
def test_the_hash_is_kafkas(key: bytes, expected: int) -> None:
    """Numbers that Kafka's own tests expect of its hash, signed as Java has them."""
    assert murmur2(key) == expected % (1 << 32)


@given(st.binary(max_size=40))
def test_the_hash_is_that_of_kafka_python(key: bytes) -> None:
    assert murmur2(key) & 0x7FFFFFFF == kafka_python_murmur2(key) & 0x7FFFFFFF


@given(st.binary(max_size=40), st.integers(1, 1000))
def test_a_partition_is_always_one_of_the_topics(key: bytes, count: int) -> None:
    assert 0 <= partition_of_key(key, count) < count
