"""The state of a shard that is in the log: groups, committed offsets, and offsets of open transactions.

Only replay changes it, so a restart rebuilds the same state. Never holds requests that wait or deadlines of members:
when a shard is unloaded they are lost, and members join again.
"""

from __future__ import annotations

from collections.abc import Iterable

from kbroker.group.consumer.consumer_records import (
    CURRENT_ASSIGNMENT,
    GROUP,
    MEMBER,
    REGULAR_EXPRESSION,
    TARGET_EPOCH,
    TARGET_MEMBER,
    read_key,
)
from kbroker.group.consumer.consumer_state import ConsumerGroupState
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
from kbroker.names import TopicPartition
from kbroker.protocol.keyed_batch import KeyAndValue

__all__ = ["HardState"]

_CONSUMER_GROUP_TYPES = frozenset(
    (GROUP, MEMBER, TARGET_EPOCH, TARGET_MEMBER, CURRENT_ASSIGNMENT, REGULAR_EXPRESSION),
)


class HardState:
    __slots__ = ("_open", "consumer_groups", "groups", "offsets", "pending")

    def __init__(self) -> None:
        self.groups: dict[str, StoredGroup] = {}
        self.consumer_groups: dict[str, ConsumerGroupState] = {}
        """A group is in `groups` or in `consumer_groups`, never in both."""
        self.offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        """Committed offsets by group id. A group without offsets has no entry."""
        self.pending: dict[int, dict[str, dict[TopicPartition, CommittedOffset | None]]] = {}
        """Offsets of open transactions, by producer id and group id. None: a later plain commit has replaced it."""
        self._open: dict[str, set[int]] = {}
        """Ids of producers with an open transaction, by group id."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, HardState):
            return NotImplemented
        return (
            self.groups == other.groups
            and self.consumer_groups == other.consumer_groups
            and self.offsets == other.offsets
            and self.pending == other.pending
        )

    __hash__ = None  # type: ignore[assignment]

    def __contains__(self, group_id: str) -> bool:
        return (
            group_id in self.groups
            or group_id in self.consumer_groups
            or group_id in self.offsets
            or group_id in self._open
        )

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Replays one record; ignores unknown types. Raises UnreadableRecord if it is malformed: nothing changes."""
        kind = record_type(key)
        if kind in (OFFSET_COMMIT, LEGACY_OFFSET_COMMIT):
            self._replay_offset(key, value)
        elif kind == GROUP_METADATA:
            self._replay_group(key, value)
        elif kind in _CONSUMER_GROUP_TYPES:
            self._replay_consumer_group(kind, key, value)

    def _replay_offset(self, key: bytes, value: bytes | None) -> None:
        group_id, topic, partition = read_offset_key(key)
        if group_id in self._open:
            self._supersede(group_id, (topic, partition), is_deleted=value is None)
        offsets = self.offsets.get(group_id)
        if value is not None:
            committed = read_offset_value(value)
            if offsets is None:
                offsets = self.offsets[group_id] = {}
            offsets[topic, partition] = committed
        elif offsets is not None and offsets.pop((topic, partition), None) is not None and not offsets:
            del self.offsets[group_id]

    # Transactions

    def replay_pending(self, producer_id: int, records: Iterable[KeyAndValue]) -> None:
        """Replays offsets of a transaction: they take effect when it commits."""
        for key, value in records:
            if value is None or record_type(key) not in (OFFSET_COMMIT, LEGACY_OFFSET_COMMIT):
                continue
            group_id, topic, partition = read_offset_key(key)
            committed = read_offset_value(value)
            self.pending.setdefault(producer_id, {}).setdefault(group_id, {})[topic, partition] = committed
            self._open.setdefault(group_id, set()).add(producer_id)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        for group_id, ended in self.pending.pop(producer_id, {}).items():
            producers = self._open[group_id]
            producers.discard(producer_id)
            if not producers:
                del self._open[group_id]
            committed = {key: value for key, value in ended.items() if value is not None}
            if is_commit and committed:
                self.offsets.setdefault(group_id, {}).update(committed)

    def pending_partitions(self, group_id: str) -> set[TopicPartition]:
        return {key for producer_id in self._open.get(group_id, ()) for key in self.pending[producer_id][group_id]}

    @property
    def open_groups(self) -> Iterable[str]:
        return self._open

    def _supersede(self, group_id: str, partition: TopicPartition, *, is_deleted: bool) -> None:
        """Drops an offset from open transactions. A plain commit that is later in the log wins over them."""
        for producer_id in self._open[group_id]:
            pending = self.pending[producer_id][group_id]
            if partition in pending:
                if is_deleted:
                    del pending[partition]
                else:
                    pending[partition] = None

    def _replay_group(self, key: bytes, value: bytes | None) -> None:
        group_id = read_group_key(key)
        if value is None:
            self.groups.pop(group_id, None)
        else:
            self.groups[group_id] = read_group_value(value)
            self.consumer_groups.pop(group_id, None)

    def _replay_consumer_group(self, kind: int, key: bytes, value: bytes | None) -> None:
        group_id, second = read_key(key)
        state = self.consumer_groups.get(group_id)
        if value is None:
            if state is not None and kind == GROUP:
                del self.consumer_groups[group_id]
            elif state is not None:
                state.replay(kind, second, None)
            return
        replayed = ConsumerGroupState() if state is None else state
        replayed.replay(kind, second, value)  # may raise: a new group is stored only after that
        if state is None:
            self.consumer_groups[group_id] = replayed
            self.groups.pop(group_id, None)
