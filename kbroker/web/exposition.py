"""Prometheus text format, version 0.0.4: `# HELP`, `# TYPE`, and one line per sample. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

__all__ = ["CONTENT_TYPE", "Metric", "Samples", "counter", "gauge"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

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


class Samples:
    """Samples grouped by metric, as the format requires."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._lines: dict[Metric, list[str]] = {metric: [] for metric in metrics}

    def add(self, metric: Metric, value: float, *labels: str | int) -> None:
        """Adds a sample. Labels are in the metric's order; missing labels mean the total over their values."""
        shown = ",".join(
            f'{name}="{str(label).translate(_ESCAPES)}"' for name, label in zip(metric.labels, labels, strict=False)
        )
        self._lines[metric].append(f"{metric.name}{{{shown}}} {value}" if shown else f"{metric.name} {value}")

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
