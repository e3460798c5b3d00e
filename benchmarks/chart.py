"""SVG chart of the ratios for the README: one bar for each row, and a line at Apache Kafka's speed. Uses no library.

Readable on light and on dark pages: the background is the page's, the colours follow `prefers-color-scheme`.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from benchmarks.results import Comparison

__all__ = ["draw"]

WIDTH = 860
NAMES_WIDTH = 330
VALUE_WIDTH = 70
TOP = 64
ROW_HEIGHT = 26
BAR_HEIGHT = 15
LABELS = 'role="img" aria-labelledby="title summary"'

STYLE = """
    text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f }
    .title { font-size: 16px; font-weight: 600 }
    .quiet { fill: #656d76; font-size: 12px }
    .value { font-weight: 600 }
    .bar { fill: #2f81f7 }
    .slower { fill: #bf8700 }
    .one { stroke: #656d76; stroke-dasharray: 4 3 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 }
      .quiet { fill: #8d96a0 }
      .bar { fill: #4493f8 }
      .slower { fill: #d29922 }
      .one { stroke: #8d96a0 }
    }
"""


def draw(rows: Sequence[Comparison]) -> str:
    """Returns the SVG text. Rows without a ratio are left out."""
    ratios = [(row.name, row.ratio) for row in rows if row.ratio is not None]
    largest = max([1.0, *(ratio for _, ratio in ratios)])
    scale = (WIDTH - NAMES_WIDTH - VALUE_WIDTH) / largest
    height = TOP + ROW_HEIGHT * len(ratios) + 14
    one = NAMES_WIDTH + scale
    summary = "; ".join(f"{name}: {_shown(ratio)}" for name, ratio in ratios)
    size = f'width="{WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size} {LABELS}>',
        '  <title id="title">Speed of kbroker as a multiple of Apache Kafka 4.1</title>',
        f'  <desc id="summary">{escape(summary)}</desc>',
        f"  <style>{STYLE}  </style>",
        '  <text class="title" x="0" y="20">Speed of kbroker, as a multiple of Apache Kafka 4.1</text>',
        '  <text class="quiet" x="0" y="40">same machine, same run, same bytes; longer is faster</text>',
        f'  <text class="quiet" x="{one:.1f}" y="{TOP - 8}" text-anchor="middle">Apache Kafka</text>',
    ]
    for number, (name, ratio) in enumerate(ratios):
        parts += _bar(name, ratio, TOP + ROW_HEIGHT * number, ratio * scale)
    parts.append(f'  <line class="one" x1="{one:.1f}" y1="{TOP - 4}" x2="{one:.1f}" y2="{height - 10}"/>')
    return "\n".join([*parts, "</svg>", ""])


def _bar(name: str, ratio: float, top: float, length: float) -> list[str]:
    baseline = top + BAR_HEIGHT - 3
    kind = "bar" if ratio >= 1 else "bar slower"
    return [
        f'  <text x="{NAMES_WIDTH - 10}" y="{baseline}" text-anchor="end">{escape(name)}</text>',
        f'  <rect class="{kind}" x="{NAMES_WIDTH}" y="{top}" width="{length:.1f}" height="{BAR_HEIGHT}" rx="2"/>',
        f'  <text class="value" x="{NAMES_WIDTH + length + 8:.1f}" y="{baseline}">{_shown(ratio)}×</text>',
    ]


def _shown(ratio: float) -> str:
    """Formats a ratio, with two digits below 2, where one digit could hide which broker is faster."""
    return f"{ratio:.2f}" if ratio < 2 else f"{ratio:.1f}"
