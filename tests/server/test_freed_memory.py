"""Memory that large requests have freed goes back to the operating system."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.clock import SystemClock
from kbroker.server.freed_memory import FreedMemory, return_freed_memory
from kbroker.server.requests.thread_work import ThreadWork


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has malloc_trim")
def test_freed_memory_is_returned() -> None:
    buffers = [bytes(1000) for _ in range(100_000)]
    kept = buffers[::500]  # so that the heap cannot shrink from its end
    del buffers
    before = resident_mb()
    return_freed_memory()
    assert resident_mb() < before - 70
    assert len(kept) == 200


async def test_memory_is_returned_when_no_thread_works_any_more() -> None:
    work = ThreadWork(SystemClock())
    assert not work.pop_has_freed()
    during: list[bool] = []

    def look(pause: Callable[[], None]) -> None:
        during.append(work.pop_has_freed())

    await work.run(look)
    assert during == [False]
    assert [work.pop_has_freed(), work.pop_has_freed()] == [True, False]


class Process:
    """A process of 40 MB that keeps what it has freed until it gives it back. Sizes in MB."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.used, self.kept = 40, 0
        self.trims = 0
        monkeypatch.setattr("kbroker.server.freed_memory._private_bytes", lambda: (self.used + self.kept) << 20)
        monkeypatch.setattr("kbroker.server.freed_memory.return_freed_memory", self.trim)
        self.memory = FreedMemory()

    def trim(self) -> None:
        self.trims += 1
        self.kept = 0

    def pass_seconds(self, count: int) -> None:
        for _ in range(count):
            if self.memory.is_due():
                self.memory.give_back()


@pytest.mark.parametrize("steps", [10, 100, 500])
def test_memory_that_is_freed_after_the_last_growth_comes_back_within_seconds(
    monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    process = Process(monkeypatch)
    while process.used < 1_040:
        process.used += 1_000 // steps * 10
        process.pass_seconds(1)
    process.used, process.kept = 40, process.used - 40
    process.pass_seconds(3)
    assert (process.used, process.kept) == (40, 0)


def test_a_broker_that_uses_its_memory_seldom_tries_to_return_it(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(monkeypatch)
    process.used = 200
    process.pass_seconds(640)
    assert process.trims <= 17  # 7 with growing pauses, then one a minute
    process.used = 60
    process.trims = 0
    process.pass_seconds(640)
    assert process.trims == 0
