"""All groups of one partition of `__consumer_offsets`: requests in, Steps out.

Hard state is what the log says, and only `replay` changes it. Soft state is one ClassicGroup or ConsumerGroup for each
group that has members or gave out ids; it is made from the hard state when needed and dropped when it says no more.
A group is of the protocol that its records are of; who comes with the other one may make it change (conversion.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from kbroker.errors import Refusal
from kbroker.group.classic import ClassicGroup, Joining, join_error
from kbroker.group.classic_members import check_commit, heartbeat_classic, join_classic, leave_classic, sync_classic
from kbroker.group.consumer import JOIN, Beat, ConsumerGroup
from kbroker.group.consumer_state import ConsumerGroupState, ConsumerGroupStatus, Draft
from kbroker.group.conversion import can_downgrade, can_upgrade, to_classic, to_consumer
from kbroker.group.embedded import MalformedEmbedding
from kbroker.group.hard_state import HardState, TopicPartition
from kbroker.group.offsets import commit_records, is_expired
from kbroker.group.records import CommittedOffset, StoredGroup, group_record, group_tombstone, offset_tombstone
from kbroker.group.roster import Member
from kbroker.group.states import GroupState
from kbroker.group.step import ConsumerTimeouts, GroupConfig, KeyAndValue, Now, Step, Ticket
from kbroker.group.subscriptions import CONSUMER
from kbroker.group.topics import Topics
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import leave_group, sync_group

__all__ = ["GroupListing", "GroupShard"]

_SIMPLE = StoredGroup()
_NEW = ConsumerGroupState()
_EPOCHS_SINCE = 9  # the version of OffsetCommit that may come from members of the consumer protocol
_NO_OFFSETS: dict[TopicPartition, CommittedOffset] = {}

_SyncResponse = sync_group.RESPONSE.value
_LeaveResponse = leave_group.RESPONSE.value
_LeftMember = leave_group.MemberResponse.value


class GroupListing(NamedTuple):
    group_id: str
    protocol_type: str
    state: GroupState | ConsumerGroupStatus
    type: str = "classic"


def _defaults(group_id: str) -> ConsumerTimeouts:
    return ConsumerTimeouts()


class GroupShard:
    def __init__(
        self,
        config: GroupConfig,
        new_id: Callable[[], str],
        topics: Topics | None = None,
        timeouts: Callable[[str], ConsumerTimeouts] = _defaults,
    ) -> None:
        """`new_id` gives the unique part of a member's id, `timeouts` the configs of a consumer group."""
        self.hard = HardState()
        self.topics = Topics() if topics is None else topics
        self._config = config
        self._new_id = new_id
        self._timeouts = timeouts
        self._soft: dict[str, ClassicGroup] = {}
        self._consumers: dict[str, ConsumerGroup] = {}

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
        for group_id, state in self.hard.consumer_groups.items():
            self._load_consumers(group_id, state, now, step)
        return step

    def _load_consumers(self, group_id: str, state: ConsumerGroupState, now: Now, step: Step) -> None:
        if state.members:
            self._consumer_group(group_id).on_loaded(state, now, step)

    def abandon(self, group_id: str, now: Now) -> tuple[list[Ticket], Step]:
        """The log has refused a step of this group: back to what it says. The tickets get the error from the caller."""
        tickets, step = [], Step()
        group = self._soft.pop(group_id, None)
        self._consumers.pop(group_id, None)
        if group is not None:
            tickets = group.tickets
        state = self.hard.consumer_groups.get(group_id)
        if state is not None:
            self._load_consumers(group_id, state, now, step)
            return tickets, step
        again = ClassicGroup(group_id, self._config, self.hard.groups.get(group_id, _SIMPLE))
        if group is not None:
            again.generation = max(again.generation, group.generation)  # which some members may know already
        if not again.is_idle:
            self._soft[group_id] = again
            again.on_loaded(now, step)
        return tickets, step

    def unload(self) -> list[Ticket]:
        """Somebody else coordinates these groups now: everybody who waits."""
        soft, self._soft = self._soft, {}
        self._consumers.clear()
        return [ticket for group in soft.values() for ticket in group.tickets]

    # Classic members

    def join(self, body: Any, version: int, client_id: str, client_host: str, ticket: Ticket, now: Now) -> Step:
        group_id, step = body.group_id, Step()
        timeout_ms = body.session_timeout_ms
        if not self._config.min_session_timeout_ms <= timeout_ms <= self._config.max_session_timeout_ms:
            step.replies.append((ticket, join_error(ErrorCode.INVALID_SESSION_TIMEOUT, body.member_id)))
            return step
        new_id = f"{client_id if body.group_instance_id is None else body.group_instance_id}-{self._new_id()}"
        joining = Joining(body, version, client_id, client_host, new_id, ticket)
        state = self.hard.consumer_groups.get(group_id)
        if state is not None and state.members:
            self._join_consumers(joining, state, now, step)
            return step
        is_new_group = group_id not in self._soft and (state is not None or group_id not in self.hard)
        if is_new_group and body.member_id:
            step.replies.append((ticket, join_error(ErrorCode.UNKNOWN_MEMBER_ID, body.member_id)))
            return step
        if state is not None:
            Draft(group_id, state, step.records).remove_group()
            self._consumers.pop(group_id, None)
        group = self._group(group_id)
        count = len(step.records)
        group.join(joining, now, step)
        if is_new_group and not group.is_idle and len(step.records) == count:
            step.records.append(group_record(group_id, StoredGroup(state_timestamp=now.wall_ms)))
        self._keep(group)
        return step

    def _join_consumers(self, joining: Joining, state: ConsumerGroupState, now: Now, step: Step) -> None:
        group_id, instance_id = joining.body.group_id, joining.body.group_instance_id
        is_back = instance_id is not None and instance_id in state.static_ids
        group = self._consumer_group(group_id)
        draft = Draft(group_id, state, step.records)
        member_id = join_classic(group, joining, draft, self.topics, self._config, now, step)
        if member_id is not None and is_back and can_downgrade(draft.state, self._config):
            # The last member of the consumer protocol has come back with the classic one.
            self._downgrade(draft, now, step, is_stable=True)

    def sync(self, body: Any, ticket: Ticket, now: Now) -> Step:
        step = Step()
        group = self._soft.get(body.group_id)
        consumers = self._consumers.get(body.group_id)
        if consumers is not None:
            state = self.hard.consumer_groups[body.group_id]
            step.replies.append((ticket, sync_classic(consumers, body, state, self.topics, now)))
            consumers.put_alarm(step)
        elif group is None:
            step.replies.append((ticket, _SyncResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)))
        else:
            group.sync(body, ticket, now, step)
        return step

    def heartbeat(self, body: Any, now: Now) -> ErrorCode:
        """Hot path."""
        group = self._soft.get(body.group_id)
        if group is not None:
            return group.heartbeat(body.member_id, body.group_instance_id, body.generation_id, now)
        consumers = self._consumers.get(body.group_id)
        if consumers is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return heartbeat_classic(consumers, body, self.hard.consumer_groups[body.group_id], now)

    def leave(self, group_id: str, leaving: list[tuple[str, str | None]], ticket: Ticket, now: Now) -> Step:
        step = Step()
        group = self._soft.get(group_id)
        consumers = self._consumers.get(group_id)
        if consumers is not None:
            draft = Draft(group_id, self.hard.consumer_groups[group_id], step.records)
            outcomes = leave_classic(consumers, leaving, draft)
            codes = [code for _, code in outcomes]
            leaving = [(member_id, each[1]) for (member_id, _), each in zip(outcomes, leaving, strict=True)]
            if step.records:
                self._after_leaving(consumers, draft, now, step)
        elif group is None:
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
        consumers = self._consumers.get(group_id)
        if consumers is not None:
            draft = Draft(group_id, self.hard.consumer_groups[group_id], step.records)
            if consumers.wake(draft, now):
                self._after_leaving(consumers, draft, now, step)
            else:
                consumers.put_alarm(step)
        elif group is not None:
            group.wake(now, step)
            self._keep(group)
        return step

    # Members of the consumer protocol

    def consumer_heartbeat(self, beat: Beat, now: Now) -> Step:
        """Refusal: nothing has changed."""
        step, body = Step(), beat.body
        group_id = body.group_id
        state = self.hard.consumer_groups.get(group_id)
        group = self._consumers.get(group_id)
        if group is not None and state is not None:
            answer = group.quiet_heartbeat(beat, state, now)
            if answer is not None:
                step.replies.append((beat.ticket, answer))
                group.put_alarm(step)
                return step
        if not body.member_id:
            body.member_id = self._new_id()
        if body.member_epoch < JOIN:
            self._leave_consumers(beat, state, now, step)
            return step
        try:
            if state is None:
                state = self._become_consumers(body, now, step)
            self._consumer_group(group_id).heartbeat(beat, Draft(group_id, state, step.records), now, step)
        except Refusal:
            self._drop_unless_stored(group_id)
            raise
        self._soft.pop(group_id, None)
        return step

    def _drop_unless_stored(self, group_id: str) -> None:
        """A refusal has made nothing: no group, and nobody to watch over in an empty one."""
        state = self.hard.consumer_groups.get(group_id)
        if state is None or not state.members:
            self._consumers.pop(group_id, None)

    def _leave_consumers(self, beat: Beat, state: ConsumerGroupState | None, now: Now, step: Step) -> None:
        group_id = beat.body.group_id
        if state is None:
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no consumer group {group_id}.")
        group, draft = self._consumer_group(group_id), Draft(group_id, state, step.records)
        try:
            step.replies.append((beat.ticket, group.leave(beat.body, draft)))
        except Refusal:
            self._drop_unless_stored(group_id)
            raise
        if beat.body.member_id not in draft.state.members:
            self._after_leaving(group, draft, now, step)

    def _become_consumers(self, body: Any, now: Now, step: Step) -> ConsumerGroupState:
        """A group that is new, or empty, or one of classic consumers that may change."""
        group_id = body.group_id
        if body.member_epoch != JOIN:
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"There is no consumer group {group_id}.")
        group = self._soft.get(group_id)
        if group is None or group.state is GroupState.EMPTY:
            if group_id in self.hard.groups:
                step.records.append(group_tombstone(group_id))
            return _NEW
        if not can_upgrade(group, self._config):
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not of the consumer protocol.")
        try:
            state = to_consumer(group, self.topics, step.records)
        except MalformedEmbedding:
            message = f"The members of group {group_id} do not speak the consumer protocol."
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, message) from None
        self._consumer_group(group_id).on_loaded(state, now, step)
        group.on_upgraded(step)
        return state

    def consumer_patterns_matched(self, group_id: str, matched: dict[str, frozenset[str]], now: Now) -> Step:
        step = Step()
        group, state = self._consumers.get(group_id), self.hard.consumer_groups.get(group_id)
        if group is not None and state is not None:
            group.on_matched(Draft(group_id, state, step.records), matched, now)
        return step

    def _after_leaving(self, group: ConsumerGroup, draft: Draft, now: Now, step: Step) -> None:
        if can_downgrade(draft.state, self._config):
            self._downgrade(draft, now, step, is_stable=False)
        else:
            group.depart(draft)
            group.put_alarm(step)
            if not draft.state.members:
                self._consumers.pop(group.group_id, None)

    def _downgrade(self, draft: Draft, now: Now, step: Step, *, is_stable: bool) -> None:
        group = to_classic(draft, self._config, self.topics, now, is_stable=is_stable)
        self._consumers.pop(group.group_id, None)
        self._soft[group.group_id] = group
        if is_stable:
            group.on_loaded(now, step)
        else:
            group.on_downgraded(now, step)

    def _consumer_group(self, group_id: str) -> ConsumerGroup:
        group = self._consumers.get(group_id)
        if group is None:
            group = ConsumerGroup(group_id, self._config, self.topics, self._timeouts)
            self._consumers[group_id] = group
        return group

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
        state = self.hard.consumer_groups.get(group_id)
        if state is not None:
            code = check_commit(state, body.member_id, generation, version)
        elif group is not None:
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

    def commit_in_transaction(self, body: Any, now: Now) -> tuple[list[KeyAndValue], dict[TopicPartition, ErrorCode]]:
        """As `commit`. Who says nothing of a member, as clients before v3, is not asked."""
        group_id, generation, member_id = body.group_id, body.generation_id, body.member_id
        group = self._soft.get(group_id)
        state = self.hard.consumer_groups.get(group_id)
        if generation < 0 and not member_id and body.group_instance_id is None:
            code = ErrorCode.NONE
        elif state is not None:
            code = check_commit(state, member_id, generation, _EPOCHS_SINCE)
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
            code = ErrorCode.UNKNOWN_MEMBER_ID if group_id in self.hard else ErrorCode.ILLEGAL_GENERATION
        if code:
            raise Refusal(code)
        return commit_records(body, now, self._config.offset_metadata_max_bytes)

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        """Refusal if a member of the consumer protocol asks that is not who it was."""
        state = self.hard.consumer_groups.get(group_id)
        if state is None or (member_id is None and epoch < 0):
            return
        member = state.members.get(member_id or "")
        if member is None:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)
        if epoch != state.current(member_id or "").epoch:
            is_classic = member.classic is not None
            raise Refusal(ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH)

    def offsets(self, group_id: str) -> dict[TopicPartition, CommittedOffset]:
        return self.hard.offsets.get(group_id, _NO_OFFSETS)

    def unstable_partitions(self, group_id: str) -> set[TopicPartition]:
        """Whose offsets an open transaction may still change."""
        return self.hard.pending_partitions(group_id)

    def delete_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> tuple[list[KeyAndValue], dict[TopicPartition, ErrorCode]]:
        """As `commit`."""
        if not self._exists(group_id):
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND)
        state = self.hard.consumer_groups.get(group_id)
        if state is not None:
            read: frozenset[str] | None = state.subscribed_topics()
        else:
            group = self._group(group_id)
            if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER:
                raise Refusal(ErrorCode.NON_EMPTY_GROUP)
            read = _topics_read(group)
        committed = self.offsets(group_id)
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
        state = self.hard.consumer_groups.get(group_id)
        if state is not None:
            return self._expire_consumers(group_id, state, now)
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
        unstable = self.hard.pending_partitions(group_id)
        records = [
            offset_tombstone(group_id, topic, partition)
            for (topic, partition), each in committed.items()
            if (read is None or topic not in read)
            and is_expired(each, since, now.wall_ms, retention_ms)
            and (topic, partition) not in unstable
        ]
        if len(records) == len(committed) and group.is_idle and group_id in self.hard and not unstable:
            records.append(group_tombstone(group_id))
        return records

    def _expire_consumers(self, group_id: str, state: ConsumerGroupState, now: Now) -> list[KeyAndValue]:
        committed, read = self.offsets(group_id), state.subscribed_topics()
        retention_ms = self._config.offsets_retention_ms
        unstable = self.hard.pending_partitions(group_id)
        records = [
            offset_tombstone(group_id, topic, partition)
            for (topic, partition), each in committed.items()
            if topic not in read
            and is_expired(each, None, now.wall_ms, retention_ms)
            and (topic, partition) not in unstable
        ]
        if len(records) == len(committed) and not state.members and not unstable:
            Draft(group_id, state, records).remove_group()
        return records

    def forget_topics(self, group_id: str, topics: frozenset[str]) -> list[KeyAndValue]:
        """The topics have been deleted; others of the same names begin anew."""
        return [
            offset_tombstone(group_id, topic, partition)
            for topic, partition in self.hard.pending_partitions(group_id).union(self.offsets(group_id))
            if topic in topics
        ]

    # Admin

    def group_ids(self) -> list[str]:
        hard = self.hard
        return list(
            {**hard.groups, **hard.consumer_groups, **hard.offsets, **dict.fromkeys(hard.open_groups), **self._soft}
        )

    def list_groups(self) -> Iterator[GroupListing]:
        consumer_groups = self.hard.consumer_groups
        for group_id in self.group_ids():
            group = self._soft.get(group_id)
            if group_id in consumer_groups:
                yield GroupListing(group_id, CONSUMER, consumer_groups[group_id].status, CONSUMER)
            elif group is not None:
                yield GroupListing(group_id, group.protocol_type, group.state)
            else:
                yield GroupListing(group_id, self.hard.groups.get(group_id, _SIMPLE).protocol_type, GroupState.EMPTY)

    def describe(self, group_id: str) -> ClassicGroup | None:
        """A classic group, for reading only."""
        if group_id in self.hard.consumer_groups or not self._exists(group_id):
            return None
        return self._group(group_id)

    def describe_consumers(self, group_id: str) -> ConsumerGroupState | None:
        """A consumer group, for reading only."""
        return self.hard.consumer_groups.get(group_id)

    @property
    def default_assignor(self) -> str:
        return self._config.consumer_assignors[0]

    def delete(self, group_id: str) -> list[KeyAndValue]:
        if not self._exists(group_id):
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND)
        state = self.hard.consumer_groups.get(group_id)
        is_empty = self._group(group_id).state is GroupState.EMPTY if state is None else not state.members
        if not is_empty:
            raise Refusal(ErrorCode.NON_EMPTY_GROUP)
        self._soft.pop(group_id, None)
        known = self.hard.pending_partitions(group_id).union(self.offsets(group_id))
        records = [offset_tombstone(group_id, topic, partition) for topic, partition in known]
        if state is None:
            return [*records, group_tombstone(group_id)]
        Draft(group_id, state, records).remove_group()
        return records

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
