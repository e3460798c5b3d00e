"""The fast builder makes the bytes of the general one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.keyed_batch import build_keyed_batch
from kbroker.protocol.record_batch import validate_batch
from kbroker.protocol.records import Record, build_batch

Pairs = list[tuple[bytes, bytes | None]]

sizes = st.sampled_from([0, 1, 60, 63, 64, 500, 511, 512, 8191, 8192, 70_000])
values = sizes.map(bytes) | st.binary(max_size=40)


@given(st.lists(st.tuples(values, st.none() | values), min_size=1, max_size=8), st.integers(0, 1 << 50))
def test_it_equals_the_general_builder(pairs: Pairs, timestamp: int) -> None:
    records = [Record(index, timestamp, key, value) for index, (key, value) in enumerate(pairs)]
    batch = build_keyed_batch(pairs, timestamp)
    assert batch == build_batch(records)
    validate_batch(batch)


@pytest.mark.parametrize("count", [1, 64, 511, 512, 513, 9000])
def test_it_counts_as_far_as_it_is_asked_to(count: int) -> None:
    pairs: Pairs = [(b"key", b"value")] * count
    assert build_keyed_batch(pairs, 5) == build_batch([Record(index, 5, *pair) for index, pair in enumerate(pairs)])
