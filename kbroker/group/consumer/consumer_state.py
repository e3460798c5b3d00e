"""A consumer group as the log has it: members, target and current assignments, and data derived from them.

Only replay changes it. A request works on a Draft, a copy that collects a record for every change, so that later parts
of the request see the earlier changes. The draft is then dropped: the state changes when its records are replayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import Enum

from kbroker.group.consumer import consumer_records as records
from kbroker.group.consumer.consumer_records import (
    NOTHING,
    Assignment,
    ConsumerMember,
    CurrentAssignment,
    ResolvedPattern,
)
from kbroker.protocol.keyed_batch import KeyAndValue

__all__ = ["ConsumerGroupState", "ConsumerGroupStatus", "Draft"]


class ConsumerGroupStatus(Enum):
    """The values are the names that clients see."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


class ConsumerGroupState:
    __slots__ = (
        "currents",
        "epoch",
        "members",
        "metadata_hash",
        "owners",
        "pattern_users",
        "patterns",
        "static_ids",
        "target_epoch",
        "targets",
        "topic_users",
    )

    def __init__(self) -> None:
        self.epoch = 0
        self.metadata_hash = 0
        self.target_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, Assignment] = {}
        self.currents: dict[str, CurrentAssignment] = {}
        self.patterns: dict[str, ResolvedPattern] = {}
        self.owners: dict[tuple[bytes, int], str] = {}
        """Topic id and partition -> the member that owns it or has not revoked it yet. Derived."""
        self.static_ids: dict[str, str] = {}
        """Instance id -> member id. Derived."""
        self.pattern_users: dict[str, int] = {}
        """Regular expression -> number of members that subscribe by it. Derived."""
        self.topic_users: dict[str, int] = {}
        """Topic -> number of members that name it and of patterns in use that match it. Derived."""

    def copy(self) -> ConsumerGroupState:
        """Returns a shallow copy: the values are immutable."""
        other = ConsumerGroupState()
        other.epoch, other.metadata_hash, other.target_epoch = self.epoch, self.metadata_hash, self.target_epoch
        other.members, other.targets = self.members.copy(), self.targets.copy()
        other.currents, other.patterns = self.currents.copy(), self.patterns.copy()
        other.owners, other.static_ids = self.owners.copy(), self.static_ids.copy()
        other.pattern_users, other.topic_users = self.pattern_users.copy(), self.topic_users.copy()
        return other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConsumerGroupState):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<ConsumerGroupState epoch {self.epoch} target {self.target_epoch} members {list(self.members)}>"

    # Queries

    @property
    def status(self) -> ConsumerGroupStatus:
        if not self.members:
            return ConsumerGroupStatus.EMPTY
        if self.epoch > self.target_epoch:
            return ConsumerGroupStatus.ASSIGNING
        if all(self.current(member_id).is_reconciled_to(self.target_epoch) for member_id in self.members):
            return ConsumerGroupStatus.STABLE
        return ConsumerGroupStatus.RECONCILING

    def current(self, member_id: str) -> CurrentAssignment:
        return self.currents.get(member_id, _NO_ASSIGNMENT)

    def target(self, member_id: str) -> Assignment:
        return self.targets.get(member_id, NOTHING)

    def topics_of(self, member: ConsumerMember) -> Iterable[str]:
        if member.regex and member.regex in self.patterns:
            return self.patterns[member.regex].topics.union(member.topics)
        return member.topics

    def subscribed_topics(self) -> frozenset[str]:
        return frozenset(self.topic_users)

    def assignor(self, default: str) -> str:
        """Returns the assignor that most members request, or the default if no member requests one."""
        votes = Counter(member.assignor for member in self.members.values() if member.assignor is not None)
        return votes.most_common(1)[0][0] if votes else default

    def is_used(self, regex: str) -> bool:
        """Whether a member subscribes by this regular expression."""
        return regex in self.pattern_users

    # Replay

    def set_epoch(self, *, epoch: int, metadata_hash: int) -> None:
        self.epoch, self.metadata_hash = epoch, metadata_hash

    def set_target_epoch(self, epoch: int) -> None:
        self.target_epoch = epoch

    def set_member(self, member_id: str, member: ConsumerMember | None) -> None:
        old = self.members.get(member_id)
        if old is not None and old.instance_id is not None and self.static_ids.get(old.instance_id) == member_id:
            del self.static_ids[old.instance_id]
        if old is not None:
            self._count_topics(old.topics, -1)
            self._count_pattern(old, -1)
        if member is not None:
            self._count_topics(member.topics, 1)
            self._count_pattern(member, 1)
        if member is None:
            self.members.pop(member_id, None)
            return
        self.members[member_id] = member
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member_id

    def _count_pattern(self, member: ConsumerMember, difference: int) -> None:
        if not member.regex:
            return
        before = self.pattern_users.get(member.regex, 0)
        count = before + difference
        if count:
            self.pattern_users[member.regex] = count
        else:
            del self.pattern_users[member.regex]
        if (not before or not count) and member.regex in self.patterns:
            self._count_topics(self.patterns[member.regex].topics, difference)

    def _count_topics(self, topics: Iterable[str], difference: int) -> None:
        users = self.topic_users
        for topic in topics:
            count = users.get(topic, 0) + difference
            if count:
                users[topic] = count
            else:
                del users[topic]

    def set_target(self, member_id: str, target: Assignment | None) -> None:
        if target is None:
            self.targets.pop(member_id, None)
        else:
            self.targets[member_id] = target

    def set_current(self, member_id: str, current: CurrentAssignment | None) -> None:
        owners = self.owners
        old = self.currents.pop(member_id, None)
        if old is not None:
            for topic_id, partition in _partitions(old):
                if owners.get((topic_id, partition)) == member_id:
                    del owners[topic_id, partition]
        if current is not None:
            self.currents[member_id] = current
            for partition_key in _partitions(current):
                owners[partition_key] = member_id

    def set_pattern(self, regex: str, resolved: ResolvedPattern | None) -> None:
        if self.is_used(regex):
            if (old := self.patterns.get(regex)) is not None:
                self._count_topics(old.topics, -1)
            if resolved is not None:
                self._count_topics(resolved.topics, 1)
        if resolved is None:
            self.patterns.pop(regex, None)
        else:
            self.patterns[regex] = resolved

    def replay(self, kind: int, second: str, value: bytes | None) -> None:
        """Replays a record, except the tombstone of the group itself. `second`: the member id or regex of the key."""
        decoded = None if value is None else records.read_value(kind, value)
        if kind == records.MEMBER:
            self.set_member(second, decoded)
        elif kind == records.TARGET_MEMBER:
            self.set_target(second, decoded)
        elif kind == records.CURRENT_ASSIGNMENT:
            self.set_current(second, decoded)
        elif kind == records.REGULAR_EXPRESSION:
            self.set_pattern(second, decoded)
        elif kind == records.TARGET_EPOCH:
            self.set_target_epoch(decoded or 0)
        elif kind == records.GROUP and decoded is not None:
            epoch, metadata_hash = decoded
            self.set_epoch(epoch=epoch, metadata_hash=metadata_hash)


class Draft:
    """A copy of a group's state that can be changed, and the records of the changes."""

    __slots__ = ("group_id", "records", "state")

    def __init__(self, group_id: str, state: ConsumerGroupState, records: list[KeyAndValue]) -> None:
        self.group_id = group_id
        self.state = state.copy()
        self.records = records

    def set_epoch(self, *, epoch: int, metadata_hash: int) -> None:
        self.state.set_epoch(epoch=epoch, metadata_hash=metadata_hash)
        self.records.append(records.epoch_record(self.group_id, epoch=epoch, metadata_hash=metadata_hash))

    def set_target_epoch(self, epoch: int) -> None:
        self.state.set_target_epoch(epoch)
        self.records.append(records.target_epoch_record(self.group_id, epoch))

    def set_member(self, member_id: str, member: ConsumerMember) -> None:
        self.state.set_member(member_id, member)
        self.records.append(records.member_record(self.group_id, member_id, member))

    def set_target(self, member_id: str, target: Assignment) -> None:
        self.state.set_target(member_id, target)
        self.records.append(records.target_member_record(self.group_id, member_id, target))

    def set_current(self, member_id: str, current: CurrentAssignment) -> None:
        self.state.set_current(member_id, current)
        self.records.append(records.current_assignment_record(self.group_id, member_id, current))

    def set_pattern(self, regex: str, resolved: ResolvedPattern) -> None:
        self.state.set_pattern(regex, resolved)
        self.records.append(records.regular_expression_record(self.group_id, regex, resolved))

    def remove_member(self, member_id: str) -> None:
        """Removes a member. The order of the tombstones matters: Kafka's replay fails if a member that still has
        assignments is removed."""
        state, group_id = self.state, self.group_id
        regex = state.members[member_id].regex
        state.set_current(member_id, None)
        state.set_target(member_id, None)
        state.set_member(member_id, None)
        for kind in (records.CURRENT_ASSIGNMENT, records.TARGET_MEMBER, records.MEMBER):
            self.records.append(records.tombstone(kind, group_id, member_id))
        if regex is not None:
            self.remove_unused_pattern(regex)

    def remove_unused_pattern(self, regex: str) -> None:
        """Removes the topics of a pattern if no member subscribes by it."""
        if regex in self.state.patterns and not self.state.is_used(regex):
            self.state.set_pattern(regex, None)
            self.records.append(records.tombstone(records.REGULAR_EXPRESSION, self.group_id, regex))

    def remove_group(self) -> None:
        group_id = self.group_id
        for member_id in list(self.state.members):
            self.remove_member(member_id)
        self.records.append(records.tombstone(records.TARGET_EPOCH, group_id))
        self.records.append(records.tombstone(records.GROUP, group_id))


def _partitions(current: CurrentAssignment) -> Iterable[tuple[bytes, int]]:
    for assignment in (current.assigned, current.pending_revocation):
        for topic_id, partitions in assignment.items():
            for partition in partitions:
                yield topic_id, partition


_NO_ASSIGNMENT = CurrentAssignment(0, 0, records.STABLE)
