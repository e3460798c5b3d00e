"""Running one row several times on each broker in turn; a row that breaks is reported and hides no other."""

from __future__ import annotations

import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence

from benchmarks.broker_process import StopFailed
from benchmarks.figures import Figures, median_figures
from benchmarks.topics import WrongAnswer
from compat_tests.process import StartFailed

__all__ = ["failure_of", "run_in_turn", "say"]

# What a broker can do to us by a wrong answer, a closed connection, or none at all.
BROKEN = (
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
    """The medians, one for each work, or what went wrong. One more round than asked for: the first warms."""
    say(f"{name} …")
    runs: list[list[Figures]] = [[] for _ in works]
    for _ in range(rounds + 1):
        for work, figures in zip(works, runs, strict=True):
            try:
                figures.append(work())
            except BROKEN as problem:
                return [None] * len(works), f"{name}: {_traceback(problem)}"
    return [median_figures(figures) for figures in runs], None


def failure_of(work: Callable[[], object]) -> str | None:
    """None when it went well, else the traceback."""
    try:
        work()
    except BROKEN as problem:
        return _traceback(problem)
    return None


def say(text: str) -> None:
    """Progress: on stderr, so that the tables on stdout stay clean."""
    print(text, file=sys.stderr, flush=True)


def _traceback(problem: BaseException) -> str:
    return "".join(traceback.format_exception(problem))
