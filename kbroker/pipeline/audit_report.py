"""Report of an audit: compares the counts of hops by topic and window, as a table and as an SVG. Knows no Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final, NamedTuple

from kbroker.pipeline.audit_counts import PRODUCER, WindowCounts

__all__ = ["AuditReport", "AuditedWindow", "Difference", "compare_counts", "report_svg", "report_table"]

COLOURS: Final = ("#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#17becf")
FAULT: Final = "#d62728"
WIDTH: Final = 800
PANEL: Final = 160
MARGIN: Final = 60


class Difference(NamedTuple):
    """Hop whose count differs from the count of the hop before it."""

    hop: str
    previous: str
    excess: int
    """Below 0: lost records. Above 0: duplicates."""

    def __str__(self) -> str:
        kind = "lost" if self.excess < 0 else "duplicate"
        plural = "s" if self.excess > 1 else ""
        return f"{self.hop}: {abs(self.excess)} {kind}{plural} after {self.previous}"


class AuditedWindow(NamedTuple):
    topic: str
    start_ms: int
    counts: Mapping[str, int]
    differences: tuple[Difference, ...]
    is_settled: bool
    """Whether the window is judged. Records of an open window may still be on their way."""

    @property
    def verdict(self) -> str:
        if not self.is_settled:
            return "open"
        return "; ".join(map(str, self.differences)) or "ok"


class AuditReport(NamedTuple):
    hops: tuple[str, ...]
    windows: tuple[AuditedWindow, ...]
    window_ms: int

    @property
    def faults(self) -> tuple[AuditedWindow, ...]:
        return tuple(window for window in self.windows if window.is_settled and window.differences)


def compare_counts(
    counts: WindowCounts, previous: Mapping[str, str], *, window_ms: int, settled_before_ms: int
) -> AuditReport:
    """Compares each hop with the hop before it. `previous`: hop -> the hop before it, in the order of the table.

    The counts of producers are compared only in topics for which a producer publishes counts.
    """
    hops = (PRODUCER, *(hop for hop in previous if hop != PRODUCER))
    counted_by_producers = {topic for (topic, _), by_hop in counts.items() if PRODUCER in by_hop}
    windows = []
    for (topic, start), by_hop in sorted(counts.items()):
        differences = tuple(
            Difference(hop, before, by_hop.get(hop, 0) - by_hop.get(before, 0))
            for hop, before in previous.items()
            if (before != PRODUCER or topic in counted_by_producers) and by_hop.get(hop, 0) != by_hop.get(before, 0)
        )
        is_settled = start + window_ms <= settled_before_ms
        windows.append(AuditedWindow(topic, start, by_hop, differences if is_settled else (), is_settled))
    return AuditReport(hops, tuple(windows), window_ms)


def report_table(report: AuditReport) -> str:
    """Returns the report as text: one line for each topic and window."""
    rows = [["topic", "window", *report.hops, "result"]]
    rows += [
        [
            window.topic,
            _time(window.start_ms),
            *(str(window.counts.get(hop, "-")) for hop in report.hops),
            window.verdict,
        ]
        for window in report.windows
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    numeric = range(2, len(rows[0]) - 1)
    lines = [
        "  ".join(
            cell.rjust(widths[column]) if column in numeric else cell.ljust(widths[column])
            for column, cell in enumerate(row)
        ).rstrip()
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def _time(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def report_svg(report: AuditReport) -> str:
    """Returns a chart of counts over time: one panel for each topic, one line for each hop, windows with faults red."""
    topics = list(dict.fromkeys(window.topic for window in report.windows))
    height = PANEL * max(1, len(topics)) + MARGIN
    size = f'viewBox="0 0 {WIDTH} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for index, hop in enumerate(report.hops):
        left = MARGIN + 120 * index
        parts.append(f'<rect x="{left}" y="12" width="12" height="12" fill="{_colour(index)}"/>')
        parts.append(f'<text x="{left + 17}" y="22">{escape(hop)}</text>')
    for number, topic in enumerate(topics):
        windows = [window for window in report.windows if window.topic == topic]
        parts += _panel(report, topic, windows, MARGIN + PANEL * number - 10)
    return "\n".join([*parts, "</svg>", ""])


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _panel(report: AuditReport, topic: str, windows: Sequence[AuditedWindow], top: int) -> list[str]:
    first, last = windows[0].start_ms, windows[-1].start_ms
    highest = max([1, *(count for window in windows for count in window.counts.values())])
    span = max(1, last - first)

    def x(start_ms: int) -> float:
        return MARGIN + (WIDTH - 2 * MARGIN) * (start_ms - first) / span

    def y(count: int) -> float:
        return top + (PANEL - 40) * (1 - count / highest) + 20

    bottom = y(0)
    parts = [
        f'<text x="{MARGIN}" y="{top + 12}" font-weight="bold">{escape(topic)}</text>',
        f'<line x1="{MARGIN}" y1="{bottom}" x2="{WIDTH - MARGIN}" y2="{bottom}" stroke="#999"/>',
        f'<text x="{MARGIN - 6}" y="{y(highest) + 4:.1f}" text-anchor="end">{highest}</text>',
        f'<text x="{MARGIN}" y="{bottom + 14:.1f}">{_time(first)}</text>',
        f'<text x="{WIDTH - MARGIN}" y="{bottom + 14:.1f}" text-anchor="end">{_time(last)}</text>',
    ]
    for window in windows:
        if window.is_settled and window.differences:
            title = escape(f"{_time(window.start_ms)} {window.verdict}")
            parts.append(
                f'<rect x="{x(window.start_ms) - 4:.1f}" y="{top + 20}" width="8" height="{PANEL - 40}" '
                f'fill="{FAULT}" fill-opacity="0.3"><title>{title}</title></rect>'
            )
    for index, hop in enumerate(report.hops):
        points = [(x(window.start_ms), y(window.counts.get(hop, 0))) for window in windows]
        if any(hop in window.counts for window in windows):
            line = " ".join(f"{left:.1f},{height:.1f}" for left, height in points)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{_colour(index)}" stroke-width="2"/>')
            parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5" fill="{_colour(index)}"/>' for a, b in points]
    return parts
