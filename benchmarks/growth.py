"""The growth section: how pipelines on Spark grow with partitions and with executors. Draws docs/pipeline-growth.svg.

Measures kbroker alone. Each point is the median of several runs; the first run of each point is a warm-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path

from benchmarks.broker_process import Broker, fresh_kbroker
from benchmarks.chart import LABELS, STYLE
from benchmarks.figures import Figures
from benchmarks.results import Measure, Results
from benchmarks.rounds import log_progress, run_in_turn
from benchmarks.spark_pipelines import archive_topic, read_segments, read_with_spark, stream_once
from benchmarks.spark_scene import MASTER, Scene, SparkMissing, run_work
from tools.jars import FetchFailed, MavenMissing

__all__ = ["GROWTH_CHART", "KINDS", "Point", "draw_growth", "run_growth"]

GROWTH_CHART = Path(__file__).resolve().parent.parent / "docs" / "pipeline-growth.svg"
RECORDS = 1_000_000
QUICK_RECORDS = 20_000
PARTITIONS = (1, 2, 4, 8)
EXECUTORS = (1, 2)
EXECUTOR_MB = 1024

KINDS: dict[str, Callable[[Scene, int], Figures]] = {
    "kbroker-log": read_segments,
    "batch read": lambda scene, partitions: read_with_spark(scene, scene.subject, partitions),
    "archive to Parquet": lambda scene, partitions: archive_topic(scene, "parquet", partitions),
    "exactly-once copy": stream_once,
}


@dataclass(frozen=True, slots=True)
class Point:
    """Rate of one kind with so many partitions or executors; None if it failed."""

    kind: str
    by: str
    """`partitions` or `executors`."""
    count: int
    records_s: float | None


def run_growth(results: Results, *, only: str, rounds: int, quick: bool, svg: Path | None) -> None:
    kinds = {name: work for name, work in KINDS.items() if only in f"growth: {name}"}
    points: list[Point] = []
    try:
        with fresh_kbroker() as (broker, directory):
            for point, failure in _measure_all(broker, directory, kinds, rounds=rounds, quick=quick):
                points.append(point)
                name = f"growth: {point.kind}, {point.count} {point.by}"
                results.measures.append(Measure(name, point.records_s, "msg/s", failure=failure))
    except (SparkMissing, MavenMissing, FetchFailed) as problem:
        log_progress(f"Skipped growth: {problem}")
    if svg is not None and all(point.records_s is not None for point in points) and points:
        svg.write_text(draw_growth(points))


def _measure_all(
    broker: Broker, directory: Path, kinds: dict[str, Callable[[Scene, int], Figures]], *, rounds: int, quick: bool
) -> Iterator[tuple[Point, str | None]]:
    records = QUICK_RECORDS if quick else RECORDS
    with _open_scene(broker, directory, records, MASTER) as scene:
        for kind, work in kinds.items():
            for partitions in PARTITIONS:
                yield _measure(scene, kind, work, "partitions", partitions, partitions=partitions, rounds=rounds)
    for executors in EXECUTORS:
        master = f"local-cluster[{executors},1,{EXECUTOR_MB}]"
        with _open_scene(broker, directory, records, master) as scene:
            for kind, work in kinds.items():
                yield _measure(scene, kind, work, "executors", executors, partitions=max(PARTITIONS), rounds=rounds)


@contextmanager
def _open_scene(broker: Broker, directory: Path, records: int, master: str) -> Iterator[Scene]:
    scene = Scene(None, broker, broker, directory, records=records, master=master)
    try:
        yield scene
    finally:
        scene.close()


def _measure(
    scene: Scene,
    kind: str,
    work: Callable[[Scene, int], Figures],
    by: str,
    count: int,
    *,
    partitions: int,
    rounds: int,
) -> tuple[Point, str | None]:
    run = partial(run_work, partial(_with_partitions, work, partitions), scene)
    (figures,), failure = run_in_turn(f"growth: {kind}, {count} {by}", [run], rounds=rounds)
    return Point(kind, by, count, figures.messages_s if figures else None), failure


def _with_partitions(work: Callable[[Scene, int], Figures], partitions: int, scene: Scene) -> Figures:
    return work(scene, partitions)


WIDTH, HEIGHT = 860, 330
PANEL_WIDTH, PANEL_TOP, PANEL_BOTTOM = 300, 84, 290
PANEL_LEFTS = {"partitions": 60, "executors": 430}
COLOURS = ("#2f81f7", "#bf8700", "#1a7f37", "#a371f7")


def draw_growth(points: Sequence[Point]) -> str:
    """Returns the SVG text: records per second by partitions on the left, by executors on the right."""
    kinds = list(dict.fromkeys(point.kind for point in points))
    largest = max(point.records_s or 0.0 for point in points)
    size = f'width="{WIDTH}" height="{HEIGHT}"'
    summary = "; ".join(f"{point.kind}, {point.count} {point.by}: {_short(point.records_s)}/s" for point in points)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {size} {LABELS}>',
        '  <title id="title">Records per second of pipelines on Spark</title>',
        f'  <desc id="summary">{escape(summary)}</desc>',
        f"  <style>{STYLE}  </style>",
        '  <text class="title" x="0" y="20">Records per second, by partitions and by executors</text>',
        '  <text class="quiet" x="0" y="40">two cores for Spark, the broker and all executors together</text>',
    ]
    for by, left in PANEL_LEFTS.items():
        parts += _panel(by, left, [point for point in points if point.by == by], kinds, largest)
    for number, kind in enumerate(kinds):
        left = number * 150 + PANEL_LEFTS["partitions"]
        parts.append(f'  <rect x="{left}" y="52" width="12" height="12" fill="{COLOURS[number % len(COLOURS)]}"/>')
        parts.append(f'  <text x="{left + 18}" y="63">{escape(kind)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(by: str, left: int, points: Sequence[Point], kinds: Sequence[str], largest: float) -> list[str]:
    counts = sorted({point.count for point in points})
    places = {count: left + PANEL_WIDTH * number / max(1, len(counts) - 1) for number, count in enumerate(counts)}
    height = PANEL_BOTTOM - PANEL_TOP
    parts = [f'  <line class="one" x1="{left}" y1="{PANEL_BOTTOM}" x2="{left + PANEL_WIDTH}" y2="{PANEL_BOTTOM}"/>']
    for count, place in places.items():
        parts.append(
            f'  <text class="quiet" x="{place:.0f}" y="{PANEL_BOTTOM + 18}" text-anchor="middle">{count}</text>'
        )
    middle = left + PANEL_WIDTH / 2
    parts.append(f'  <text x="{middle:.0f}" y="{PANEL_BOTTOM + 34}" text-anchor="middle">{by}</text>')
    for number, kind in enumerate(kinds):
        line = [(places[point.count], point.records_s or 0.0) for point in points if point.kind == kind]
        path = " ".join(f"{place:.1f},{PANEL_BOTTOM - rate / largest * height:.1f}" for place, rate in line)
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'  <polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for place, rate in line:
            top = PANEL_BOTTOM - rate / largest * height
            parts.append(f'  <circle cx="{place:.1f}" cy="{top:.1f}" r="3" fill="{colour}"/>')
            parts.append(f'  <text class="quiet" x="{place + 5:.1f}" y="{top - 6:.1f}">{_short(rate)}</text>')
    return parts


def _short(rate: float | None) -> str:
    """Formats a rate: 1,234,567 is 1.23M, 45,678 is 46k."""
    if rate is None:
        return "?"
    return f"{rate / 1e6:.2f}M" if rate >= 1e6 else f"{rate / 1e3:.0f}k"
