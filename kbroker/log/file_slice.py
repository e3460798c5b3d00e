"""A range of an open file, on its way to a socket. It pins the file until released; it never copies by itself."""

from __future__ import annotations

from kbroker.log.file_cache import CachedFile

__all__ = ["FileSlice"]


class FileSlice:
    """`size` bytes from `position`. Whoever sends a part of it moves both. `release()` may be called twice."""

    __slots__ = ("_is_pinned", "file", "generation", "is_hot_tail", "position", "size")

    def __init__(self, file: CachedFile, position: int, size: int, *, is_hot_tail: bool = False) -> None:
        if file.handle is None:
            file.open()
        file.pins += 1
        file.is_recent = True
        self.file = file
        self.position = position
        self.size = size
        self.generation = file.generation
        self.is_hot_tail = is_hot_tail  # written lately: in the page cache without asking
        self._is_pinned = True

    def __len__(self) -> int:
        return self.size

    def is_valid(self) -> bool:
        """False once a truncation took bytes away that this slice may name."""
        return self._is_pinned and self.file.generation == self.generation

    def fileno(self) -> int:
        return self.file.fd

    def read(self) -> bytes:
        return self.file.open().read_at(self.size, self.position)

    def release(self) -> None:
        if self._is_pinned:
            self._is_pinned = False
            self.file.release()
