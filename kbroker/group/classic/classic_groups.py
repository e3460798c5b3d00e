"""The classic groups of a shard that have soft state; the others exist only in the log."""

from __future__ import annotations

from collections.abc import Iterator

from kbroker.group.classic.classic_group import ClassicGroup
from kbroker.group.hard_state import HardState
from kbroker.group.records import StoredGroup
from kbroker.group.result import GroupCoordinatorConfig

__all__ = ["ClassicGroups"]

_NO_RECORD = StoredGroup()


class ClassicGroups:
    def __init__(self, hard: HardState, config: GroupCoordinatorConfig) -> None:
        self._hard = hard
        self._config = config
        self._groups: dict[str, ClassicGroup] = {}
        self.get = self._groups.get
        """Returns a group that has soft state, else None. Bound once, because every heartbeat calls it."""

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._groups

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def load(self, group_id: str) -> ClassicGroup:
        """Returns a new group as the log has it, empty if the log has no record of it."""
        return ClassicGroup(group_id, self._config, self._hard.groups.get(group_id, _NO_RECORD))

    def get_or_load(self, group_id: str) -> ClassicGroup:
        return self._groups.get(group_id) or self.load(group_id)

    def keep(self, group: ClassicGroup) -> None:
        """Keeps a group as soft state, or drops it if the log holds everything about it."""
        if group.is_idle:
            self._groups.pop(group.group_id, None)
        else:
            self._groups[group.group_id] = group

    def pop(self, group_id: str) -> ClassicGroup | None:
        return self._groups.pop(group_id, None)

    def clear(self) -> list[ClassicGroup]:
        """Drops all groups, and returns them."""
        groups = list(self._groups.values())
        self._groups.clear()
        return groups
