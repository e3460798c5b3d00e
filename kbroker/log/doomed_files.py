"""Files of segments that left their log, renamed but still there: somebody may read them, file.delete.delay.ms runs.

Decides when which of them may go; who removes them does so in a thread, for a large one can keep its disk busy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kbroker.log.file_cache import CachedFile

__all__ = ["DoomedFiles"]


class DoomedFiles:
    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Sequence[CachedFile]]] = deque()

    def add(self, due_ms: int, files: Sequence[CachedFile]) -> None:
        self._waiting.append((due_ms, files))

    @property
    def is_pinned(self) -> bool:
        return any(file.pins for _, files in self._waiting for file in files)

    def take(self, now_ms: int) -> list[str]:
        """The paths of those whose delay is over and that nobody reads, closed: the caller removes them, in this
        order. Those in use are taken when they no longer are."""
        waiting = self._waiting
        taken: list[str] = []
        in_use: list[tuple[int, Sequence[CachedFile]]] = []
        while waiting and waiting[0][0] <= now_ms:
            due_ms, files = waiting.popleft()
            pinned = [file for file in files if file.pins]
            if pinned:
                in_use.append((due_ms, pinned))
            for file in files:
                if not file.pins:
                    file.close()
                    taken.append(file.path)
        waiting.extendleft(reversed(in_use))
        return taken

    def unlink(self) -> None:
        """All of them, here and now: the log is closed. Blocks."""
        for _, files in self._waiting:
            for file in files:
                file.unlink()
        self._waiting.clear()

    def close(self) -> None:
        for _, files in self._waiting:
            for file in files:
                file.close()
