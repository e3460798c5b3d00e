"""Real file system that a test can make full, broken, or slow in its fsyncs."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence

from kbroker.log.files.filesystem import OsFile, OsFileSystem, storage_failure, sync_failure
from kbroker.protocol.record_batch import ReadBuffer

__all__ = ["FailingDisk"]


class FailingDisk(OsFileSystem):
    def __init__(self) -> None:
        self.is_full = False
        self.write_error: int | None = None
        self.sync_error: int | None = None
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.log_syncs = 0
        self.removers: set[threading.Thread] = set()

    def open(self, path: str, *, create: bool = False) -> OsFile:
        if create and not os.path.exists(path):
            self.refuse_write(path)
        return _FailingFile(super().open(path, create=create), self)

    def replace(self, path: str, content: bytes, *, sync: bool = True) -> None:
        self.refuse_write(path)
        super().replace(path, content, sync=sync)

    def make_directory(self, path: str) -> None:
        self.refuse_write(path)
        super().make_directory(path)

    def remove(self, path: str) -> None:
        if path.endswith(".deleted"):
            self.removers.add(threading.current_thread())
        super().remove(path)

    def refuse_write(self, path: str) -> None:
        number = errno.ENOSPC if self.is_full else self.write_error
        if number is not None:
            raise storage_failure(OSError(number, os.strerror(number)), path)


class _FailingFile(OsFile):
    __slots__ = ("_disk",)

    def __init__(self, file: OsFile, disk: FailingDisk) -> None:
        super().__init__(file.fd, file.path)
        self._disk = disk

    def write_at(self, buffers: Sequence[ReadBuffer], position: int) -> int:
        disk = self._disk
        if disk.is_full and sum(map(len, buffers)) > 1:
            # The last free bytes: a short write, then the error.
            super().write_at([memoryview(buffers[0])[:1]], position)
        disk.refuse_write(self.path)
        return super().write_at(buffers, position)

    def preallocate(self, size: int) -> None:
        self._disk.refuse_write(self.path)
        super().preallocate(size)

    def sync(self) -> None:
        disk = self._disk
        if self.path.endswith(".log"):
            disk.may_sync.wait()
            disk.log_syncs += 1
            if disk.sync_error is not None:
                raise sync_failure(OSError(disk.sync_error, os.strerror(disk.sync_error)), self.path)
        super().sync()
