"""Committed offsets of the groups of one shard: commits, fetches, deletion and expiry.

Changes nothing itself: returns the records to append, which `HardState.replay` then applies.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.errors import Refusal
from kbroker.group.classic.classic_group import ClassicGroup
from kbroker.group.classic.classic_groups import ClassicGroups
from kbroker.group.classic.states import GroupState
from kbroker.group.classic.subscriptions import CONSUMER
from kbroker.group.consumer.classic_members import check_commit
from kbroker.group.consumer.consumer_state import ConsumerGroupState, Draft
from kbroker.group.hard_state import HardState
from kbroker.group.records import NO_TIMESTAMP, CommittedOffset, group_tombstone, offset_record, offset_tombstone
from kbroker.group.result import GroupCoordinatorConfig, Now
from kbroker.names import TopicPartition
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.keyed_batch import KeyAndValue

__all__ = ["GroupOffsets"]

_EPOCHS_SINCE = 9  # the first version of OffsetCommit that members of the consumer protocol may send
_LATEST = (1 << 63) - 1  # the last timestamp that a record can have
_NO_OFFSETS: dict[TopicPartition, CommittedOffset] = {}

_RecordsAndRefused = tuple[list[KeyAndValue], dict[TopicPartition, ErrorCode]]
"""Records to append, and partitions that are refused with their errors."""


class GroupOffsets:
    def __init__(self, hard: HardState, classic: ClassicGroups, config: GroupCoordinatorConfig) -> None:
        self._hard = hard
        self._classic = classic
        self._config = config

    # Commits

    def commit(self, body: Any, version: int, now: Now) -> _RecordsAndRefused:
        """Handles an OffsetCommit. Raises Refusal if the member may not commit."""
        group_id, generation = body.group_id, body.generation_id_or_member_epoch
        group = self._classic.get(group_id)
        state = self._hard.consumer_groups.get(group_id)
        if state is not None:
            code = check_commit(state, body.member_id, epoch=generation, version=version)
        elif group is not None:
            code = group.validate_commit(body.member_id, body.group_instance_id, generation)
            group.touch(body.member_id, now)
        elif generation < 0:
            code = ErrorCode.NONE
        elif group_id in self._hard:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        else:
            code = ErrorCode.GROUP_ID_NOT_FOUND if version >= _EPOCHS_SINCE else ErrorCode.ILLEGAL_GENERATION
        if code:
            raise Refusal(code)
        return _commit_records(body, now, self._config.offset_metadata_max_bytes)

    def commit_in_transaction(self, body: Any, now: Now) -> _RecordsAndRefused:
        """Handles a TxnOffsetCommit, like `commit`. A request that names no member (before v3) is not validated."""
        group_id, generation, member_id = body.group_id, body.generation_id, body.member_id
        group = self._classic.get(group_id)
        state = self._hard.consumer_groups.get(group_id)
        if generation < 0 and not member_id and body.group_instance_id is None:
            code = ErrorCode.NONE
        elif state is not None:
            code = check_commit(state, member_id, epoch=generation, version=_EPOCHS_SINCE)
            if code == ErrorCode.STALE_MEMBER_EPOCH:
                code = ErrorCode.ILLEGAL_GENERATION
        elif group is not None:
            code = group.validate_commit(member_id, body.group_instance_id, generation)
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                code = ErrorCode.NONE  # the generation is right, and the transaction must end before the assignment
            group.touch(member_id, now)
        elif generation < 0:
            code = ErrorCode.NONE
        else:
            code = ErrorCode.UNKNOWN_MEMBER_ID if group_id in self._hard else ErrorCode.ILLEGAL_GENERATION
        if code:
            raise Refusal(code)
        return _commit_records(body, now, self._config.offset_metadata_max_bytes)

    # Fetches

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """Validates the member of a consumer group. Raises Refusal if it is unknown or has another epoch."""
        state = self._hard.consumer_groups.get(group_id)
        if state is None or (member_id is None and epoch < 0):
            return
        member = state.members.get(member_id or "")
        if member is None:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)
        if epoch != state.current(member_id or "").epoch:
            is_classic = member.classic is not None
            raise Refusal(ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH)

    def committed(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        return self._hard.offsets.get(group_id, _NO_OFFSETS)

    def unstable_partitions(self, group_id: str) -> set[TopicPartition]:
        """Returns the partitions whose offsets an open transaction may still change."""
        return self._hard.pending_partitions(group_id)

    # Deletion

    def delete(self, group_id: str, partitions: Iterable[TopicPartition]) -> _RecordsAndRefused:
        """Handles an OffsetDelete. Raises Refusal if the group is unknown, or has members that are not consumers."""
        if group_id not in self._classic and group_id not in self._hard:
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND)
        state = self._hard.consumer_groups.get(group_id)
        if state is not None:
            subscribed: frozenset[str] | None = state.subscribed_topics()
        else:
            group = self._classic.get_or_load(group_id)
            if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER:
                raise Refusal(ErrorCode.NON_EMPTY_GROUP)
            subscribed = _subscribed_topics(group)
        committed = self.committed(group_id)
        records: list[KeyAndValue] = []
        refused: dict[TopicPartition, ErrorCode] = {}
        for topic, partition in partitions:
            if subscribed is None or topic in subscribed:
                refused[topic, partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif (topic, partition) in committed:
                records.append(offset_tombstone(group_id, topic, partition))
        return records, refused

    def delete_all(self, group_id: str) -> list[KeyAndValue]:
        """Returns the tombstones of all offsets, also of those in open transactions."""
        partitions = self._hard.pending_partitions(group_id).union(self.committed(group_id))
        return [offset_tombstone(group_id, topic, partition) for topic, partition in partitions]

    def remove_topics(self, group_id: str, topics: frozenset[str]) -> list[KeyAndValue]:
        """Returns the tombstones of deleted topics: a new topic of the same name must not inherit the offsets."""
        return [
            offset_tombstone(group_id, topic, partition)
            for topic, partition in self._hard.pending_partitions(group_id).union(self.committed(group_id))
            if topic in topics
        ]

    # Expiry

    def expire(self, group_id: str, now: Now) -> list[KeyAndValue]:
        """Returns tombstones of expired offsets, and of the group if it is empty and no offsets are left.

        Offsets expire in an empty group, and in other groups if no member subscribes to the topic.
        """
        state = self._hard.consumer_groups.get(group_id)
        if state is not None:
            return self._expire_consumer_group(group_id, state, now)
        group = self._classic.get_or_load(group_id)
        subscribed = _subscribed_topics(group)
        empty_since_ms: int | None = None
        if group.state is GroupState.EMPTY:
            if group.protocol_type and group.state_timestamp >= 0:
                empty_since_ms = group.state_timestamp
        elif group.state is not GroupState.STABLE or group.protocol_type != CONSUMER or subscribed is None:
            return []
        records, is_all = self._expired(group_id, subscribed or frozenset(), empty_since_ms, now)
        if is_all and group.is_idle and group_id in self._hard:
            records.append(group_tombstone(group_id))
        return records

    def _expire_consumer_group(self, group_id: str, state: ConsumerGroupState, now: Now) -> list[KeyAndValue]:
        records, is_all = self._expired(group_id, state.subscribed_topics(), None, now)
        if is_all and not state.members:
            Draft(group_id, state, records).remove_group()
        return records

    def _expired(
        self, group_id: str, subscribed: frozenset[str], empty_since_ms: int | None, now: Now
    ) -> tuple[list[KeyAndValue], bool]:
        """Returns tombstones, and whether no offsets are left after them."""
        committed, unstable = self.committed(group_id), self.unstable_partitions(group_id)
        retention_ms = self._config.offsets_retention_ms
        records = [
            offset_tombstone(group_id, topic, partition)
            for (topic, partition), offset in committed.items()
            if topic not in subscribed
            and _is_expired(offset, empty_since_ms, now.wall_ms, retention_ms)
            and (topic, partition) not in unstable
        ]
        return records, len(records) == len(committed) and not unstable


def _commit_records(body: Any, now: Now, metadata_max_bytes: int) -> _RecordsAndRefused:
    group_id = body.group_id
    now_ms = now.wall_ms
    retention_ms = getattr(body, "retention_time_ms", NO_TIMESTAMP)  # v2 to v4
    expire_timestamp = NO_TIMESTAMP if retention_ms < 0 else min(now_ms + retention_ms, _LATEST)
    records: list[KeyAndValue] = []
    refused: dict[TopicPartition, ErrorCode] = {}
    for topic in body.topics:
        name = topic.name
        for partition in topic.partitions:
            metadata = partition.committed_metadata or ""
            if len(metadata) > metadata_max_bytes:
                refused[name, partition.partition_index] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            commit_timestamp = getattr(partition, "commit_timestamp", NO_TIMESTAMP)  # v1
            committed = (
                partition.committed_offset,
                partition.committed_leader_epoch,
                metadata,
                now_ms if commit_timestamp < 0 else commit_timestamp,
                expire_timestamp,
            )
            records.append(offset_record(group_id, name, partition.partition_index, committed))
    return records, refused


def _is_expired(committed: CommittedOffset, empty_since_ms: int | None, now_ms: int, retention_ms: int) -> bool:
    """Whether an offset has expired: by its own expiry time (commits of v2 to v4), else by offsets.retention.minutes.

    The retention counts from the time at which the group became empty, or if that is None, from the commit.
    """
    commit_timestamp, expire_timestamp = committed[3], committed[4]
    if expire_timestamp != NO_TIMESTAMP:
        return now_ms >= expire_timestamp
    return now_ms - (commit_timestamp if empty_since_ms is None else empty_since_ms) >= retention_ms


def _subscribed_topics(group: ClassicGroup) -> frozenset[str] | None:
    """Returns None if the members' metadata is not in Kafka's format: then they may read any topic."""
    if group.state is GroupState.EMPTY or group.protocol_type != CONSUMER:
        return frozenset()
    return group.subscribed_topics()
