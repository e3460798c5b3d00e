"""The next wake-up of a group: never later than its first deadline, and requested only when it becomes earlier."""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.group.result import GroupResult, Now

__all__ = ["Alarm"]


class Alarm:
    __slots__ = ("_due_ms", "_is_to_set")

    def __init__(self) -> None:
        self._due_ms: int | None = None
        self._is_to_set = False

    def after(self, now: Now, wait_ms: int) -> int:
        """Returns the deadline `wait_ms` from now, and moves the alarm forward if that is earlier.

        Mostly a heartbeat moves a deadline back. The alarm then stays: `wake` finds nothing due and sets it again.
        """
        due = now.elapsed_ms + wait_ms
        if self._due_ms is None or due < self._due_ms:
            self._due_ms, self._is_to_set = due, True
        return due

    def put(self, group_id: str, result: GroupResult) -> None:
        """Adds the wake-up to a result if it has changed. Must be called before any result leaves the group."""
        if self._is_to_set and self._due_ms is not None:
            result.wakes.append((group_id, self._due_ms))
        self._is_to_set = False

    def is_due(self, now: Now) -> bool:
        return self._due_ms is not None and self._due_ms <= now.elapsed_ms

    def reset(self, deadlines: Iterable[int]) -> None:
        """Sets the alarm to the earliest of all deadlines of the group."""
        self._due_ms = min(deadlines, default=None)
        self._is_to_set = True
