"""What the process uses and what Python's garbage collector does, under the names of Prometheus' own client library.

/proc is read where there is one: it is memory of the system's, not a disk.
"""

from __future__ import annotations

import gc
import os
import platform
import resource
from typing import Final

from kbroker.web.exposition import Samples, counter, gauge

__all__ = ["PROCESS_METRICS", "read_process"]

CPU = counter("process_cpu_seconds_total", "CPU time of the process, user and system.")
RESIDENT = gauge("process_resident_memory_bytes", "Memory of the process that is in RAM.")
VIRTUAL = gauge("process_virtual_memory_bytes", "Address space of the process.")
OPEN_FDS = gauge("process_open_fds", "Open file descriptors: connections, segments, indexes.")
MAX_FDS = gauge("process_max_fds", "How many file descriptors may be open.")
STARTED = gauge("process_start_time_seconds", "When the process began, in seconds since 1970.")
GC_RUNS = counter("python_gc_collections_total", "Runs of the garbage collector.", "generation")
GC_FREED = counter("python_gc_objects_collected_total", "Objects that it freed.", "generation")
GC_STUCK = counter("python_gc_objects_uncollectable_total", "Objects that it could not free.", "generation")
PYTHON = gauge("python_info", "Which Python runs the broker; always 1.", "implementation", "version")

PROCESS_METRICS: Final = (CPU, RESIDENT, VIRTUAL, OPEN_FDS, MAX_FDS, STARTED, GC_RUNS, GC_FREED, GC_STUCK, PYTHON)

_START_TICKS: Final = 19  # places after the command's name in /proc/self/stat
_VIRTUAL_BYTES: Final = 20
_RESIDENT_PAGES: Final = 21


def read_process(samples: Samples) -> None:
    times = os.times()
    samples.add(CPU, round(times.user + times.system, 3))
    samples.add(MAX_FDS, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    samples.add(PYTHON, 1, platform.python_implementation(), platform.python_version())
    for generation, stats in enumerate(gc.get_stats()):
        samples.add(GC_RUNS, stats["collections"], generation)
        samples.add(GC_FREED, stats["collected"], generation)
        samples.add(GC_STUCK, stats["uncollectable"], generation)
    if os.path.exists("/proc/self/stat"):
        _read_proc(samples)


def _read_proc(samples: Samples) -> None:
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        values = file.read().rpartition(")")[2].split()
    samples.add(VIRTUAL, int(values[_VIRTUAL_BYTES]))
    samples.add(RESIDENT, int(values[_RESIDENT_PAGES]) * os.sysconf("SC_PAGE_SIZE"))
    samples.add(OPEN_FDS, len(os.listdir("/proc/self/fd")) - 1)  # one of them is the look itself
    with open("/proc/stat", encoding="utf-8") as file:
        booted = next((int(line.split()[1]) for line in file if line.startswith("btime ")), None)
    if booted is not None:
        samples.add(STARTED, booted + int(values[_START_TICKS]) / os.sysconf("SC_CLK_TCK"))
