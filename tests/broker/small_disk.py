"""A real file system of some megabytes: a tmpfs in a mount namespace, which a holder process keeps alive."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["SmallDisk", "small_disk"]

_HOLD = 'mount -t tmpfs -o "size=$1" tmpfs "$2" && echo mounted && exec cat'


class SmallDisk:
    def __init__(self, holder: int, mount_point: Path) -> None:
        self.path = mount_point
        """Path of the disk for processes in the namespace."""
        self.within = ("nsenter", f"--target={holder}", "--user", "--mount", "--preserve-credentials", "--")
        self._outside = Path(f"/proc/{holder}/root{mount_point}")

    @property
    def free_bytes(self) -> int:
        status = os.statvfs(self._outside)
        return status.f_bavail * status.f_frsize

    def fill(self, name: str, *, leave_bytes: int = 0) -> None:
        """Takes the free bytes, as another process on the same disk would."""
        with (self._outside / name).open("wb", buffering=0) as file:
            while (size := self.free_bytes - leave_bytes) > 0:
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)

    def remove(self, name: str) -> None:
        (self._outside / name).unlink()

    def names(self, pattern: str) -> list[str]:
        return sorted(path.name for path in self._outside.glob(pattern))


@contextmanager
def small_disk(mount_point: Path, size_bytes: int) -> Iterator[SmallDisk]:
    """Skips the test on a machine without user namespaces."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("needs unshare and nsenter")
    mount_point.mkdir(parents=True)
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _HOLD, "sh", str(size_bytes)]
    with subprocess.Popen(
        [*command, str(mount_point)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        try:
            if holder.stdout.readline() != b"mounted\n":
                pytest.skip("needs permission to mount a tmpfs in a user namespace")
            yield SmallDisk(holder.pid, mount_point)
        finally:
            holder.stdin.close()
            holder.wait()
