"""What the log says: groups and committed offsets. Changed by `replay` alone, so a restart rebuilds exactly this.

Never holds who is joining right now: that is lost with a shard, and members come again.
"""

from __future__ import annotations

from kbroker.group.records import (
    GROUP_METADATA,
    LEGACY_OFFSET_COMMIT,
    OFFSET_COMMIT,
    CommittedOffset,
    StoredGroup,
    read_group_key,
    read_group_value,
    read_offset_key,
    read_offset_value,
    record_type,
)

__all__ = ["HardState", "TopicPartition"]

TopicPartition = tuple[str, int]


class HardState:
    __slots__ = ("groups", "offsets")

    def __init__(self) -> None:
        self.groups: dict[str, StoredGroup] = {}
        self.offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        """By group. A group without offsets has no entry."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HardState):
            return NotImplemented
        return self.groups == other.groups and self.offsets == other.offsets

    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, group_id: str) -> bool:
        return group_id in self.groups or group_id in self.offsets

    def replay(self, key: bytes, value: bytes | None) -> None:
        """One record. Types that belong to others are passed over; UnreadableRecord: nothing changed."""
        kind = record_type(key)
        if kind in (OFFSET_COMMIT, LEGACY_OFFSET_COMMIT):
            self._replay_offset(key, value)
        elif kind == GROUP_METADATA:
            self._replay_group(key, value)

    def _replay_offset(self, key: bytes, value: bytes | None) -> None:
        group_id, topic, partition = read_offset_key(key)
        offsets = self.offsets.get(group_id)
        if value is not None:
            committed = read_offset_value(value)
            if offsets is None:
                offsets = self.offsets[group_id] = {}
            offsets[topic, partition] = committed
        elif offsets is not None and offsets.pop((topic, partition), None) is not None and not offsets:
            del self.offsets[group_id]

    def _replay_group(self, key: bytes, value: bytes | None) -> None:
        group_id = read_group_key(key)
        if value is None:
            self.groups.pop(group_id, None)
        else:
            self.groups[group_id] = read_group_value(value)
