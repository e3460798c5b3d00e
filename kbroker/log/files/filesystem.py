"""File system as a protocol, and the one of the operating system. Nothing else in this package calls `os`.

Errors are raised as StorageFailure, except FileNotFoundError for reading a missing file. Writing into a missing
directory raises StorageFailure.
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

__all__ = ["DirectoryLock", "File", "FileSystem", "OsFile", "OsFileSystem", "storage_failure", "sync_failure"]

FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_IOV_MAX: Final = 1024  # of Linux and macOS


def storage_failure(error: OSError, path: str) -> StorageFailure:
    return StorageFailure(f"{path}: {error.strerror or error}", is_full=error.errno in FULL)


def sync_failure(error: OSError, path: str) -> StorageFailure:
    """Returns the failure of an fsync. Never "full": the kernel may have dropped the data, so a retry is no proof."""
    return StorageFailure(f"{path}: {error.strerror or error}")


class File(Protocol):
    """Open file. `fd` is -1 if there is no descriptor for sendfile."""

    @property
    def fd(self) -> int: ...
    def write_at(self, buffers: Sequence[ReadBuffer], position: int) -> int:
        """Writes like pwritev: returns the number of bytes written, which may be less than all."""
        ...

    def read_at(self, size: int, position: int) -> bytes:
        """Returns `size` bytes; fewer only at the end of the file."""
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
        """Replaces a file atomically: writes another file and renames it. `sync`: durable on return."""
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
        """Deletes a file. A missing file is not an error."""
        ...

    def remove_directory(self, path: str) -> None:
        """Deletes a directory with all its files."""
        ...

    def sync_directory(self, path: str) -> None: ...
    def sync_all(self) -> None:
        """Starts and awaits all writes, but reports no failure: only the fsync of a file does, which is then cheap."""
        ...

    def lock(self, path: str) -> DirectoryLock | None:
        """Returns the lock; None if another process holds it."""
        ...


class _StorageErrors:
    """Context manager that converts OSError to StorageFailure. A class: a generator would take three times as long."""

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
        with _StorageErrors(self.path):
            return os.fstat(self.fd).st_size

    def truncate(self, size: int) -> None:
        with _StorageErrors(self.path):
            os.ftruncate(self.fd, size)

    def preallocate(self, size: int) -> None:
        if hasattr(os, "posix_fallocate"):
            with _StorageErrors(self.path):
                os.posix_fallocate(self.fd, 0, size)

    def sync(self) -> None:
        try:
            os.fsync(self.fd)
        except OSError as error:
            raise sync_failure(error, self.path) from error

    def close(self) -> None:
        with _StorageErrors(self.path):
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
        with _StorageErrors(path, is_write=create):
            return OsFile(os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644), path)

    def read(self, path: str) -> bytes:
        file = self.open_to_read(path)
        try:
            return file.read_at(file.size(), 0)
        finally:
            file.close()

    def open_to_read(self, path: str) -> OsFile:
        with _StorageErrors(path):
            return OsFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path)

    def replace(self, path: str, content: bytes, *, sync: bool = True) -> None:
        temporary = path + ".tmp"
        with _StorageErrors(path, is_write=True):
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                try:
                    done = 0
                    while done < len(content):
                        done += os.write(fd, content[done:])
                    if sync:
                        os.fsync(fd)
                finally:
                    os.close(fd)
                os.replace(temporary, path)
            except OSError:
                with contextlib.suppress(OSError):
                    os.remove(temporary)  # on a full disk its bytes are needed
                raise
        if sync:
            self.sync_directory(os.path.dirname(path))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        with _StorageErrors(path):
            return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        with _StorageErrors(path):
            return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        with _StorageErrors(path, is_write=True):
            os.utime(path, ns=(modified_ms * 1_000_000, modified_ms * 1_000_000))

    def list_names(self, path: str) -> list[str]:
        with _StorageErrors(path):
            return os.listdir(path)

    def list_directories(self, path: str) -> list[str]:
        with _StorageErrors(path), os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def make_directory(self, path: str) -> None:
        with _StorageErrors(path, is_write=True):
            os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        with _StorageErrors(source, is_write=True):
            os.replace(source, target)

    def remove(self, path: str) -> None:
        with _StorageErrors(path), contextlib.suppress(FileNotFoundError):
            os.remove(path)

    def remove_directory(self, path: str) -> None:
        for name in self.list_directories(path):
            self.remove_directory(f"{path}/{name}")
        for name in self.list_names(path):
            self.remove(f"{path}/{name}")
        with _StorageErrors(path):
            os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        with _StorageErrors(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            raise sync_failure(error, path) from error
        finally:
            os.close(fd)

    def sync_all(self) -> None:
        os.sync()

    def lock(self, path: str) -> _OsLock | None:
        with _StorageErrors(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                return None
            return _OsLock(fd)
