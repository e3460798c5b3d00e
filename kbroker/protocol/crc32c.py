"""CRC-32C (Castagnoli), the checksum of a record batch of magic 2.

Chooses the implementation: the `crc32c` package, which uses the CPU's instruction, or else `crcmod`, which is fifty
times slower.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

__all__ = ["IMPLEMENTATION", "crc32c", "from_crc32c_package", "from_crcmod"]

Checksum = Callable[[bytes | bytearray | memoryview], int]


def from_crc32c_package() -> Checksum:
    """Returns the C function of the package. Loads the extension directly: the package's `__init__` takes 62 ms."""
    function: Checksum = (_extension_without_package() or importlib.import_module("crc32c")).crc32c
    return function


def from_crcmod() -> Checksum:
    function: Checksum = importlib.import_module("crcmod.predefined").mkPredefinedCrcFun("crc-32c")
    return function


def _extension_without_package() -> ModuleType | None:
    if "crc32c" in sys.modules:
        return None
    spec = _extension_spec()
    if spec is None or spec.loader is None:
        return None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:
        return None
    return module if hasattr(module, "crc32c") else None


def _extension_spec() -> ModuleSpec | None:
    package = PathFinder.find_spec("crc32c")
    if package is None or package.submodule_search_locations is None:
        return None
    return PathFinder.find_spec("_crc32c", list(package.submodule_search_locations))


def _choose() -> tuple[str, Checksum]:
    try:
        return "crc32c", from_crc32c_package()
    except (ImportError, AttributeError):
        return "crcmod", from_crcmod()


IMPLEMENTATION, crc32c = _choose()
