"""A file system that stops for good before a change that a test chooses."""

from __future__ import annotations

from kbroker.testing.faulty_filesystem import FaultyFile, FaultyFileSystem

__all__ = ["Crashed", "CrashingFileSystem"]


class Crashed(BaseException):
    """Neither the code under test nor a handler of errors may go on."""


class CrashingFileSystem(FaultyFileSystem):
    """Stops before its n-th change, and before every one after it."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0
        self.crash_at: int | None = None

    def change(self) -> None:
        self.changes += 1
        if self.crash_at is not None and self.changes >= self.crash_at:
            raise Crashed

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        if create:
            self.change()
        return super().open(path, create=create)

    def replace(self, path: str, content: bytes, *, sync: bool = True) -> None:
        self.change()
        super().replace(path, content, sync=sync)

    def rename(self, source: str, target: str) -> None:
        self.change()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self.change()
        super().remove(path)

    def make_directory(self, path: str) -> None:
        self.change()
        super().make_directory(path)

    def sync_directory(self, path: str) -> None:
        self.change()
        super().sync_directory(path)
