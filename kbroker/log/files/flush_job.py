"""Fsync of a log's files: created on the loop, run in a thread, completed on the loop. Knows no state of a log."""

from __future__ import annotations

import contextlib

from kbroker.log.files.file_cache import CachedFile
from kbroker.log.files.filesystem import FileSystem

__all__ = ["FlushJob"]


class FlushJob:
    __slots__ = ("_directory", "_filesystem", "_indexes", "_logs", "is_done", "truncations", "up_to_offset")

    def __init__(
        self,
        filesystem: FileSystem,
        logs: list[CachedFile],
        indexes: list[str],
        *,
        directory: str | None,
        up_to_offset: int,
        truncations: int,
    ) -> None:
        for file in logs:
            file.pin()
        self._filesystem = filesystem
        self._logs = logs
        self._indexes = indexes
        self._directory = directory  # None if no file was created since the last flush
        self.up_to_offset = up_to_offset
        self.truncations = truncations
        self.is_done = False

    def run(self) -> None:
        """Fsyncs all files. Blocks. Never retried after StorageFailure: the kernel may have dropped the dirty pages."""
        for path in self._indexes:
            try:
                file = self._filesystem.open(path)
            except FileNotFoundError:
                continue  # its segment has been deleted
            try:
                file.sync()
            finally:
                file.close()
        for log in self._logs:
            assert log.handle is not None
            log.handle.sync()
        if self._directory is not None:
            with contextlib.suppress(FileNotFoundError):  # renamed: its topic has been deleted
                self._filesystem.sync_directory(self._directory)
        self.is_done = True

    def release(self) -> None:
        for file in self._logs:
            file.release()
        self._logs = []
