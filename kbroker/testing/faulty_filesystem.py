"""File system in memory with the contract of the real one, and with faults that a test sets.

It can be full after a number of bytes, write less than asked, fail to read, write or fsync, and lose at a `crash` all
bytes that were not fsynced. Names of files are durable at once: lost directory entries are not simulated.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from kbroker.log.files.filesystem import storage_failure, sync_failure
from kbroker.protocol.record_batch import ReadBuffer

__all__ = ["FaultyFile", "FaultyFileSystem"]


class _Content:
    __slots__ = ("data", "durable", "modified_ms")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.modified_ms = 0


class FaultyFileSystem:
    """The public attributes set faults, from the next call on."""

    def __init__(self) -> None:
        self.free_bytes: int | None = None  # bytes that can still be written; None: no limit
        self.longest_write: int | None = None  # longer writes are cut to this many bytes
        self.write_error: int | None = None  # an errno, for example errno.EIO
        self.read_error: int | None = None
        self.sync_error: int | None = None
        self.now_ms = 0  # modification time for files that are written
        self.open_files = 0
        self.syncs = 0
        self._files: dict[str, _Content] = {}
        self._directories: set[str] = {"", "/"}
        self._locked: set[str] = set()

    # Faults

    def crash(self) -> None:
        """Simulates a power loss: every file has the content of its last fsync. Handles must not be used again."""
        for content in self._files.values():
            content.data = bytearray(content.durable)
        self.kill()

    def kill(self) -> None:
        """Simulates the end of the process: all writes stay; locks and handles are released."""
        self._locked.clear()
        self.open_files = 0

    def fail(self, number: int | None, path: str) -> None:
        if number is not None:
            raise storage_failure(OSError(number, os.strerror(number)), path)

    def fail_sync(self, path: str) -> None:
        if self.sync_error is not None:
            raise sync_failure(OSError(self.sync_error, os.strerror(self.sync_error)), path)

    def allocate(self, size: int, path: str) -> int:
        """Returns how many of `size` bytes fit. Raises StorageFailure (ENOSPC) if none does."""
        if self.free_bytes is None:
            return size
        if size and not self.free_bytes:
            self.fail(errno.ENOSPC, path)
        allocated = min(size, self.free_bytes)
        self.free_bytes -= allocated
        return allocated

    def allocate_all(self, size: int, path: str) -> None:
        """Raises StorageFailure (ENOSPC), and allocates nothing, if `size` bytes do not fit."""
        if self.free_bytes is not None and size > self.free_bytes:
            self.fail(errno.ENOSPC, path)
        self.allocate(size, path)

    # The contract

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        content = self._files.get(path)
        if content is None:
            if not create:
                raise FileNotFoundError(path)
            self._require_directory(path)
            if self.free_bytes == 0:
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
        self.allocate_all(len(content), path)
        if sync:
            self.fail(self.sync_error, path)
        new = _Content()
        new.data = bytearray(content)
        new.durable = bytes(content)  # common file systems write out a file that is renamed over another
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
        paths = (*self._files, *self._directories)
        names = [os.path.basename(inside) for inside in paths if os.path.dirname(inside) == path and inside != path]
        return [name for name in names if name]

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
            for path in [file for file in self._files if file.startswith(source + "/")]:
                self._files[target + path[len(source) :]] = self._files.pop(path)
            for path in [path for path in self._directories if path == source or path.startswith(source + "/")]:
                self._directories.remove(path)
                self._directories.add(target + path[len(source) :])
        else:
            self.fail(errno.ENOENT, source)

    def remove(self, path: str) -> None:
        content = self._files.pop(path, None)
        if content is not None and self.free_bytes is not None:
            self.free_bytes += len(content.data)

    def remove_directory(self, path: str) -> None:
        if path not in self._directories:
            raise FileNotFoundError(path)
        for file in [file for file in self._files if file.startswith(path + "/")]:
            del self._files[file]
        self._directories = {
            directory for directory in self._directories if directory != path and not directory.startswith(path + "/")
        }

    def sync_directory(self, path: str) -> None:
        self.fail_sync(path)

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
    """Open file of a FaultyFileSystem, without a descriptor."""

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
        fitting = len(joined) - grown + filesystem.allocate(grown, self._path)
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
        if self._filesystem.free_bytes is not None:
            self._filesystem.free_bytes += max(len(data) - size, 0)
        del data[size:]
        data.extend(bytes(size - len(data)))

    def preallocate(self, size: int) -> None:
        data = self._content.data
        grown = max(size - len(data), 0)
        self._filesystem.allocate_all(grown, self._path)
        data.extend(bytes(grown))

    def sync(self) -> None:
        assert self._is_open
        self._filesystem.fail_sync(self._path)
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
