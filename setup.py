"""Compiles the hot path with mypyc where there is a C compiler (ADR 6); everything else is in pyproject.toml.

KBROKER_COMPILE=0 leaves the hot path interpreted, KBROKER_COMPILE=1 fails if it cannot be compiled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig

from setuptools import Extension, setup

# What a Produce or a Fetch passes through between the socket and the file, and what compaction does with each record:
# together, for calls between compiled modules are calls in C. Seams that tests put something else in (the file system,
# transports) stay interpreted.
HOT_PATH = [
    "kbroker/histogram.py",
    "kbroker/log/append_result.py",
    "kbroker/log/append_rules.py",
    "kbroker/log/cleaning/batch_filter.py",
    "kbroker/log/cleaning/cleaned_segment.py",
    "kbroker/log/cleaning/cleaned_transactions.py",
    "kbroker/log/cleaning/compaction.py",
    "kbroker/log/cleaning/offset_map.py",
    "kbroker/log/fetched_batches.py",
    "kbroker/log/files/file_cache.py",
    "kbroker/log/files/file_slice.py",
    "kbroker/log/flush_state.py",
    "kbroker/log/leader_epochs.py",
    "kbroker/log/open_log.py",
    "kbroker/log/producers/producer_state.py",
    "kbroker/log/roll_rules.py",
    "kbroker/log/segments/offset_index.py",
    "kbroker/log/segments/segment.py",
    "kbroker/log/segments/segment_list.py",
    "kbroker/log/segments/sorted_index.py",
    "kbroker/log/segments/time_index.py",
    "kbroker/log/segments/timestamps.py",
    "kbroker/log/staging.py",
    "kbroker/protocol/framing.py",
    "kbroker/protocol/record_batch.py",
    "kbroker/protocol/record_walk.py",
    "kbroker/server/wire/connection.py",
    "kbroker/server/requests/client_session.py",
    "kbroker/server/requests/delayed_operation.py",
    "kbroker/server/requests/dispatch.py",
    "kbroker/server/wire/epoll_watcher.py",
    "kbroker/server/requests/fetch_session.py",
    "kbroker/server/handlers/fetch.py",
    "kbroker/server/handlers/produce.py",
    "kbroker/server/wire/network.py",
    "kbroker/server/wire/send_queue.py",
    "kbroker/server/wire/spinning.py",
    "kbroker/server/requests/repeated_fetch.py",
    "kbroker/server/requests/repeated_list_offsets.py",
    "kbroker/server/requests/repeated_partitions_fetch.py",
    "kbroker/server/requests/repeated_produce.py",
    "kbroker/server/requests/repeated_requests.py",
    "kbroker/server/requests/request.py",
    "kbroker/server/requests/request_times.py",
    "kbroker/server/requests/run.py",
]


def has_compiler() -> bool:
    """Whether C code that uses Python can be compiled: there is a compiler, and Python.h."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    check = [*compiler, "-I", sysconfig.get_path("include"), "-fsyntax-only", "-x", "c", "-"]
    try:
        return subprocess.run(check, input=b"#include <Python.h>\n", capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def hot_path() -> list[Extension]:
    wanted = os.environ.get("KBROKER_COMPILE", "")
    # An editable installation runs the sources, and commands that only read metadata compile nothing.
    if wanted == "0" or "bdist_wheel" not in sys.argv:
        return []
    if not has_compiler():
        problem = "There is no C compiler here, or no Python.h"
        if wanted == "1":
            sys.exit(f"{problem}: KBROKER_COMPILE=0 builds kbroker without compiled code")
        sys.stderr.write(f"{problem}: the hot path stays interpreted, which is slower\n")
        return []
    from mypyc.build import mypycify

    # Without the project's strict rules: `make types` checks them, and a newer release of a dependency must not break
    # an installation. More than -O1 takes longer and gains nothing that can be measured.
    lenient = [f"--config-file={os.devnull}", "--ignore-missing-imports"]
    return list(mypycify([*lenient, *HOT_PATH], opt_level="1", debug_level="0"))


setup(ext_modules=hot_path(), options={"build_ext": {"parallel": os.cpu_count()}})
