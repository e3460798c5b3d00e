"""Files of removed segments, renamed and waiting for file.delete.delay.ms and for the readers that have pinned them.

Decides when a file may be deleted. The caller deletes it, in a thread, because deleting a large file can take long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kbroker.log.files.file_cache import CachedFile

__all__ = ["PendingDeletes"]


class PendingDeletes:
    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Sequence[CachedFile]]] = deque()

    def add(self, due_ms: int, files: Sequence[CachedFile]) -> None:
        self._waiting.append((due_ms, files))

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def is_pinned(self) -> bool:
        return any(file.pins for _, files in self._waiting for file in files)

    def pop_due(self, now_ms: int) -> list[str]:
        """Closes and returns the files whose delay is over, for the caller to delete in this order.

        Pinned files stay, for a later call.
        """
        waiting = self._waiting
        deletable: list[str] = []
        in_use: list[tuple[int, Sequence[CachedFile]]] = []
        while waiting and waiting[0][0] <= now_ms:
            due_ms, files = waiting.popleft()
            pinned = [file for file in files if file.pins]
            if pinned:
                in_use.append((due_ms, pinned))
            for file in files:
                if not file.pins:
                    file.close()
                    deletable.append(file.path)
        waiting.extendleft(reversed(in_use))
        return deletable

    def unlink(self) -> None:
        """Deletes all files at once, because the log is closed. Blocks."""
        for _, files in self._waiting:
            for file in files:
                file.unlink()
        self._waiting.clear()

    def close(self) -> None:
        for _, files in self._waiting:
            for file in files:
                file.close()
