"""Prometheus' text format, version 0.0.4: `# HELP`, `# TYPE`, and a line for each sample. Pure."""

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
    """What was read, metric by metric: the format wants the samples of one metric together."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._lines: dict[Metric, list[str]] = {metric: [] for metric in metrics}

    def add(self, metric: Metric, value: float, *labels: str | int) -> None:
        """Labels in the metric's order; fewer of them, or none, stand for a sum over the rest."""
        shown = ",".join(
            f'{name}="{str(label).translate(_ESCAPES)}"' for name, label in zip(metric.labels, labels, strict=False)
        )
        self._lines[metric].append(f"{metric.name}{{{shown}}} {value}" if shown else f"{metric.name} {value}")

    def append(self, metric: Metric, line: str) -> None:
        """A line that somebody else has written, because there are many of its kind."""
        self._lines[metric].append(line)

    def encode(self) -> bytes:
        parts = []
        for metric, lines in self._lines.items():
            if lines:
                about = metric.about.replace("\\", r"\\").replace("\n", r"\n")
                parts += [f"# HELP {metric.name} {about}", f"# TYPE {metric.name} {metric.kind}", *lines]
        return ("\n".join(parts) + "\n").encode()
