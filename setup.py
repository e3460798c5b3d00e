"""Compiles the hot path by mypyc where KBROKER_COMPILE=1 asks for it (ADR 6); the rest is in pyproject.toml."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

# What a Produce or a Fetch passes through between the socket and the file: together, for calls between compiled
# modules are calls in C. Seams that tests put something else in (the file system, transports) stay interpreted.
HOT_PATH = [
    "kbroker/log/append_result.py",
    "kbroker/log/append_rules.py",
    "kbroker/log/file_cache.py",
    "kbroker/log/file_slice.py",
    "kbroker/log/flush_state.py",
    "kbroker/log/follower_append.py",
    "kbroker/log/leader_epochs.py",
    "kbroker/log/offset_index.py",
    "kbroker/log/partition_log.py",
    "kbroker/log/producer_state.py",
    "kbroker/log/segment.py",
    "kbroker/log/segment_list.py",
    "kbroker/log/sorted_index.py",
    "kbroker/log/time_index.py",
    "kbroker/log/timestamps.py",
    "kbroker/protocol/framing.py",
    "kbroker/protocol/record_batch.py",
    "kbroker/server/append_run.py",
    "kbroker/server/connection.py",
    "kbroker/server/dispatch.py",
    "kbroker/server/epoll_watcher.py",
    "kbroker/server/fetch_session.py",
    "kbroker/server/handlers/fetch.py",
    "kbroker/server/handlers/produce.py",
    "kbroker/server/network.py",
    "kbroker/server/repeated_fetch.py",
    "kbroker/server/repeated_produce.py",
    "kbroker/server/repeated_requests.py",
    "kbroker/server/request.py",
]


def has_compiler() -> bool:
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return shutil.which(compiler.split()[0]) is not None and headers.exists()


def hot_path() -> list[Extension]:
    if os.environ.get("KBROKER_COMPILE", "0") == "0":
        return []
    if not has_compiler():
        sys.stderr.write("the hot path stays interpreted: there is no C compiler here, or no Python.h\n")
        return []
    from mypyc.build import mypycify

    # More than -O1 takes longer and gains nothing that can be measured.
    return list(mypycify(HOT_PATH, opt_level="1", debug_level="0"))


setup(ext_modules=hot_path(), options={"build_ext": {"parallel": os.cpu_count()}})
