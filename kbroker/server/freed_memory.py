"""Returns freed memory to the operating system.

The C library keeps memory that large requests, or very many small ones, have freed, so the broker would stay as large
as its largest load made it.
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
_WORTH_BYTES: Final = 4 << 20  # as long as that much comes back, more may follow soon
_LONGEST_PAUSE: Final = 64


class FreedMemory:
    """Decides when returning what is free may be worth it: while the process is much larger than it was.

    A load that is still being handled when memory is returned frees the rest later, and nothing grows then. So the
    broker tries again, after longer and longer pauses if nothing came back: it may use the memory.
    """

    def __init__(self) -> None:
        self._smallest_bytes = self._settled_bytes = _private_bytes()
        self._pause = self._left = 1

    def is_due(self) -> bool:
        """Whether to call `give_back` now. Must be called once a second."""
        size = _private_bytes()
        if size > self._settled_bytes + _GROWTH_BYTES:
            self._pause = 1
            return True
        if size <= self._smallest_bytes + _GROWTH_BYTES:
            return False
        self._left -= 1
        return self._left <= 0

    def give_back(self) -> None:
        before = _private_bytes()
        return_freed_memory()
        self._settled_bytes = after = _private_bytes()
        self._smallest_bytes = min(self._smallest_bytes, after)
        self._pause = 1 if before - after >= _WORTH_BYTES else min(2 * self._pause, _LONGEST_PAUSE)
        self._left = self._pause


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
