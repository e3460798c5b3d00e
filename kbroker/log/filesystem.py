"""The seam to the operating system's files: a protocol, and the real one. Nothing else in this package calls `os`.

Whatever the disk refuses leaves here as StorageFailure, save a missing file, which is FileNotFoundError. Writing where
the directory is gone is a StorageFailure.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Sequence
from typing import Final, Protocol

from kbroker.errors import StorageFailure
from kbroker.protocol.record_batch import ReadBuffer

__all__ = ["DirectoryLock", "File", "FileSystem", "OsFile", "OsFileSystem", "storage_failure"]

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_IOV_MAX: Final = 1024  # Linux and macOS alike


def storage_failure(error: OSError, path: str) -> StorageFailure:
    return StorageFailure(f"{path}: {error.strerror or error}", is_full=error.errno in FULL)


class File(Protocol):
    """One open file. `fd` is -1 where there is no descriptor to give to sendfile."""

    @property
    def fd(self) -> int: ...
    def write_at(self, buffers: Sequence[ReadBuffer], position: int) -> int:
        """Like pwritev: may write less than asked, and says how much."""
        ...

    def read_at(self, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only where the file ends."""
        ...

    def size(self) -> int: ...
    def truncate(self, size: int) -> None: ...
    def preallocate(self, size: int) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class DirectoryLock(Protocol):
    def release(self) -> None: ...


class FileSystem(Protocol):
    def open(self, path: str, *, create: bool = False) -> File: ...
    def read(self, path: str) -> bytes: ...
    def replace(self, path: str, content: bytes, *, sync: bool = True) -> None:
        """Whole content or the old one, never a mixture: written beside the file and renamed over it."""
        ...

    def exists(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...
    def modified_ms(self, path: str) -> int: ...
    def set_modified_ms(self, path: str, modified_ms: int) -> None: ...
    def list_names(self, path: str) -> list[str]: ...
    def list_directories(self, path: str) -> list[str]: ...
    def make_directory(self, path: str) -> None: ...
    def rename(self, source: str, target: str) -> None: ...
    def remove(self, path: str) -> None:
        """Removing what is not there is no error."""
        ...

    def remove_directory(self, path: str) -> None:
        """With everything in it."""
        ...

    def sync_directory(self, path: str) -> None: ...
    def sync_all(self) -> None:
        """Everything that was ever written: cheaper than one fsync for each of very many files."""
        ...

    def lock(self, path: str) -> DirectoryLock | None:
        """None if somebody else holds it."""
        ...


class _Refusals:
    """Within it an OSError turns into StorageFailure. A class, for a generator would cost three times as much."""

    __slots__ = ("_is_write", "_path")

    def __init__(self, path: str, *, is_write: bool = False) -> None:
        self._path = path
        self._is_write = is_write

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError) and (self._is_write or not isinstance(error, FileNotFoundError)):
            raise storage_failure(error, self._path) from error


class OsFile:
    __slots__ = ("fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path

    def write_at(self, buffers: Sequence[ReadBuffer], position: int) -> int:
        try:
            if len(buffers) == 1:
                return os.pwrite(self.fd, buffers[0], position)
            return os.pwritev(self.fd, buffers if len(buffers) <= _IOV_MAX else buffers[:_IOV_MAX], position)
        except OSError as error:
            raise storage_failure(error, self.path) from error

    def read_at(self, size: int, position: int) -> bytes:
        try:
            data = os.pread(self.fd, size, position)
            if len(data) == size or not data:
                return data
            parts = [data]
            missing = size - len(data)
            while missing and (data := os.pread(self.fd, missing, position + size - missing)):
                parts.append(data)
                missing -= len(data)
            return b"".join(parts)
        except OSError as error:
            raise storage_failure(error, self.path) from error

    def size(self) -> int:
        with _Refusals(self.path):
            return os.fstat(self.fd).st_size

    def truncate(self, size: int) -> None:
        with _Refusals(self.path):
            os.ftruncate(self.fd, size)

    def preallocate(self, size: int) -> None:
        if hasattr(os, "posix_fallocate"):
            with _Refusals(self.path):
                os.posix_fallocate(self.fd, 0, size)

    def sync(self) -> None:
        with _Refusals(self.path):
            os.fsync(self.fd)

    def close(self) -> None:
        with _Refusals(self.path):
            os.close(self.fd)


class _OsLock:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsFileSystem:
    __slots__ = ()

    def open(self, path: str, *, create: bool = False) -> OsFile:
        with _Refusals(path, is_write=create):
            return OsFile(os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644), path)

    def read(self, path: str) -> bytes:
        file = self.open_to_read(path)
        try:
            return file.read_at(file.size(), 0)
        finally:
            file.close()

    def open_to_read(self, path: str) -> OsFile:
        with _Refusals(path):
            return OsFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)

    def replace(self, path: str, content: bytes, *, sync: bool = True) -> None:
        beside = path + ".tmp"
        with _Refusals(path, is_write=True):
            fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                done = 0
                while done < len(content):
                    done += os.write(fd, content[done:])
                if sync:
                    os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(beside, path)
        if sync:
            self.sync_directory(os.path.dirname(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        with _Refusals(path):
            return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        with _Refusals(path):
            return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        with _Refusals(path, is_write=True):
            os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def list_names(self, path: str) -> list[str]:
        with _Refusals(path):
            return os.listdir(path)

    def list_directories(self, path: str) -> list[str]:
        with _Refusals(path), os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def make_directory(self, path: str) -> None:
        with _Refusals(path):
            os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        with _Refusals(source, is_write=True):
            os.replace(source, target)

    def remove(self, path: str) -> None:
        with _Refusals(path), contextlib.suppress(FileNotFoundError):
            os.remove(path)

    def remove_directory(self, path: str) -> None:
        for name in self.list_directories(path):
            self.remove_directory(f"{path}/{name}")
        for name in self.list_names(path):
            self.remove(f"{path}/{name}")
        with _Refusals(path):
            os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        with _Refusals(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def sync_all(self) -> None:
        os.sync()

    def lock(self, path: str) -> _OsLock | None:
        with _Refusals(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            return _OsLock(fd)
