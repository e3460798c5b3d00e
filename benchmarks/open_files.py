"""Raises the limit of open files of this process, for loads with a thousand connections."""

from __future__ import annotations

import resource

__all__ = ["allow_open_files"]


def allow_open_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
