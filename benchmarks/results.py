"""Results of a run: rows that compare two brokers, and measures of one broker with a limit.

A value that misses its limit is marked only; a wrong response makes a result a failure.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.figures import Figures

__all__ = ["Comparison", "Measure", "Results", "to_json"]

FIELDS = {
    "req/s": "requests_s",
    "msg/s": "messages_s",
    "MB/s": "mb_s",
    "s": "seconds",
    "ms p50": "p50_ms",
    "ms p99": "p99_ms",
}
LESS_IS_BETTER = frozenset({"s", "ms p50", "ms p99"})


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row on the subject and its rival, with the lowest ratio that is good enough.

    The ratio compares speeds: for times, it is the rival's time divided by the subject's.
    """

    name: str
    unit: str
    subject: Figures | None
    rival: Figures | None
    floor: float | None = None
    cpu_limit: float | None = None
    failure: str | None = None
    at_least: float | None = None
    """Lowest figure of the subject that is good enough, independent of the rival."""
    note: str = ""

    @property
    def subject_value(self) -> float | None:
        return getattr(self.subject, FIELDS[self.unit]) if self.subject else None

    @property
    def rival_value(self) -> float | None:
        return getattr(self.rival, FIELDS[self.unit]) if self.rival else None

    @property
    def ratio(self) -> float | None:
        if self.unit in LESS_IS_BETTER:
            return _ratio(self.rival_value, self.subject_value)
        return _ratio(self.subject_value, self.rival_value)

    @property
    def cpu_ratio(self) -> float | None:
        if self.subject is None or self.rival is None:
            return None
        return _ratio(self.subject.cpu_us_request or None, self.rival.cpu_us_request)

    @property
    def is_below_floor(self) -> bool:
        return self.floor is not None and self.ratio is not None and self.ratio < self.floor

    @property
    def is_below_minimum(self) -> bool:
        return self.at_least is not None and self.subject_value is not None and self.subject_value < self.at_least

    @property
    def is_over_cpu_limit(self) -> bool:
        return self.cpu_limit is not None and self.cpu_ratio is not None and self.cpu_ratio > self.cpu_limit


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of one broker, with its upper limit."""

    name: str
    value: float | None
    unit: str
    limit: float | None = None
    note: str = ""
    failure: str | None = None

    @property
    def is_over_limit(self) -> bool:
        return self.limit is not None and self.value is not None and self.value > self.limit


@dataclass(slots=True)
class Results:
    comparisons: list[Comparison] = field(default_factory=list)
    measures: list[Measure] = field(default_factory=list)

    @property
    def failures(self) -> Sequence[Comparison | Measure]:
        results: list[Comparison | Measure] = [*self.comparisons, *self.measures]
        return [result for result in results if result.failure]


def to_json(results: Results) -> str:
    rows = [
        {**asdict(row), "ratio": row.ratio, "cpu_ratio": row.cpu_ratio, "is_below_floor": row.is_below_floor}
        for row in results.comparisons
    ]
    measures = [{**asdict(measure), "is_over_limit": measure.is_over_limit} for measure in results.measures]
    return json.dumps({"machine": _machine(), "comparisons": rows, "measures": measures}, indent=2) + "\n"


def _machine() -> dict[str, str | int | None]:
    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours is not None and theirs else None
