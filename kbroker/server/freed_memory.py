"""Returns freed memory to the operating system.

The C library keeps what large requests have freed for later requests, so the broker would stay as large as its largest
request made it.
"""

from __future__ import annotations

import ctypes
from typing import Final

__all__ = ["return_freed_memory"]

_TRIM: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only


def return_freed_memory() -> None:
    """Takes up to some 10 ms, without the GIL. Does nothing on systems whose C library has no such call."""
    if _TRIM is not None:
        _TRIM(0)
