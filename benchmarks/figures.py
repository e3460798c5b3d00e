"""Figures of one run of a load, and the median of several runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields

__all__ = ["Figures", "figures_of", "median_figures", "percentile_ms"]


@dataclass(frozen=True, slots=True)
class Figures:
    requests_s: float
    messages_s: float
    mb_s: float
    cpu_us_request: float
    p50_ms: float
    p99_ms: float

    @property
    def seconds(self) -> float:
        """Returns the time of one request, for rows that are a single long request."""
        return 1 / self.requests_s


def figures_of(
    *, requests: int, messages: int, size_bytes: int, seconds: float, cpu_seconds: float, latencies: Sequence[float]
) -> Figures:
    return Figures(
        requests_s=requests / seconds,
        messages_s=messages / seconds,
        mb_s=size_bytes / seconds / 1e6,
        cpu_us_request=cpu_seconds / requests * 1e6,
        p50_ms=percentile_ms(latencies, 0.5),
        p99_ms=percentile_ms(latencies, 0.99),
    )


def percentile_ms(latencies: Sequence[float], share: float) -> float:
    ordered = sorted(latencies)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1e3


def median_figures(rounds: Sequence[Figures]) -> Figures:
    """Returns the median of each field, without the first round, which warms the broker."""
    counted = rounds[1:] or rounds
    return Figures(
        **{field.name: statistics.median(getattr(run, field.name) for run in counted) for field in fields(Figures)}
    )
