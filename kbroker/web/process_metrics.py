"""Metrics of the process and of Python's garbage collector, with the names of Prometheus' Python client.

Reads /proc where it exists. These reads do not block: the kernel serves them from memory.
"""

from __future__ import annotations

import gc
import os
import platform
import resource
from typing import Final

from kbroker.web.exposition import Samples, counter, gauge

__all__ = ["PROCESS_METRICS", "read_process"]

CPU = counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.")
RESIDENT = gauge("process_resident_memory_bytes", "Resident memory size in bytes.")
VIRTUAL = gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.")
OPEN_FDS = gauge("process_open_fds", "Number of open file descriptors.")
MAX_FDS = gauge("process_max_fds", "Maximum number of open file descriptors.")
STARTED = gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.")
GC_RUNS = counter("python_gc_collections_total", "Number of times this generation was collected.", "generation")
GC_COLLECTED = counter("python_gc_objects_collected_total", "Objects collected during gc.", "generation")
GC_UNCOLLECTABLE = counter(
    "python_gc_objects_uncollectable_total", "Uncollectable objects found during GC.", "generation"
)
PYTHON = gauge("python_info", "Python platform information; always 1.", "implementation", "version")

PROCESS_METRICS: Final = (
    CPU,
    RESIDENT,
    VIRTUAL,
    OPEN_FDS,
    MAX_FDS,
    STARTED,
    GC_RUNS,
    GC_COLLECTED,
    GC_UNCOLLECTABLE,
    PYTHON,
)

_START_TICKS: Final = 19  # index of the field after the command name in /proc/self/stat
_VIRTUAL_BYTES: Final = 20
_RESIDENT_PAGES: Final = 21


def read_process(samples: Samples) -> None:
    times = os.times()
    samples.add(CPU, round(times.user + times.system, 3))
    samples.add(MAX_FDS, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    samples.add(PYTHON, 1, platform.python_implementation(), platform.python_version())
    for generation, stats in enumerate(gc.get_stats()):
        samples.add(GC_RUNS, stats["collections"], generation)
        samples.add(GC_COLLECTED, stats["collected"], generation)
        samples.add(GC_UNCOLLECTABLE, stats["uncollectable"], generation)
    if os.path.exists("/proc/self/stat"):
        _read_proc(samples)


def _read_proc(samples: Samples) -> None:
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        values = file.read().rpartition(")")[2].split()
    samples.add(VIRTUAL, int(values[_VIRTUAL_BYTES]))
    samples.add(RESIDENT, int(values[_RESIDENT_PAGES]) * os.sysconf("SC_PAGE_SIZE"))
    samples.add(OPEN_FDS, len(os.listdir("/proc/self/fd")) - 1)  # minus the descriptor of this listing
    with open("/proc/stat", encoding="utf-8") as file:
        booted = next((int(line.split()[1]) for line in file if line.startswith("btime ")), None)
    if booted is not None:
        samples.add(STARTED, booted + int(values[_START_TICKS]) / os.sysconf("SC_CLK_TCK"))
