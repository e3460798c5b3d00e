"""A group of the consumer protocol (KIP-848): members only send heartbeats, the broker assigns.

    heartbeat                                  effect
    of a new member, or with a subscription    member record, and a new group epoch
    when topics have changed                   new group epoch
    when the group epoch is not yet assigned   new target assignment for every member
    of a member that lacks its target          one step of reconciliation (reconciliation.py)

The state is in the log (consumer_state.py). Only deadlines are soft state: of each member's session, of the revocation
of its partitions, and of the next JoinGroup and SyncGroup of members of the classic protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final, NamedTuple

from kbroker.errors import Refusal
from kbroker.group.alarm import Alarm
from kbroker.group.consumer.assignors import ASSIGNORS, Subscriber, run_to_end
from kbroker.group.consumer.consumer_records import (
    NOTHING,
    UNREVOKED,
    Assignment,
    ConsumerMember,
    CurrentAssignment,
    ResolvedPattern,
    as_assignment,
    as_topic_partitions,
)
from kbroker.group.consumer.consumer_state import ConsumerGroupState, Draft
from kbroker.group.consumer.patterns import NAMES_AT_ONCE, InvalidPattern, compile_pattern, matching_topics
from kbroker.group.consumer.reconciliation import is_within, reconcile
from kbroker.group.consumer.topics import TopicSource
from kbroker.group.result import (
    AnyPendingResponse,
    ConsumerTimeouts,
    GroupCoordinatorConfig,
    GroupResult,
    Now,
    PatternsToMatch,
)
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import consumer_group_heartbeat as messages

__all__ = [
    "JOIN",
    "LEAVE",
    "LEAVE_TEMPORARILY",
    "NEW_MEMBER",
    "ConsumerGroup",
    "HeartbeatRequest",
    "check_instance",
    "replace_static_member",
]

JOIN: Final = 0
LEAVE: Final = -1
LEAVE_TEMPORARILY: Final = -2
"""A static member leaves and will return: its partitions stay assigned to it until its session ends."""

NEW_MEMBER: Final = ConsumerMember(None, None, "", "", (), None, -1, None)

_FEW_PATTERNS: Final = 32
"""Groups with more regular expressions are assigned in the background: the work grows with their number."""

_Subscription = tuple[tuple[str, ...], str | None]


class _SubscribedIds(NamedTuple):
    topics_version: int
    pattern: ResolvedPattern | None
    topic_ids: frozenset[bytes]


_Response = messages.RESPONSE.value
_Assignment = messages.Assignment.value


class HeartbeatRequest(NamedTuple):
    """The fields of a ConsumerGroupHeartbeat request that a group needs."""

    body: Any
    client_id: str
    client_host: str
    pending: AnyPendingResponse
    may_see: Callable[[str], bool]
    """Whether the client is authorized to describe a topic that its regular expression matches."""


class ConsumerGroup:
    __slots__ = (
        "_alarm",
        "_being_matched",
        "_config",
        "_ids",
        "_is_assigning",
        "_joins",
        "_rebalances",
        "_seen_version",
        "_sessions",
        "_syncs",
        "_timeouts",
        "_topics",
        "group_id",
    )

    def __init__(
        self,
        group_id: str,
        config: GroupCoordinatorConfig,
        topics: TopicSource,
        timeouts: Callable[[str], ConsumerTimeouts],
    ) -> None:
        self.group_id = group_id
        self._config = config
        self._topics = topics
        self._timeouts = timeouts
        self._sessions: dict[str, int] = {}
        self._rebalances: dict[str, tuple[int, int]] = {}  # the epoch in which the member must revoke, and its deadline
        self._joins: dict[str, int] = {}
        self._syncs: dict[str, int] = {}
        self._alarm = Alarm()
        self._seen_version = -1
        self._being_matched: set[str] = set()  # patterns that the coordinator matches in the background
        self._is_assigning = False  # whether the coordinator computes the assignment in the background
        self._ids: dict[_Subscription, _SubscribedIds] = {}

    def __repr__(self) -> str:
        return f"<ConsumerGroup {self.group_id}>"

    def on_loaded(self, state: ConsumerGroupState, now: Now, result: GroupResult) -> None:
        """Starts the members' sessions after a load: each has a whole session timeout to send a heartbeat."""
        for member_id, member in state.members.items():
            self.touch(member_id, member, now)
            self._watch_rebalance(member_id, member, state.current(member_id), now)
        self._alarm.put(self.group_id, result)

    # Heartbeats

    def heartbeat(self, request: HeartbeatRequest, draft: Draft, now: Now, result: GroupResult) -> None:
        """Handles a heartbeat that is not a leave. Raises Refusal if it is invalid, and then changes nothing."""
        body, state = request.body, draft.state
        member_id: str = body.member_id
        if len(state.members) >= self._config.consumer_max_size and member_id not in state.members:
            size = self._config.consumer_max_size
            message = f"The consumer group has reached its maximum capacity of {size} members."
            raise Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, message)
        if body.subscribed_topic_regex and body.subscribed_topic_regex not in state.patterns:
            _check_pattern(body.subscribed_topic_regex)
        owned = None if body.topic_partitions is None else as_assignment(body.topic_partitions)
        member = self._identify(draft, member_id, body, owned)
        before = state.current(member_id)
        is_changed = self.subscribe(draft, member_id, member, _updated(member, request), request.may_see, now, result)
        self.refresh(draft, request.may_see, now, result, is_changed=is_changed)
        self.assign(draft, result)
        current = self.reconcile(draft, member_id, owned, now)
        self.touch(member_id, state.members[member_id], now)
        is_full = body.member_epoch == JOIN or (
            body.rebalance_timeout_ms != -1
            and (body.subscribed_topic_names is not None or body.subscribed_topic_regex is not None)
            and owned is not None
        )
        assignment = current.assigned if is_full or current.assigned != before.assigned else None
        result.replies.append((request.pending, self._response(member_id, current.epoch, assignment)))
        self._alarm.put(self.group_id, result)

    def quiet_heartbeat(self, request: HeartbeatRequest, state: ConsumerGroupState, now: Now) -> Any:
        """Returns the response if neither the member nor the group has anything new, else None. Hot path."""
        body = request.body
        epoch, member_id = body.member_epoch, body.member_id
        current = state.currents.get(member_id)
        if current is None or epoch != current.epoch or epoch != state.target_epoch or epoch != state.epoch:
            return None
        member = state.members.get(member_id)
        if (
            member is None
            or current.state
            or self._seen_version != self._topics.version
            or body.subscribed_topic_names is not None
            or body.topic_partitions is not None
            or body.subscribed_topic_regex is not None
            or body.server_assignor is not None
            or body.rebalance_timeout_ms != -1
            or body.rack_id is not None
            or member.instance_id != body.instance_id
            or member.classic is not None
            or member.client_id != request.client_id
            or member.client_host != request.client_host
        ):
            return None
        timeouts = self._timeouts(self.group_id)
        self._sessions[member_id] = self._alarm.after(now, timeouts.session_ms)
        return _Response(member_id=member_id, member_epoch=epoch, heartbeat_interval_ms=timeouts.heartbeat_interval_ms)

    def _response(self, member_id: str, epoch: int, assignment: Assignment | None) -> Any:
        return _Response(
            member_id=member_id,
            member_epoch=epoch,
            heartbeat_interval_ms=self._timeouts(self.group_id).heartbeat_interval_ms,
            assignment=None
            if assignment is None
            else _Assignment(topic_partitions=as_topic_partitions(messages.TopicPartitions.value, assignment)),
        )

    def _identify(self, draft: Draft, member_id: str, body: Any, owned: Assignment | None) -> ConsumerMember:
        state = draft.state
        epoch, instance_id = body.member_epoch, body.instance_id
        if instance_id is None:
            member = state.members.get(member_id)
            if member is None:
                if epoch != JOIN:
                    raise Refusal(
                        ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}."
                    )
                return NEW_MEMBER
            _check_epoch(epoch, state.current(member_id), owned)
            return member
        known_id = state.static_ids.get(instance_id)
        if epoch == JOIN:
            if known_id is None:
                return NEW_MEMBER
            known = state.members[known_id]
            if known.classic is None and state.current(known_id).epoch != LEAVE_TEMPORARILY:
                message = (
                    f"Static member {member_id} with instance id {instance_id} cannot join the group because the "
                    f"instance id is owned by {known_id} member."
                )
                raise Refusal(ErrorCode.UNRELEASED_INSTANCE_ID, message)
            self.forget(known_id)
            return replace_static_member(draft, old_id=known_id, new_id=member_id)
        check_instance(state, member_id=member_id, instance_id=instance_id)
        _check_epoch(epoch, state.current(member_id), owned)
        return state.members[member_id]

    # Effects of a request

    def subscribe(
        self,
        draft: Draft,
        member_id: str,
        member: ConsumerMember,
        updated: ConsumerMember,
        may_see: Callable[[str], bool] | None,
        now: Now,
        result: GroupResult,
    ) -> bool:
        """Stores the updated member. Returns whether its subscription has changed.

        `may_see` is None for a member of the classic protocol.
        """
        if updated == member:
            return False
        draft.set_member(member_id, updated)
        if member.regex is not None and updated.regex != member.regex:
            draft.remove_unused_pattern(member.regex)
        if updated.regex and updated.regex not in draft.state.patterns and may_see is not None:
            self._match(draft, (updated.regex,), may_see, now, result)
        return member is NEW_MEMBER or updated.topics != member.topics or updated.regex != member.regex

    def refresh(
        self, draft: Draft, may_see: Callable[[str], bool] | None, now: Now, result: GroupResult, *, is_changed: bool
    ) -> None:
        """Begins a new group epoch if a subscription, or the metadata of a subscribed topic, has changed."""
        state = draft.state
        is_stale = self._seen_version != self._topics.version
        if not is_changed and not is_stale:
            return
        if is_stale and may_see is not None:
            self._seen_version = self._topics.version
            self._being_matched.clear()
            if state.patterns:
                self._match(draft, tuple(state.patterns), may_see, now, result)
        metadata_hash = self._topics.metadata_hash(state.subscribed_topics())
        if is_changed or metadata_hash != state.metadata_hash:
            draft.set_epoch(epoch=state.epoch + 1, metadata_hash=metadata_hash)

    def bump_epoch(self, draft: Draft) -> None:
        """Begins a new group epoch, for example after members have left."""
        state = draft.state
        draft.set_epoch(epoch=state.epoch + 1, metadata_hash=self._topics.metadata_hash(state.subscribed_topics()))

    def assign(self, draft: Draft, result: GroupResult) -> None:
        """Computes the target assignment of the group epoch, unless it exists already.

        With many patterns the coordinator computes it in the background: see `compute_targets`.
        """
        state = draft.state
        if state.epoch <= state.target_epoch:
            return
        if len(state.pattern_users) <= _FEW_PATTERNS:
            self._set_targets(draft, run_to_end(self.compute_targets(state)))
            draft.set_target_epoch(state.epoch)
        elif not self._is_assigning:
            self._is_assigning = True
            result.unassigned = self.group_id

    def compute_targets(self, state: ConsumerGroupState) -> Generator[None, None, dict[str, Assignment]]:
        """Computes the target of each member, with pauses. `state` must not change meanwhile."""
        subscribers: dict[str, Subscriber] = {}
        ids: dict[_Subscription, _SubscribedIds] = {}
        version = self._topics.version
        for member_id, member in state.members.items():
            subscription = (member.topics, member.regex)
            if subscription not in ids:
                pattern = None if member.regex is None else state.patterns.get(member.regex)
                known = self._ids.get(subscription)
                if known is None or known.topics_version != version or known.pattern is not pattern:
                    known = _SubscribedIds(version, pattern, self._topics.ids(state.topics_of(member)))
                ids[subscription] = known
            target = state.targets.get(member_id, NOTHING)
            subscribers[member_id] = Subscriber(ids[subscription].topic_ids, target, member.instance_id)
            yield
        self._ids = ids
        names = self._config.consumer_assignors
        name = state.assignor(names[0])
        assignor = ASSIGNORS[name if name in names else names[0]]
        counts = self._topics.partition_counts(frozenset().union(*(known.topic_ids for known in ids.values())))
        return (yield from assignor(subscribers, counts))

    def _set_targets(self, draft: Draft, targets: Mapping[str, Assignment]) -> None:
        state = draft.state
        for member_id, target in targets.items():
            old = state.targets.get(member_id)
            if old is not target and old != target and member_id in state.members:
                draft.set_target(member_id, target)

    def on_assigned(
        self, draft: Draft, targets: Mapping[str, Assignment], epoch: int | None, result: GroupResult
    ) -> None:
        """Stores targets that were computed in the background. `epoch`: their group epoch, with the last of them.

        Members may have joined or left since. Then the next computation begins.
        """
        self._set_targets(draft, targets)
        if epoch is None:
            return
        self._is_assigning = False
        if epoch > draft.state.target_epoch:
            draft.set_target_epoch(epoch)
        self.assign(draft, result)

    def reconcile(self, draft: Draft, member_id: str, owned: Assignment | None, now: Now) -> CurrentAssignment:
        state = draft.state
        before = state.current(member_id)
        target = state.target(member_id)
        current = reconcile(before, target, state.target_epoch, owned, state.owners)
        if current != before:
            draft.set_current(member_id, current)
            self._watch_rebalance(member_id, state.members[member_id], current, now)
        return current

    # Regular expressions

    def _match(
        self, draft: Draft, regexes: tuple[str, ...], may_see: Callable[[str], bool], now: Now, result: GroupResult
    ) -> None:
        names = list(self._topics.image.topics)
        if len(names) * len(regexes) > NAMES_AT_ONCE:
            regexes = tuple(regex for regex in regexes if regex not in self._being_matched)
            if regexes:
                self._being_matched.update(regexes)
                earlier = () if result.patterns is None else result.patterns.regexes
                result.patterns = PatternsToMatch(self.group_id, earlier + regexes, may_see)
            return
        for regex in regexes:
            found = {name for matches in matching_topics(regex, names) for name in matches if may_see(name)}
            self._set_pattern(draft, regex, frozenset(found), now)

    def _set_pattern(self, draft: Draft, regex: str, topics: frozenset[str], now: Now) -> bool:
        known = draft.state.patterns.get(regex)
        if known is not None and known.topics == topics:
            return False
        draft.set_pattern(regex, ResolvedPattern(topics, self._topics.version, now.wall_ms))
        return True

    def on_matched(self, draft: Draft, matched: dict[str, frozenset[str]], now: Now) -> None:
        """Stores the topics of patterns that were matched in the background."""
        self._being_matched.difference_update(matched)
        # Members may have dropped the pattern since.
        used = {regex: topics for regex, topics in matched.items() if draft.state.is_used(regex)}
        changes = [self._set_pattern(draft, regex, topics, now) for regex, topics in used.items()]
        if any(changes):
            self.bump_epoch(draft)

    # Leaving

    def leave(self, body: Any, draft: Draft) -> Any:
        """Handles the heartbeat of a member that leaves. Raises Refusal if it is invalid, and then changes nothing."""
        state = draft.state
        member_id, instance_id = body.member_id, body.instance_id
        if instance_id is not None:
            check_instance(state, member_id=member_id, instance_id=instance_id)
        elif member_id not in state.members:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {self.group_id}.")
        if body.member_epoch == LEAVE_TEMPORARILY:
            current = state.current(member_id)
            draft.set_current(
                member_id, CurrentAssignment(LEAVE_TEMPORARILY, current.previous_epoch, current.state, current.assigned)
            )
            self._rebalances.pop(member_id, None)
        else:
            self.remove(draft, member_id)
        return _Response(member_id=member_id, member_epoch=body.member_epoch)

    def remove(self, draft: Draft, member_id: str) -> None:
        draft.remove_member(member_id)
        self.forget(member_id)

    # Deadlines

    def touch(self, member_id: str, member: ConsumerMember, now: Now) -> None:
        classic = member.classic
        wait_ms = self._timeouts(self.group_id).session_ms if classic is None else classic.session_timeout_ms
        self._sessions[member_id] = self._alarm.after(now, wait_ms)

    def expect_join(self, member_id: str, member: ConsumerMember, now: Now) -> None:
        """Starts the deadline of a classic member's next JoinGroup, at the first response that makes it rejoin."""
        if member_id not in self._joins:
            self._joins[member_id] = self._alarm.after(now, member.rebalance_timeout_ms)

    def expect_sync(self, member_id: str, member: ConsumerMember, now: Now) -> None:
        self._joins.pop(member_id, None)
        self._syncs[member_id] = self._alarm.after(now, member.rebalance_timeout_ms)

    def on_sync(self, member_id: str) -> None:
        self._syncs.pop(member_id, None)

    def put_alarm(self, result: GroupResult) -> None:
        self._alarm.put(self.group_id, result)

    def _watch_rebalance(self, member_id: str, member: ConsumerMember, current: CurrentAssignment, now: Now) -> None:
        if current.state == UNREVOKED and member.classic is None:
            due = self._alarm.after(now, member.rebalance_timeout_ms)
            self._rebalances[member_id] = (current.epoch, due)
        else:
            self._rebalances.pop(member_id, None)

    def forget(self, member_id: str) -> None:
        for table in (self._sessions, self._rebalances, self._joins, self._syncs):
            table.pop(member_id, None)

    def wake(self, draft: Draft, now: Now) -> bool:
        """Removes the members whose deadlines have passed. Returns whether there were any."""
        if not self._alarm.is_due(now):
            return False
        elapsed_ms, state = now.elapsed_ms, draft.state
        late = [
            member_id
            for table in (self._sessions, self._joins, self._syncs)
            for member_id, due in table.items()
            if due <= elapsed_ms
        ]
        for member_id, (epoch, due) in list(self._rebalances.items()):
            if due <= elapsed_ms:
                del self._rebalances[member_id]
                if state.current(member_id).epoch == epoch:
                    late.append(member_id)
        removed = [member_id for member_id in dict.fromkeys(late) if member_id in state.members]
        for member_id in removed:
            self.remove(draft, member_id)
        for member_id in late:
            self.forget(member_id)
        deadlines = [*self._sessions.values(), *self._joins.values(), *self._syncs.values()]
        self._alarm.reset(deadlines + [due for _, due in self._rebalances.values()])
        return bool(removed)


def replace_static_member(draft: Draft, *, old_id: str, new_id: str) -> ConsumerMember:
    """Moves the subscription and assignments of a static member to its new member id, after a restart."""
    state = draft.state
    member, target, current = state.members[old_id], state.target(old_id), state.current(old_id)
    pattern = member.regex and state.patterns.get(member.regex)
    draft.remove_member(old_id)
    draft.set_member(new_id, member)
    draft.set_target(new_id, target)
    draft.set_current(new_id, current._replace(epoch=JOIN, previous_epoch=JOIN))
    if member.regex and pattern:
        draft.set_pattern(member.regex, pattern)  # removing the old member removed it
    return member


def check_instance(state: ConsumerGroupState, *, member_id: str, instance_id: str) -> None:
    known_id = state.static_ids.get(instance_id)
    if known_id is None:
        raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if known_id != member_id:
        message = f"Static member {member_id} with instance id {instance_id} was fenced by member {known_id}."
        raise Refusal(ErrorCode.FENCED_INSTANCE_ID, message)


def _check_pattern(regex: str) -> None:
    try:
        compile_pattern(regex)
    except InvalidPattern as problem:
        message = f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {problem}."
        raise Refusal(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from None


def _check_epoch(epoch: int, current: CurrentAssignment, owned: Assignment | None) -> None:
    """Raises Refusal unless the member epoch is current.

    The previous epoch is accepted if the member owns only partitions that are assigned to it: then the response with
    the new epoch was lost.
    """
    if epoch == current.epoch:
        return
    if epoch < current.epoch and epoch == current.previous_epoch and is_within(owned, current.assigned):
        return
    comparison = "greater" if epoch > current.epoch else "smaller"
    message = (
        f"The consumer group member has a {comparison} member epoch ({epoch}) than the one known by the group "
        f"coordinator ({current.epoch}). The member must abandon all its partitions and rejoin."
    )
    raise Refusal(ErrorCode.FENCED_MEMBER_EPOCH, message)


def _updated(member: ConsumerMember, request: HeartbeatRequest) -> ConsumerMember:
    """Returns the member with the fields that the heartbeat sets. Fields that it leaves out stay as they are."""
    body = request.body
    names, regex = body.subscribed_topic_names, body.subscribed_topic_regex
    return ConsumerMember(
        member.instance_id if body.instance_id is None else body.instance_id,
        member.rack_id if body.rack_id is None else body.rack_id,
        request.client_id,
        request.client_host,
        member.topics if names is None else tuple(sorted(set(names))),
        member.regex if regex is None else regex,
        member.rebalance_timeout_ms if body.rebalance_timeout_ms == -1 else body.rebalance_timeout_ms,
        member.assignor if body.server_assignor is None else body.server_assignor,
    )
