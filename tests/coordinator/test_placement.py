"""Groups lie where Kafka's hash puts them."""

from __future__ import annotations

import pytest

from kbroker.coordinator.placement import java_hash, partition_for


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("Aa", 2112),
        ("BB", 2112),
        ("polygenelubricants", -(1 << 31)),
        ("\N{GRINNING FACE}", 1772899),
    ],
)
def test_the_hash_is_java_s(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_a_negative_hash_is_made_positive_as_kafka_does() -> None:
    negative = next(text for number in range(1000) if java_hash(text := f"group-{number}") < 0)
    assert partition_for(negative, 50) == -java_hash(negative) % 50


def test_the_smallest_hash_goes_to_partition_0() -> None:
    assert partition_for("polygenelubricants", 50) == 0
