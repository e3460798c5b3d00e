"""Returns freed memory to the operating system.

The C library keeps what large requests, or very many small ones, have freed for later requests, so the broker would
stay as large as its largest load made it.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

__all__ = ["FreedMemory", "return_freed_memory"]

_TRIM: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Much less than the loads from which a broker should shrink again, much more than it gains and loses in normal work.
_GROWTH_BYTES: Final = 32 << 20


class FreedMemory:
    """Knows whether the memory of this process has grown so much that returning what is free may be worth it."""

    def __init__(self) -> None:
        self._settled_bytes = _private_bytes()

    def has_grown(self) -> bool:
        """Whether the process has grown much since the last `give_back`. It may use the memory, or only keep it."""
        return _private_bytes() > self._settled_bytes + _GROWTH_BYTES

    def give_back(self) -> None:
        return_freed_memory()
        self._settled_bytes = _private_bytes()


def _private_bytes() -> int:
    """Returns the resident memory without files, or 0 on systems without Linux's /proc."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            _size, resident, shared, *_ = map(int, file.read().split())
    except OSError:
        return 0
    return (resident - shared) * _PAGE_BYTES


def return_freed_memory() -> None:
    """Takes up to some 10 ms, without the GIL. Does nothing on systems whose C library has no such call."""
    if _TRIM is not None:
        _TRIM(0)
