"""Runs one row several times on each broker in turn. A failed row is reported; later rows still run."""

from __future__ import annotations

import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from benchmarks.broker_process import StopFailed
from benchmarks.figures import Figures, median_figures
from benchmarks.results import Measure, Results
from benchmarks.topics import WrongAnswer
from compat_tests.process import StartFailed

__all__ = ["failure_of", "log_progress", "run_in_turn", "run_measures"]

# Errors caused by a broker that responds wrongly, closes the connection or does not respond.
BROKER_ERRORS = (
    WrongAnswer,
    StartFailed,
    StopFailed,
    OSError,
    EOFError,
    ValueError,
    IndexError,
    struct.error,
    subprocess.SubprocessError,
)


def run_in_turn(
    name: str, works: Sequence[Callable[[], Figures]], *, rounds: int
) -> tuple[list[Figures | None], str | None]:
    """Returns the median of each work, or the failure. Runs one additional round first, which warms the broker."""
    log_progress(f"{name} …")
    runs: list[list[Figures]] = [[] for _ in works]
    for _ in range(rounds + 1):
        for work, figures in zip(works, runs, strict=True):
            try:
                figures.append(work())
            except BROKER_ERRORS as problem:
                return [None] * len(works), f"{name}: {_traceback(problem)}"
    return [median_figures(figures) for figures in runs], None


def failure_of(work: Callable[[], object]) -> str | None:
    """Returns the traceback if the work failed, else None."""
    try:
        work()
    except BROKER_ERRORS as problem:
        return _traceback(problem)
    return None


def run_measures(
    works: Iterable[tuple[str, Callable[[], Iterable[Measure]]]], results: Results, *, only: str, prefix: str = ""
) -> None:
    """Runs the works whose name contains `only`. A failed work is reported, and keeps its earlier measures."""
    for name, work in works:
        if only in name:
            log_progress(f"{prefix}{name} …")
            failure = failure_of(partial(_collect, work, results))
            if failure is not None:
                results.measures.append(Measure(f"{prefix}{name}", None, "", failure=failure))


def _collect(work: Callable[[], Iterable[Measure]], results: Results) -> None:
    # One by one: if a later measure fails, the earlier ones are kept.
    for measure in work():
        results.measures.append(measure)


def log_progress(text: str) -> None:
    """Prints progress to stderr; stdout has only the tables."""
    print(text, file=sys.stderr, flush=True)


def _traceback(problem: BaseException) -> str:
    return "".join(traceback.format_exception(problem))
