"""Memory that large requests have freed goes back to the operating system."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.clock import SystemClock
from kbroker.server.freed_memory import return_freed_memory
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
