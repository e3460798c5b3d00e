"""The groups of one partition of `__consumer_offsets`: takes requests, returns GroupResults.

Hard state is the content of the log; only `replay` changes it. Soft state is one ClassicGroup or ConsumerGroup for each
group that has members or pending member ids. It is built from the hard state when needed, and dropped when the log
holds everything. The records of a group decide its protocol; a member of the other protocol may convert the group
(conversion.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kbroker.errors import Refusal
from kbroker.group.classic.classic_group import ClassicGroup, JoinRequest
from kbroker.group.classic.classic_groups import ClassicGroups
from kbroker.group.classic.consumer_protocol_codec import MalformedConsumerProtocol
from kbroker.group.classic.rebalance import join_error, sync_error
from kbroker.group.classic.states import GroupState
from kbroker.group.classic.subscriptions import CONSUMER
from kbroker.group.consumer.classic_members import heartbeat_classic, join_classic, leave_classic, sync_classic
from kbroker.group.consumer.consumer_group import JOIN, ConsumerGroup, HeartbeatRequest
from kbroker.group.consumer.consumer_records import Assignment
from kbroker.group.consumer.consumer_state import ConsumerGroupState, ConsumerGroupStatus, Draft
from kbroker.group.consumer.conversion import can_downgrade, can_upgrade, to_classic, to_consumer
from kbroker.group.consumer.topics import TopicSource
from kbroker.group.hard_state import HardState
from kbroker.group.offsets import GroupOffsets
from kbroker.group.records import StoredGroup, group_record, group_tombstone
from kbroker.group.result import AnyPendingResponse, ConsumerTimeouts, GroupCoordinatorConfig, GroupResult, Now
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.keyed_batch import KeyAndValue
from kbroker.protocol.messages import leave_group

__all__ = ["GroupListing", "GroupShard"]

_MAX_PREFIX = 8_000  # characters of a member id before its UUID: no string has more than 32,767 bytes
_NO_RECORD = StoredGroup()
_NEW_STATE = ConsumerGroupState()

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
        config: GroupCoordinatorConfig,
        new_id: Callable[[], str],
        topics: TopicSource | None = None,
        timeouts: Callable[[str], ConsumerTimeouts] = _defaults,
    ) -> None:
        """`new_id` returns the unique part of a new member id, `timeouts` the timeouts of a consumer group."""
        self.hard = HardState()
        self.topics = TopicSource() if topics is None else topics
        self._config = config
        self._new_id = new_id
        self._timeouts = timeouts
        self._classic = ClassicGroups(self.hard, config)
        self._consumers: dict[str, ConsumerGroup] = {}
        self.offsets = GroupOffsets(self.hard, self._classic, config)

    # The log

    def replay(self, records: Iterable[KeyAndValue]) -> None:
        replay = self.hard.replay
        for key, value in records:
            replay(key, value)

    def on_loaded(self, now: Now) -> GroupResult:
        """Starts the sessions of all members, after the log was replayed."""
        result = GroupResult()
        for group_id, stored in self.hard.groups.items():
            if stored.members:
                group = self._classic.load(group_id)
                self._classic.keep(group)
                group.on_loaded(now, result)
        for group_id, state in self.hard.consumer_groups.items():
            self._start_sessions(group_id, state, now, result)
        return result

    def _start_sessions(self, group_id: str, state: ConsumerGroupState, now: Now, result: GroupResult) -> None:
        if state.members:
            self._consumer_group(group_id).on_loaded(state, now, result)

    def abandon(self, group_id: str, now: Now) -> tuple[list[AnyPendingResponse], GroupResult]:
        """Returns a group to the state in the log, after the log refused a result's records.

        Returns the responses that waited in the group: the caller sends the error to them.
        """
        pending_responses, result = [], GroupResult()
        group = self._classic.pop(group_id)
        self._consumers.pop(group_id, None)
        if group is not None:
            pending_responses = group.pending_responses
        state = self.hard.consumer_groups.get(group_id)
        if state is not None:
            self._start_sessions(group_id, state, now, result)
            return pending_responses, result
        again = self._classic.load(group_id)
        if group is not None:
            # Some members may have seen the newer generation already: it must not be used twice.
            again.generation = max(again.generation, group.generation)
        if not again.is_idle:
            self._classic.keep(again)
            again.on_loaded(now, result)
        return pending_responses, result

    def unload(self) -> list[AnyPendingResponse]:
        """Drops all soft state, and returns the responses that waited in it."""
        self._consumers.clear()
        return [pending for group in self._classic.clear() for pending in group.pending_responses]

    # Classic members

    def join(
        self, body: Any, version: int, client_id: str, client_host: str, pending: AnyPendingResponse, now: Now
    ) -> GroupResult:
        group_id, result = body.group_id, GroupResult()
        timeout_ms = body.session_timeout_ms
        if not self._config.min_session_timeout_ms <= timeout_ms <= self._config.max_session_timeout_ms:
            result.replies.append((pending, join_error(ErrorCode.INVALID_SESSION_TIMEOUT, body.member_id)))
            return result
        prefix = client_id if body.group_instance_id is None else body.group_instance_id
        new_id = f"{prefix[:_MAX_PREFIX]}-{self._new_id()}"
        request = JoinRequest(body, version, client_id, client_host, new_id, pending)
        state = self.hard.consumer_groups.get(group_id)
        if state is not None and state.members:
            self._join_consumer_group(request, state, now, result)
            return result
        is_new_group = group_id not in self._classic and (state is not None or group_id not in self.hard)
        if is_new_group and body.member_id:
            result.replies.append((pending, join_error(ErrorCode.UNKNOWN_MEMBER_ID, body.member_id)))
            return result
        if state is not None:
            Draft(group_id, state, result.records).remove_group()
            self._consumers.pop(group_id, None)
        group = self._classic.get_or_load(group_id)
        count = len(result.records)
        group.join(request, now, result)
        if is_new_group and not group.is_idle and len(result.records) == count:
            result.records.append(group_record(group_id, StoredGroup(state_timestamp=now.wall_ms)))
        self._classic.keep(group)
        return result

    def _join_consumer_group(
        self, request: JoinRequest, state: ConsumerGroupState, now: Now, result: GroupResult
    ) -> None:
        group_id, instance_id = request.body.group_id, request.body.group_instance_id
        is_back = instance_id is not None and instance_id in state.static_ids
        group = self._consumer_group(group_id)
        draft = Draft(group_id, state, result.records)
        member_id = join_classic(group, request, draft, self.topics, self._config, now, result)
        if member_id is not None and is_back and can_downgrade(draft.state, self._config):
            # The last member of the consumer protocol has rejoined with the classic protocol.
            self._downgrade(draft, now, result, is_stable=True)

    def sync(self, body: Any, pending: AnyPendingResponse, now: Now) -> GroupResult:
        result = GroupResult()
        group = self._classic.get(body.group_id)
        consumers = self._consumers.get(body.group_id)
        if consumers is not None:
            state = self.hard.consumer_groups[body.group_id]
            result.replies.append((pending, sync_classic(consumers, body, state, self.topics, now)))
            consumers.put_alarm(result)
        elif group is None:
            result.replies.append((pending, sync_error(ErrorCode.UNKNOWN_MEMBER_ID)))
        else:
            group.sync(body, pending, now, result)
        return result

    def heartbeat(self, body: Any, now: Now) -> ErrorCode:
        """Handles a heartbeat of the classic protocol. Hot path."""
        group = self._classic.get(body.group_id)
        if group is not None:
            return group.heartbeat(body.member_id, body.group_instance_id, body.generation_id, now)
        consumers = self._consumers.get(body.group_id)
        if consumers is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return heartbeat_classic(consumers, body, self.hard.consumer_groups[body.group_id], now)

    def leave(
        self, group_id: str, leaving: list[tuple[str, str | None]], pending: AnyPendingResponse, now: Now
    ) -> GroupResult:
        result = GroupResult()
        group = self._classic.get(group_id)
        consumers = self._consumers.get(group_id)
        if consumers is not None:
            draft = Draft(group_id, self.hard.consumer_groups[group_id], result.records)
            outcomes = leave_classic(consumers, leaving, draft)
            codes = [code for _, code in outcomes]
            leaving = [
                (member_id, instance_id) for (member_id, _), (_, instance_id) in zip(outcomes, leaving, strict=True)
            ]
            if result.records:
                self._after_leaving(consumers, draft, now, result)
        elif group is None:
            codes = [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
        else:
            codes = group.leave(leaving, now, result)
            self._classic.keep(group)
        members = [
            _LeftMember(member_id=member_id, group_instance_id=instance_id, error_code=code)
            for (member_id, instance_id), code in zip(leaving, codes, strict=True)
        ]
        result.replies.append((pending, _LeaveResponse(members=members)))
        return result

    def wake(self, group_id: str, now: Now) -> GroupResult:
        """Handles the deadlines of a group that have passed."""
        result = GroupResult()
        group = self._classic.get(group_id)
        consumers = self._consumers.get(group_id)
        if consumers is not None:
            draft = Draft(group_id, self.hard.consumer_groups[group_id], result.records)
            if consumers.wake(draft, now):
                self._after_leaving(consumers, draft, now, result)
            else:
                consumers.put_alarm(result)
        elif group is not None:
            group.wake(now, result)
            self._classic.keep(group)
        return result

    # Members of the consumer protocol

    def consumer_heartbeat(self, request: HeartbeatRequest, now: Now) -> GroupResult:
        """Handles a ConsumerGroupHeartbeat. Raises Refusal if the group refuses it, which then has not changed."""
        result, body = GroupResult(), request.body
        group_id = body.group_id
        state = self.hard.consumer_groups.get(group_id)
        group = self._consumers.get(group_id)
        if group is not None and state is not None:
            answer = group.quiet_heartbeat(request, state, now)
            if answer is not None:
                result.replies.append((request.pending, answer))
                group.put_alarm(result)
                return result
        if not body.member_id:
            body.member_id = self._new_id()
        if body.member_epoch < JOIN:
            self._leave_consumer_group(request, state, now, result)
            return result
        try:
            if state is None:
                state = self._become_consumer_group(body, now, result)
            self._consumer_group(group_id).heartbeat(request, Draft(group_id, state, result.records), now, result)
        except Refusal:
            self._drop_unless_stored(group_id)
            raise
        self._classic.pop(group_id)
        return result

    def _drop_unless_stored(self, group_id: str) -> None:
        """Drops the soft state of a group without members, after a refused request."""
        state = self.hard.consumer_groups.get(group_id)
        if state is None or not state.members:
            self._consumers.pop(group_id, None)

    def _leave_consumer_group(
        self, request: HeartbeatRequest, state: ConsumerGroupState | None, now: Now, result: GroupResult
    ) -> None:
        group_id = request.body.group_id
        if state is None:
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        group, draft = self._consumer_group(group_id), Draft(group_id, state, result.records)
        try:
            result.replies.append((request.pending, group.leave(request.body, draft)))
        except Refusal:
            self._drop_unless_stored(group_id)
            raise
        if request.body.member_id not in draft.state.members:
            self._after_leaving(group, draft, now, result)

    def _become_consumer_group(self, body: Any, now: Now, result: GroupResult) -> ConsumerGroupState:
        """Returns the state of a new group, or of a classic group that is empty or can be upgraded.

        Raises Refusal if the classic group cannot be upgraded.
        """
        group_id = body.group_id
        if body.member_epoch != JOIN:
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
        group = self._classic.get(group_id)
        if group is None or group.state is GroupState.EMPTY:
            if group_id in self.hard.groups:
                result.records.append(group_tombstone(group_id))
            return _NEW_STATE
        if not can_upgrade(group, self._config):
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        try:
            state = to_consumer(group, self.topics, result.records)
        except MalformedConsumerProtocol:
            message = (
                f"Cannot upgrade classic group {group_id} to consumer group because the embedded consumer protocol is "
                "malformed."
            )
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND, message) from None
        self._consumer_group(group_id).on_loaded(state, now, result)
        group.on_upgraded(result)
        return state

    def consumer_patterns_matched(self, group_id: str, matched: dict[str, frozenset[str]], now: Now) -> GroupResult:
        result = GroupResult()
        group, state = self._consumers.get(group_id), self.hard.consumer_groups.get(group_id)
        if group is not None and state is not None:
            group.on_matched(Draft(group_id, state, result.records), matched, now)
        return result

    def begin_assignment(self, group_id: str) -> tuple[int, Generator[None, None, dict[str, Assignment]]] | None:
        """Returns the group epoch, and the computation of its targets; None if the group is gone."""
        group, state = self._consumers.get(group_id), self.hard.consumer_groups.get(group_id)
        if group is None or state is None:
            return None
        snapshot = state.copy()
        return snapshot.epoch, group.compute_targets(snapshot)

    def consumers_assigned(self, group_id: str, targets: Mapping[str, Assignment], epoch: int | None) -> GroupResult:
        """Stores targets of `begin_assignment`. `epoch`: with the last of them, their group epoch."""
        result = GroupResult()
        group, state = self._consumers.get(group_id), self.hard.consumer_groups.get(group_id)
        if group is not None and state is not None:
            group.on_assigned(Draft(group_id, state, result.records), targets, epoch, result)
        return result

    def _after_leaving(self, group: ConsumerGroup, draft: Draft, now: Now, result: GroupResult) -> None:
        if can_downgrade(draft.state, self._config):
            self._downgrade(draft, now, result, is_stable=False)
        else:
            group.bump_epoch(draft)
            group.put_alarm(result)
            if not draft.state.members:
                self._consumers.pop(group.group_id, None)

    def _downgrade(self, draft: Draft, now: Now, result: GroupResult, *, is_stable: bool) -> None:
        group = to_classic(draft, self._config, self.topics, now, is_stable=is_stable)
        self._consumers.pop(group.group_id, None)
        self._classic.keep(group)
        if is_stable:
            group.on_loaded(now, result)
        else:
            group.on_downgraded(now, result)

    def _consumer_group(self, group_id: str) -> ConsumerGroup:
        group = self._consumers.get(group_id)
        if group is None:
            group = ConsumerGroup(group_id, self._config, self.topics, self._timeouts)
            self._consumers[group_id] = group
        return group

    # Admin

    def group_ids(self) -> list[str]:
        hard = self.hard
        return list(
            {
                **hard.groups,
                **hard.consumer_groups,
                **hard.offsets,
                **dict.fromkeys(hard.open_groups),
                **dict.fromkeys(self._classic),
            }
        )

    def list_groups(self) -> Iterator[GroupListing]:
        consumer_groups = self.hard.consumer_groups
        for group_id in self.group_ids():
            group = self._classic.get(group_id)
            if group_id in consumer_groups:
                yield GroupListing(group_id, CONSUMER, consumer_groups[group_id].status, CONSUMER)
            elif group is not None:
                yield GroupListing(group_id, group.protocol_type, group.state)
            else:
                yield GroupListing(group_id, self.hard.groups.get(group_id, _NO_RECORD).protocol_type, GroupState.EMPTY)

    def describe(self, group_id: str) -> ClassicGroup | None:
        """Returns a classic group, which the caller must not change; None if there is none of this id."""
        if group_id in self.hard.consumer_groups or not self._exists(group_id):
            return None
        return self._classic.get_or_load(group_id)

    def describe_consumers(self, group_id: str) -> ConsumerGroupState | None:
        """Returns a consumer group, which the caller must not change; None if there is none of this id."""
        return self.hard.consumer_groups.get(group_id)

    @property
    def default_assignor(self) -> str:
        return self._config.consumer_assignors[0]

    def delete(self, group_id: str) -> list[KeyAndValue]:
        """Returns the tombstones that delete a group. Raises Refusal if it does not exist or has members."""
        if not self._exists(group_id):
            raise Refusal(ErrorCode.GROUP_ID_NOT_FOUND)
        state = self.hard.consumer_groups.get(group_id)
        is_empty = self._classic.get_or_load(group_id).state is GroupState.EMPTY if state is None else not state.members
        if not is_empty:
            raise Refusal(ErrorCode.NON_EMPTY_GROUP)
        self._classic.pop(group_id)
        records = self.offsets.delete_all(group_id)
        if state is None:
            return [*records, group_tombstone(group_id)]
        Draft(group_id, state, records).remove_group()
        return records

    def _exists(self, group_id: str) -> bool:
        return group_id in self._classic or group_id in self.hard
