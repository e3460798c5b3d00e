"""All groups of one partition of `__consumer_offsets`: requests in, Steps out.

Hard state is what the log says, and only `replay` changes it. Soft state is one ClassicGroup for each group that has
members or gave out ids; it is made from the hard state when needed and dropped when it says no more than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from kbroker.errors import Refusal
from kbroker.group.classic import ClassicGroup, Joining, join_error
from kbroker.group.hard_state import HardState, TopicPartition
from kbroker.group.offsets import commit_records, is_expired
from kbroker.group.records import CommittedOffset, StoredGroup, group_record, group_tombstone, offset_tombstone
from kbroker.group.roster import Member
from kbroker.group.states import GroupState
from kbroker.group.step import GroupConfig, KeyAndValue, Now, Step, Ticket
from kbroker.group.subscriptions import CONSUMER
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import leave_group, sync_group

__all__ = ["GroupListing", "GroupShard"]

_SIMPLE = StoredGroup()
_NO_OFFSETS: dict[TopicPartition, CommittedOffset] = {}

_SyncResponse = sync_group.RESPONSE.value
_LeaveResponse = leave_group.RESPONSE.value
_LeftMember = leave_group.MemberResponse.value


class GroupListing(NamedTuple):
    group_id: str
    protocol_type: str
    state: GroupState


class GroupShard:
    def __init__(self, config: GroupConfig, new_id: Callable[[], str]) -> None:
        """`new_id` gives the unique part of a member's id."""
        self.hard = HardState()
        self._config = config
        self._new_id = new_id
        self._soft: dict[str, ClassicGroup] = {}

    # The log

    def replay(self, records: Iterable[KeyAndValue]) -> None:
        replay = self.hard.replay
        for key, value in records:
            replay(key, value)

    def on_loaded(self, now: Now) -> Step:
        """The log has been read: members are waited for from now on."""
        step = Step()
        for group_id, stored in self.hard.groups.items():
            if stored.members:
                group = self._soft[group_id] = ClassicGroup(group_id, self._config, stored)
                group.on_loaded(now, step)
        return step

    def abandon(self, group_id: str, now: Now) -> tuple[list[Ticket], Step]:
        """The log has refused a step of this group: back to what it says. The tickets get the error from the caller."""
        tickets, step = [], Step()
        group = self._soft.pop(group_id, None)
        if group is not None:
            tickets = group.tickets
            again = ClassicGroup(group_id, self._config, self.hard.groups.get(group_id, _SIMPLE))
            again.generation = max(again.generation, group.generation)  # which some members may know already
            if not again.is_idle:
                self._soft[group_id] = again
                again.on_loaded(now, step)
        return tickets, step

    def unload(self) -> list[Ticket]:
        """Somebody else coordinates these groups now: everybody who waits."""
        soft, self._soft = self._soft, {}
        return [ticket for group in soft.values() for ticket in group.tickets]

    # Classic members

    def join(self, body: Any, version: int, client_id: str, client_host: str, ticket: Ticket, now: Now) -> Step:
        group_id, step = body.group_id, Step()
        timeout_ms = body.session_timeout_ms
        if not self._config.min_session_timeout_ms <= timeout_ms <= self._config.max_session_timeout_ms:
            step.replies.append((ticket, join_error(ErrorCode.INVALID_SESSION_TIMEOUT, body.member_id)))
            return step
        is_new_group = group_id not in self._soft and group_id not in self.hard
        if is_new_group and body.member_id:
            step.replies.append((ticket, join_error(ErrorCode.UNKNOWN_MEMBER_ID, body.member_id)))
            return step
        new_id = f"{client_id if body.group_instance_id is None else body.group_instance_id}-{self._new_id()}"
        group = self._group(group_id)
        group.join(Joining(body, version, client_id, client_host, new_id, ticket), now, step)
        if is_new_group and not group.is_idle and not step.records:
            step.records.append(group_record(group_id, StoredGroup(state_timestamp=now.wall_ms)))
        self._keep(group)
        return step

    def sync(self, body: Any, ticket: Ticket, now: Now) -> Step:
        step = Step()
        group = self._soft.get(body.group_id)
        if group is None:
            step.replies.append((ticket, _SyncResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)))
        else:
            group.sync(body, ticket, now, step)
        return step

    def heartbeat(self, body: Any, now: Now) -> ErrorCode:
        """Hot path."""
        group = self._soft.get(body.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return group.heartbeat(body.member_id, body.group_instance_id, body.generation_id, now)

    def leave(self, group_id: str, leaving: list[tuple[str, str | None]], ticket: Ticket, now: Now) -> Step:
        step = Step()
        group = self._soft.get(group_id)
        if group is None:
            codes = [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
        else:
            codes = group.leave(leaving, now, step)
            self._keep(group)
        members = [
            _LeftMember(member_id=member_id, group_instance_id=instance_id, error_code=code)
            for (member_id, instance_id), code in zip(leaving, codes, strict=True)
        ]
        step.replies.append((ticket, _LeaveResponse(members=members)))
        return step

    def wake(self, group_id: str, now: Now) -> Step:
        step = Step()
        group = self._soft.get(group_id)
        if group is not None:
            group.wake(now, step)
            self._keep(group)
        return step

    def _group(self, group_id: str) -> ClassicGroup:
        group = self._soft.get(group_id)
        return group or ClassicGroup(group_id, self._config, self.hard.groups.get(group_id, _SIMPLE))

    def _keep(self, group: ClassicGroup) -> None:
        if group.is_idle:
            self._soft.pop(group.group_id, None)
        else:
            self._soft[group.group_id] = group

    # Offsets

    def commit(self, body: Any, version: int, now: Now) -> tuple[list[KeyAndValue], dict[TopicPartition, ErrorCode]]:
        """The records to append, and the partitions that are refused."""
        group_id, generation = body.group_id, body.generation_id_or_member_epoch
        group = self._soft.get(group_id)
        if group is not None:
            code = group.validate_commit(body.member_id, body.group_instance_id, generation)
            group.touch(body.member_id, now)
        elif generation < 0:
            code = ErrorCode.NONE
        elif group_id in self.hard:
            code = ErrorCode.UNKNOWN_MEMBER_ID
        else:
            code = ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
        if code:
            raise Refusal(code)
        return commit_records(body, now, self._config.offset_metadata_max_bytes)

    def offsets(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        return self.hard.offsets.get(group_id, _NO_OFFSETS)

    def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> tuple[list[KeyAndValue], dict[TopicPartition, ErrorCode]]:
        """As `commit`."""
        if not self._exists(group_id):
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND)
        group = self._group(group_id)
        if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER:
            raise Refusal(ErrorCode.NON_EMPTY_GROUP)
        committed = self.offsets(group_id)
        read = _topics_read(group)
        records: list[KeyAndValue] = []
        refused: dict[TopicPartition, ErrorCode] = {}
        for topic, partition in partitions:
            if read is None or topic in read:
                refused[topic, partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            elif (topic, partition) in committed:
                records.append(offset_tombstone(group_id, topic, partition))
        return records, refused

    def expire(self, group_id: str, now: Now) -> list[KeyAndValue]:
        """What is too old: offsets of an empty group, of topics that a group no longer reads, and the empty group."""
        group = self._group(group_id)
        committed = self.offsets(group_id)
        read = _topics_read(group)
        since: int | None = None
        if group.state is GroupState.EMPTY:
            if group.protocol_type and group.state_timestamp >= 0:
                since = group.state_timestamp
        elif group.state is not GroupState.STABLE or group.protocol_type != CONSUMER or read is None:
            return []
        retention_ms = self._config.offsets_retention_ms
        records = [
            offset_tombstone(group_id, topic, partition)
            for (topic, partition), each in committed.items()
            if (read is None or topic not in read) and is_expired(each, since, now.wall_ms, retention_ms)
        ]
        if len(records) == len(committed) and group.is_idle and group_id in self.hard:
            records.append(group_tombstone(group_id))
        return records

    def forget_topics(self, group_id: str, topics: frozenset[str]) -> list[KeyAndValue]:
        """The topics have been deleted; others of the same names begin anew."""
        return [
            offset_tombstone(group_id, topic, partition)
            for topic, partition in self.offsets(group_id)
            if topic in topics
        ]

    # Admin

    def group_ids(self) -> list[str]:
        return list({**self.hard.groups, **self.hard.offsets, **self._soft})

    def list_groups(self) -> Iterator[GroupListing]:
        for group_id in self.group_ids():
            group = self._soft.get(group_id)
            if group is not None:
                yield GroupListing(group_id, group.protocol_type, group.state)
            else:
                yield GroupListing(group_id, self.hard.groups.get(group_id, _SIMPLE).protocol_type, GroupState.EMPTY)

    def describe(self, group_id: str) -> ClassicGroup | None:
        """For reading only."""
        return self._group(group_id) if self._exists(group_id) else None

    def delete(self, group_id: str) -> list[KeyAndValue]:
        if not self._exists(group_id):
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND)
        if self._group(group_id).state is not GroupState.EMPTY:
            raise Refusal(ErrorCode.NON_EMPTY_GROUP)
        self._soft.pop(group_id, None)
        records = [offset_tombstone(group_id, topic, partition) for topic, partition in self.offsets(group_id)]
        return [*records, group_tombstone(group_id)]

    def _exists(self, group_id: str) -> bool:
        return group_id in self._soft or group_id in self.hard

    def members(self, group_id: str) -> list[Member]:
        group = self._soft.get(group_id)
        return [] if group is None else list(group.roster.by_id.values())


def _topics_read(group: ClassicGroup) -> frozenset[str] | None:
    """None stands for any: consumers that speak in a way of their own may read whatever they like."""
    if group.state is GroupState.EMPTY or group.protocol_type != CONSUMER:
        return frozenset()
    return group.subscribed_topics()
