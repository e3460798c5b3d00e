"""Buckets, sums and copies of histograms."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.histogram import BUCKETS_MS, Histogram, bucket_of


@given(st.floats(min_value=-1, max_value=1e9) | st.sampled_from(BUCKETS_MS))
def test_a_bucket_ends_with_its_bound(milliseconds: float) -> None:
    assert bucket_of(milliseconds) == bisect_left(BUCKETS_MS, milliseconds)


def test_values_are_counted_and_summed() -> None:
    histogram = Histogram()
    histogram.observe(0.05)
    histogram.add(bucket_of(3.0), 4, 3.0)
    histogram.observe(40_000)
    assert histogram.counts == [1, 0, 0, 0, 0, 4] + [0] * 9 + [1]
    assert histogram.sum_ms == pytest.approx(40_012.05)


def test_zeros_are_added_to_a_copy() -> None:
    histogram = Histogram()
    histogram.observe(7)
    assert histogram.with_zeros(5).counts[:7] == [4, 0, 0, 0, 0, 0, 1]
    assert histogram.with_zeros(5).sum_ms == 7
    assert sum(histogram.counts) == 1
