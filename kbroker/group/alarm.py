"""The one wake-up of a group: never later than its first deadline, and asked for only if it has become earlier."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.group.step import Now, Step

__all__ = ["Alarm"]


class Alarm:
    __slots__ = ("_due_ms", "_is_to_set")

    def __init__(self) -> None:
        self._due_ms: int | None = None
        self._is_to_set = False

    def after(self, now: Now, wait_ms: int) -> int:
        """When that will be. Mostly moves a deadline further off: the wake-up that comes too early finds out."""
        due = now.elapsed_ms + wait_ms
        if self._due_ms is None or due < self._due_ms:
            self._due_ms, self._is_to_set = due, True
        return due

    def put(self, group_id: str, step: Step) -> None:
        """Before a step leaves."""
        if self._is_to_set and self._due_ms is not None:
            step.wakes.append((group_id, self._due_ms))
        self._is_to_set = False

    def is_due(self, now: Now) -> bool:
        return self._due_ms is not None and self._due_ms <= now.elapsed_ms

    def reset(self, deadlines: Iterable[int]) -> None:
        self._due_ms = min(deadlines, default=None)
        self._is_to_set = True
