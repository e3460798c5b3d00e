"""Histogram of times in milliseconds with fixed buckets. Hot path: a value costs some comparisons and two additions."""

from __future__ import annotations

from typing import Final

__all__ = ["BUCKETS_MS", "Histogram", "bucket_of"]

BUCKETS_MS: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0, 30000.0)
"""Upper bounds of the buckets. One more bucket has no bound."""

_FIRST_SEARCHED: Final = 6


def bucket_of(milliseconds: float) -> int:
    """Returns the number of the bucket. The short times are written out: compiled comparisons cost next to nothing."""
    if milliseconds <= 0.5:
        return 0 if milliseconds <= 0.1 else 1 if milliseconds <= 0.25 else 2
    if milliseconds <= 5.0:
        return 3 if milliseconds <= 1.0 else 4 if milliseconds <= 2.5 else 5
    bucket = _FIRST_SEARCHED
    for bound in BUCKETS_MS[_FIRST_SEARCHED:]:
        if milliseconds <= bound:
            return bucket
        bucket += 1
    return bucket


class Histogram:
    """Number of values in each bucket, and the sum of all values."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (len(BUCKETS_MS) + 1)
        self.sum_ms: float = 0.0

    def add(self, bucket: int, count: int, milliseconds: float) -> None:
        """Adds the same value `count` times. `bucket` is its bucket."""
        counts = self.counts
        counts[bucket] = counts[bucket] + count  # `+=` would add objects, not integers, when it is compiled
        self.sum_ms += count * milliseconds

    def observe(self, milliseconds: float) -> None:
        self.add(bucket_of(milliseconds), 1, milliseconds)

    def include(self, other: Histogram) -> None:
        self.counts = [ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum_ms += other.sum_ms

    def exclude(self, other: Histogram) -> None:
        """Removes the values of `other`, which must all have been added here."""
        self.counts = [ours - theirs for ours, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum_ms -= other.sum_ms

    def with_zeros(self, count: int) -> Histogram:
        """Returns a copy that has `count` values in all: the missing ones are 0."""
        copy = Histogram()
        copy.include(self)
        copy.counts[0] += count - sum(self.counts)
        return copy
