"""Rate over a sliding window of samples, computed as Kafka's `Rate` does. Pure: the caller passes the time."""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["RateWindow"]

_SHORTEST_SECONDS: Final = 0.001


class RateWindow:
    """Amounts in samples of equal length.

    `may_burst`: a first amount counts as if it was spread over all samples but one. Else, as in Kafka's `SimpleRate`,
    over the time since the first sample, at least over the length of one.
    """

    __slots__ = ("_count", "_length", "_may_burst", "_samples")

    def __init__(self, count: int, length_seconds: float, *, may_burst: bool = True) -> None:
        self._count = count
        self._may_burst = may_burst
        self._length = length_seconds
        self._samples: deque[list[float]] = deque()  # [begin, amount]

    def record(self, amount: float, now: float) -> None:
        samples = self._samples
        if not samples or now - samples[-1][0] >= self._length:
            samples.append([now, 0.0])
        samples[-1][1] += amount
        self._forget(now)

    def excess_ms(self, per_second: float, now: float) -> int:
        """Returns for how many ms nothing may be recorded until the rate is down to the limit; 0 if it is below."""
        self._forget(now)
        if not self._samples:
            return 0
        elapsed = now - self._samples[0][0]
        if self._may_burst:
            full_windows = int(elapsed / self._length)
            elapsed = max(elapsed + max(self._count - 1 - full_windows, 0) * self._length, _SHORTEST_SECONDS)
        else:
            elapsed = max(elapsed, self._length)
        rate = sum(amount for _, amount in self._samples) / elapsed
        return int(1000 * elapsed * (rate - per_second) / per_second) if rate > per_second else 0

    def is_idle(self, now: float) -> bool:
        self._forget(now)
        return not self._samples

    def _forget(self, now: float) -> None:
        expiry = now - self._count * self._length
        while self._samples and self._samples[0][0] < expiry:
            self._samples.popleft()
