"""File that occupies some megabytes of a data directory, so that a full disk can be cleaned up.

Released step by step when the disk is full and something must be written nevertheless: metadata, a deletion, a
checkpoint, a recovery. Restored when there is space again. Until then no records are written to the directory: they
would use up the space that it has released.
"""

from __future__ import annotations

from typing import Final

from kbroker.errors import StorageFailure
from kbroker.log.files.filesystem import File, FileSystem

__all__ = ["RESERVE_FILE", "SpaceReserve"]

RESERVE_FILE: Final = "kbroker.reserve"

_HEADROOM: Final = 1 << 20  # free bytes beyond the reserve from which on a full directory accepts records again
_STEP: Final = 1 << 20
_CHUNK: Final = bytes(1 << 16)


class SpaceReserve:
    """Blocks on the disk. Not for two threads at once."""

    def __init__(self, filesystem: FileSystem, directory: str, size_bytes: int) -> None:
        self._filesystem = filesystem
        self._path = f"{directory}/{RESERVE_FILE}"
        self._size = size_bytes

    def restore(self) -> bool:
        """Creates the file if it is missing or short. Returns whether the disk has space for it, and for records.

        Without a size, only tries whether there is space. Blocks. Raises StorageFailure if the disk is broken.
        """
        file = None
        kept = 0
        try:
            file = self._filesystem.open(self._path, create=True)
            kept = min(file.size(), self._size)
            _allocate(file, self._size + _HEADROOM)
            kept = self._size
        except StorageFailure as failure:
            if not failure.is_full:
                raise
            return False
        finally:
            if file is not None:
                self._keep(file, kept)
        return True

    def _keep(self, file: File, size: int) -> None:
        file.truncate(size)
        file.close()
        if not size:
            self._filesystem.remove(self._path)

    def release(self) -> bool:
        """Frees the next part of the reserve. Returns False if nothing is left."""
        try:
            file = self._filesystem.open(self._path)
        except FileNotFoundError:
            return False
        size = file.size()
        self._keep(file, max(size - _STEP, 0))
        return size > 0


def _allocate(file: File, size: int) -> None:
    file.preallocate(size)
    for position in range(file.size(), size, len(_CHUNK)):  # on a system that cannot preallocate
        _write(file, _CHUNK[: size - position], position)


def _write(file: File, data: bytes, position: int) -> None:
    while data:
        written = file.write_at([data], position)
        data, position = data[written:], position + written
