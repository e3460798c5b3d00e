"""Cache of open files with a limit. Pinned files are never closed; the others by the second chance algorithm.

The operating system reuses the number of a closed descriptor at once. Closing a file that a response still sends from
would send bytes of another topic; pins prevent it.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from kbroker.errors import StorageFailure
from kbroker.log.files.filesystem import File, FileSystem

__all__ = ["CachedFile", "FileCache", "FileOwner"]


class FileOwner(Protocol):
    def on_file_evicted(self) -> None:
        """Called when the cache closed the file: drops state that is cheap to read again."""
        ...


class CachedFile:
    """File that is opened at the first use. `generation` grows with each truncation of bytes that a reader may use."""

    __slots__ = ("_cache", "_is_unlinked", "fd", "generation", "handle", "is_recent", "owner", "path", "pins")

    def __init__(self, cache: FileCache, path: str) -> None:
        self._cache = cache
        self._is_unlinked = False
        self.path = path
        self.handle: File | None = None
        self.fd = -1
        self.pins = 0
        self.generation = 0
        self.is_recent = False
        self.owner: FileOwner | None = None

    def open(self, *, create: bool = False) -> File:
        """Returns the handle; opens the file if it is closed."""
        self.is_recent = True
        handle = self.handle
        if handle is None:
            try:
                handle = self._cache.filesystem.open(self.path, create=create)
            except FileNotFoundError as error:
                raise StorageFailure(f"{self.path} does not exist any more") from error
            self.handle = handle
            self.fd = handle.fd
            self._cache.admit(self)
        return handle

    def pin(self) -> None:
        self.open()
        self.pins += 1

    def release(self) -> None:
        self.pins -= 1
        assert self.pins >= 0, f"{self.path} released more often than pinned"
        if self._is_unlinked and not self.pins:
            self._unlink()

    def close(self) -> None:
        """Closes a file without pins. For the cache, and when a log is closed."""
        handle = self.handle
        if handle is not None:
            self.handle = None
            self.fd = -1
            handle.close()
            self._cache.forget(self)

    def move_to(self, cache: FileCache) -> None:
        """Closes the file and puts it under another cache."""
        self.close()
        self._cache = cache

    def unlink(self) -> None:
        """Deletes the file now, or when the last pin is released."""
        if self.pins:
            self._is_unlinked = True
        else:
            self._unlink()

    def _unlink(self) -> None:
        self.close()
        self._cache.filesystem.remove(self.path)


class FileCache:
    __slots__ = ("_open", "_queue", "filesystem", "limit")

    def __init__(self, filesystem: FileSystem, limit: int = 512) -> None:
        self.filesystem = filesystem
        self.limit = limit
        self._queue: deque[CachedFile] = deque()
        self._open = 0

    @property
    def open_count(self) -> int:
        return self._open

    def admit(self, file: CachedFile) -> None:
        self._open += 1
        if self._open > self.limit:
            self._evict()  # before the new file is in the queue, so that it does not evict itself
        self._queue.append(file)

    def forget(self, file: CachedFile) -> None:
        self._open -= 1
        if len(self._queue) > 2 * self.limit:
            self._queue = deque(queued for queued in self._queue if queued.handle is not None)

    def _evict(self) -> None:
        """Closes a file that is neither pinned nor recently used. Exceeds the limit if all files are pinned."""
        queue = self._queue
        for _ in range(2 * len(queue)):
            file = queue.popleft()
            if file.handle is None:
                continue
            if file.pins or file.is_recent:
                file.is_recent = False
                queue.append(file)
                continue
            file.close()
            if file.owner is not None:
                file.owner.on_file_evicted()
            return
