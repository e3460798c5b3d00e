"""Files that a pipeline keeps beside its checkpoint: replaced in one step, locked by one process. Knows no Spark."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["lock_file", "sync_directory", "write_json"]


def write_json(path: Path, value: Any, *, on_written: Callable[[], None] = lambda: None) -> None:
    """Replaces a file in one step: after a crash of the machine it has the old or, after the return, the new content.

    `on_written` is called before the new file takes its name.
    """
    fresh = path.with_name(f".{path.name}.fresh")
    with open(fresh, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    on_written()
    fresh.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Makes new and removed names in the directory survive a crash of the machine."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_file(path: Path) -> int:
    """Locks a file and returns its descriptor, which holds the lock. Raises BlockingIOError if it is locked already."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
