"""Open files under a bound: a file that somebody pinned is never closed, the others by second chance.

A closed descriptor's number is used again at once, so closing one that a response still names would send another
topic's bytes. Hence the pins.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from kbroker.errors import StorageFailure
from kbroker.log.filesystem import File, FileSystem

__all__ = ["CachedFile", "FileCache", "FileOwner"]


class FileOwner(Protocol):
    def on_file_evicted(self) -> None:
        """The file was closed for want of descriptors: drop what is cheap to read again."""
        ...


class CachedFile:
    """A file that is opened when first used. `generation` grows when bytes that a reader may hold were cut off."""

    __slots__ = ("_cache", "_is_doomed", "fd", "generation", "handle", "is_recent", "owner", "path", "pins")

    def __init__(self, cache: FileCache, path: str) -> None:
        self._cache = cache
        self._is_doomed = False
        self.path = path
        self.handle: File | None = None
        self.fd = -1
        self.pins = 0
        self.generation = 0
        self.is_recent = False
        self.owner: FileOwner | None = None

    def open(self, *, create: bool = False) -> File:
        """The handle, opened if it has to be."""
        self.is_recent = True
        handle = self.handle
        if handle is None:
            try:
                handle = self._cache.filesystem.open(self.path, create=create)
            except FileNotFoundError as error:
                raise StorageFailure(f"{self.path} has gone") from error
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
        if self._is_doomed and not self.pins:
            self._unlink()

    def close(self) -> None:
        """For the cache, and for the end of a log: nobody may hold a pin."""
        handle = self.handle
        if handle is not None:
            self.handle = None
            self.fd = -1
            handle.close()
            self._cache.forget(self)

    def move_to(self, cache: FileCache) -> None:
        """Closed, and from now on under another bound."""
        self.close()
        self._cache = cache

    def unlink(self) -> None:
        """Removes the file now, or as soon as the last pin goes."""
        if self.pins:
            self._is_doomed = True
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
            self._evict()
        self._queue.append(file)

    def forget(self, file: CachedFile) -> None:
        self._open -= 1
        if len(self._queue) > 2 * self.limit:
            self._queue = deque(each for each in self._queue if each.handle is not None)

    def _evict(self) -> None:
        """Closes one file that is neither pinned nor lately used. If all are pinned the bound gives way."""
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
