"""Prometheus text format, version 0.0.4: `# HELP`, `# TYPE`, and one line per sample. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from kbroker.histogram import BUCKETS_MS, Histogram

__all__ = ["CONTENT_TYPE", "Metric", "Samples", "counter", "gauge", "histogram"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_BOUNDS: Final = (*map(str, BUCKETS_MS), "+Inf")
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Metric(NamedTuple):
    name: str
    kind: str
    about: str
    labels: tuple[str, ...] = ()


def counter(name: str, about: str, *labels: str) -> Metric:
    return Metric(name, "counter", about, labels)


def gauge(name: str, about: str, *labels: str) -> Metric:
    return Metric(name, "gauge", about, labels)


def histogram(name: str, about: str, *labels: str) -> Metric:
    return Metric(name, "histogram", about, labels)


class Samples:
    """Samples grouped by metric, as the format requires."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._lines: dict[Metric, list[str]] = {metric: [] for metric in metrics}

    def add(self, metric: Metric, value: float, *labels: str | int) -> None:
        """Adds a sample. Labels are in the metric's order; missing labels mean the total over their values."""
        shown = _shown(metric, labels)
        self._lines[metric].append(f"{metric.name}{{{shown}}} {value}" if shown else f"{metric.name} {value}")

    def add_histogram(self, metric: Metric, values: Histogram, *labels: str | int) -> None:
        """Adds the cumulative buckets, the sum and the count of a histogram."""
        name, shown, lines = metric.name, _shown(metric, labels), self._lines[metric]
        before, braces = (f"{shown},", f"{{{shown}}}") if shown else ("", "")
        total = 0
        for bound, count in zip(_BOUNDS, values.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{{before}le="{bound}"}} {total}')
        lines += (f"{name}_sum{braces} {round(values.sum_ms, 3)}", f"{name}_count{braces} {total}")

    def append(self, metric: Metric, line: str) -> None:
        """Adds a formatted line; faster than `add` for metrics with a sample per partition."""
        self._lines[metric].append(line)

    def encode(self) -> bytes:
        parts = []
        for metric, lines in self._lines.items():
            if lines:
                about = metric.about.replace("\\", r"\\").replace("\n", r"\n")
                parts += [f"# HELP {metric.name} {about}", f"# TYPE {metric.name} {metric.kind}", *lines]
        return ("\n".join(parts) + "\n").encode()


def _shown(metric: Metric, labels: tuple[str | int, ...]) -> str:
    return ",".join(
        f'{name}="{str(label).translate(_ESCAPES)}"' for name, label in zip(metric.labels, labels, strict=False)
    )
