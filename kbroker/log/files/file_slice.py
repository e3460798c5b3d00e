"""Range of an open file, to be sent to a socket. Pins the file until released. Never copies by itself."""

from __future__ import annotations

from kbroker.log.files.file_cache import CachedFile

__all__ = ["FileSlice"]


class FileSlice:
    """`size` bytes from `position`; the sender updates both after a partial send. `release()` may be called twice."""

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
        self.is_hot_tail = is_hot_tail  # written recently, so probably in the page cache
        self._is_pinned = True

    def __len__(self) -> int:
        return self.size

    def is_valid(self) -> bool:
        """Whether the bytes are still in the file: no truncation has removed any since."""
        return self._is_pinned and self.file.generation == self.generation

    def fileno(self) -> int:
        return self.file.fd

    def read(self) -> bytes:
        return self.file.open().read_at(self.size, self.position)

    def release(self) -> None:
        if self._is_pinned:
            self._is_pinned = False
            self.file.release()
