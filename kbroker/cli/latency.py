"""Distribution of latencies in buckets that grow by 2 %, so that its size does not depend on the number of records."""

from __future__ import annotations

import math
from typing import Final

__all__ = ["PERCENTILES", "Latencies"]

PERCENTILES: Final = (50.0, 95.0, 99.0, 99.9)

_GROWTH: Final = math.log(1.02)
_SMALLEST_SECONDS: Final = 1e-6


class Latencies:
    def __init__(self) -> None:
        self.count = 0
        self.max_s = 0.0
        self._sum_s = 0.0
        self._buckets: dict[int, int] = {}

    def add(self, seconds: float, count: int = 1) -> None:
        """Adds `count` equal latencies."""
        bucket = int(math.log(max(seconds, _SMALLEST_SECONDS) / _SMALLEST_SECONDS) / _GROWTH)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += count
        self._sum_s += seconds * count
        self.max_s = max(self.max_s, seconds)

    @property
    def mean_s(self) -> float:
        return self._sum_s / self.count if self.count else 0.0

    def percentile_s(self, percent: float) -> float:
        """Returns the upper bound of the bucket that holds the percentile, at most the maximum; 0 without latencies."""
        rank = math.ceil(self.count * percent / 100)
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                return min(_SMALLEST_SECONDS * math.exp((bucket + 1) * _GROWTH), self.max_s)
        return 0.0
