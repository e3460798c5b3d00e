"""A file system in memory that keeps the contract of the real one, and fails when told to.

It can run full after so many bytes, write short, fail to read, write or fsync, and lose at a `crash` what was not
fsynced. Names are durable at once: what a crash does to directories is not played here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from kbroker.log.filesystem import storage_failure
from kbroker.protocol.record_batch import ReadBuffer

__all__ = ["FaultyFile", "FaultyFileSystem"]


class _Content:
    __slots__ = ("data", "durable", "modified_ms")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.modified_ms = 0


class FaultyFileSystem:
    """Turn the knobs at any time; they act on the next call."""

    def __init__(self) -> None:
        self.room: int | None = None  # bytes that may still be written; None: no end
        self.longest_write: int | None = None  # a write of more than this is short
        self.write_error: int | None = None  # an errno, such as errno.EIO
        self.read_error: int | None = None
        self.sync_error: int | None = None
        self.now_ms = 0  # what modified_ms answers for files written now
        self.open_files = 0
        self.syncs = 0
        self._files: dict[str, _Content] = {}
        self._directories: set[str] = {"", "/"}
        self._locked: set[str] = set()

    # Faults

    def crash(self) -> None:
        """The machine stops: every file is what it was at its last fsync. No handle may be used again."""
        for content in self._files.values():
            content.data = bytearray(content.durable)
        self.kill()

    def kill(self) -> None:
        """Only the process stops: what was written is there, locks and handles are gone."""
        self._locked.clear()
        self.open_files = 0

    def fail(self, number: int | None, path: str) -> None:
        if number is not None:
            raise storage_failure(OSError(number, os.strerror(number)), path)

    def take_room(self, size: int, path: str) -> int:
        """How many of `size` bytes still fit; ENOSPC if none does."""
        if self.room is None:
            return size
        if size and not self.room:
            self.fail(errno.ENOSPC, path)
        taken = min(size, self.room)
        self.room -= taken
        return taken

    # The contract

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        content = self._files.get(path)
        if content is None:
            if not create:
                raise FileNotFoundError(path)
            self._require_directory(path)
            if self.room == 0:
                self.fail(errno.ENOSPC, path)
            content = self._files[path] = _Content()
        self.open_files += 1
        return FaultyFile(self, path, content)

    def read(self, path: str) -> bytes:
        self.fail(self.read_error, path)
        return bytes(self._file(path).data)

    def replace(self, path: str, content: bytes, *, sync: bool = True) -> None:
        self.fail(self.write_error, path)
        self._require_directory(path)
        if self.take_room(len(content), path) < len(content):
            self.fail(errno.ENOSPC, path)
        if sync:
            self.fail(self.sync_error, path)
        new = _Content()
        new.data = bytearray(content)
        new.durable = bytes(content)  # a file renamed over another is written out by the common file systems
        new.modified_ms = self.now_ms
        self._files[path] = new

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._directories

    def size(self, path: str) -> int:
        return len(self._file(path).data)

    def modified_ms(self, path: str) -> int:
        return self._file(path).modified_ms

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        content = self._files.get(path)
        if content is None:
            self.fail(errno.ENOENT, path)
        else:
            content.modified_ms = modified_ms

    def list_names(self, path: str) -> list[str]:
        if path not in self._directories:
            raise FileNotFoundError(path)
        inside = [each for each in (*self._files, *self._directories) if os.path.dirname(each) == path and each != path]
        return [os.path.basename(each) for each in inside if os.path.basename(each)]

    def list_directories(self, path: str) -> list[str]:
        return [name for name in self.list_names(path) if f"{path}/{name}" in self._directories]

    def make_directory(self, path: str) -> None:
        while path not in self._directories:
            self._directories.add(path)
            path = os.path.dirname(path)

    def rename(self, source: str, target: str) -> None:
        if source in self._files:
            self._files[target] = self._files.pop(source)
        elif source in self._directories:
            for path in [each for each in self._files if each.startswith(source + "/")]:
                self._files[target + path[len(source) :]] = self._files.pop(path)
            for path in [each for each in self._directories if each == source or each.startswith(source + "/")]:
                self._directories.remove(path)
                self._directories.add(target + path[len(source) :])
        else:
            self.fail(errno.ENOENT, source)

    def remove(self, path: str) -> None:
        self._files.pop(path, None)

    def remove_directory(self, path: str) -> None:
        if path not in self._directories:
            raise FileNotFoundError(path)
        for each in [each for each in self._files if each.startswith(path + "/")]:
            del self._files[each]
        self._directories = {each for each in self._directories if each != path and not each.startswith(path + "/")}

    def sync_directory(self, path: str) -> None:
        self.fail(self.sync_error, path)

    def sync_all(self) -> None:
        for content in self._files.values():
            content.durable = bytes(content.data)

    def lock(self, path: str) -> _Lock | None:
        if path in self._locked:
            return None
        self._require_directory(path)
        self._files.setdefault(path, _Content())
        self._locked.add(path)
        return _Lock(self._locked, path)

    def _file(self, path: str) -> _Content:
        content = self._files.get(path)
        if content is None:
            raise FileNotFoundError(path)
        return content

    def _require_directory(self, path: str) -> None:
        if os.path.dirname(path) not in self._directories:
            self.fail(errno.ENOENT, path)


class FaultyFile:
    """An open file of a FaultyFileSystem. It has no descriptor."""

    __slots__ = ("_content", "_filesystem", "_is_open", "_path")

    def __init__(self, filesystem: FaultyFileSystem, path: str, content: _Content) -> None:
        self._filesystem = filesystem
        self._path = path
        self._content = content
        self._is_open = True

    @property
    def fd(self) -> int:
        return -1

    def write_at(self, buffers: Sequence[ReadBuffer], position: int) -> int:
        filesystem = self._filesystem
        assert self._is_open
        filesystem.fail(filesystem.write_error, self._path)
        joined = b"".join(buffers)
        if filesystem.longest_write is not None:
            joined = joined[: filesystem.longest_write]
        data = self._content.data
        grown = max(position + len(joined) - len(data), 0)
        fitting = len(joined) - grown + filesystem.take_room(grown, self._path)
        if position > len(data):
            data.extend(bytes(position - len(data)))
        data[position : position + fitting] = joined[:fitting]
        self._content.modified_ms = filesystem.now_ms
        return fitting

    def read_at(self, size: int, position: int) -> bytes:
        assert self._is_open
        self._filesystem.fail(self._filesystem.read_error, self._path)
        return bytes(self._content.data[position : position + size])

    def size(self) -> int:
        assert self._is_open
        return len(self._content.data)

    def truncate(self, size: int) -> None:
        assert self._is_open
        data = self._content.data
        if self._filesystem.room is not None:
            self._filesystem.room += max(len(data) - size, 0)
        del data[size:]
        data.extend(bytes(size - len(data)))

    def preallocate(self, size: int) -> None:
        data = self._content.data
        grown = max(size - len(data), 0)
        if self._filesystem.take_room(grown, self._path) < grown:
            self._filesystem.fail(errno.ENOSPC, self._path)
        data.extend(bytes(grown))

    def sync(self) -> None:
        assert self._is_open
        self._filesystem.fail(self._filesystem.sync_error, self._path)
        self._filesystem.syncs += 1
        self._content.durable = bytes(self._content.data)

    def close(self) -> None:
        assert self._is_open
        self._is_open = False
        self._filesystem.open_files -= 1


class _Lock:
    __slots__ = ("_locked", "_path")

    def __init__(self, locked: set[str], path: str) -> None:
        self._locked = locked
        self._path = path

    def release(self) -> None:
        self._locked.discard(self._path)
