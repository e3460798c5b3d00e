"""File system that crashes before the n-th change, and whose power loss restores names that were removed since the last
fsync of their directory."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kbroker.protocol.record_batch import ReadBuffer
from kbroker.testing.faulty_filesystem import FaultyFile, FaultyFileSystem

__all__ = ["Crashed", "CrashingFileSystem"]


class Crashed(BaseException):
    """Ends the test run of the code; not an Exception, so that no error handler catches it."""


class CrashingFileSystem(FaultyFileSystem):
    """Raises Crashed before change number `crash_at` and all later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0
        self.crash_at: int | None = None
        self._removed: dict[str, bytes] = {}

    def change(self) -> None:
        self.changes += 1
        if self.crash_at is not None and self.changes >= self.crash_at:
            raise Crashed

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        if create:
            self.change()
        return _CrashingFile(self, path, super().open(path, create=create))

    def replace(self, path: str, content: bytes, *, sync: bool = True) -> None:
        self.change()
        super().replace(path, content, sync=sync)
        self._removed.pop(path, None)
        if sync:
            self._make_durable(os.path.dirname(path))

    def rename(self, source: str, target: str) -> None:
        self.change()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self.change()
        if path in self._files:
            self._removed[path] = self._files[path].durable
        super().remove(path)

    def make_directory(self, path: str) -> None:
        self.change()
        super().make_directory(path)

    def sync_directory(self, path: str) -> None:
        self.change()
        super().sync_directory(path)
        self._make_durable(path)

    def _make_durable(self, directory: str) -> None:
        for path in [path for path in self._removed if os.path.dirname(path) == directory]:
            del self._removed[path]

    def crash(self, *, kept: float = 0.0) -> None:
        """Simulates a power loss. `kept`: fraction of the bytes added since the last fsync that each file keeps."""
        for path, content in self._removed.items():
            if path not in self._files and os.path.dirname(path) in self._directories:
                super().replace(path, content)
        self._removed.clear()
        for file in self._files.values():
            new = max(len(file.data) - len(file.durable), 0)
            file.durable += bytes(file.data[len(file.durable) : len(file.durable) + int(new * kept)])
        super().crash()


class _CrashingFile(FaultyFile):
    __slots__ = ("_crashing",)

    def __init__(self, filesystem: CrashingFileSystem, path: str, file: FaultyFile) -> None:
        super().__init__(filesystem, path, file._content)
        self._crashing = filesystem

    def write_at(self, buffers: Sequence[ReadBuffer], position: int) -> int:
        self._crashing.change()
        return super().write_at(buffers, position)

    def truncate(self, size: int) -> None:
        self._crashing.change()
        super().truncate(size)

    def sync(self) -> None:
        self._crashing.change()
        super().sync()
