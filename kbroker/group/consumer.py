"""A group of the consumer protocol (KIP-848): members only send heartbeats, the broker assigns.

    a heartbeat …                            … makes
    of a new member, or with a subscription  a record of the member, and another epoch of the group
    when topics have changed                 another epoch of the group
    when the group's epoch is not assigned   a target for every member, at that epoch
    of a member that has not its target      one step of reconciliation (see reconciliation.py)

Everything that matters is in the log (consumer_state.py). Soft are the deadlines alone: the session of each member, how
long it may take to give partitions back, and for members of the classic protocol to join and to sync.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from kbroker.errors import Refusal
from kbroker.group.alarm import Alarm
from kbroker.group.assignors import ASSIGNORS, Subscriber
from kbroker.group.consumer_records import (
    NOTHING,
    UNREVOKED,
    Assignment,
    ConsumerMember,
    CurrentAssignment,
    ResolvedPattern,
    as_assignment,
    as_topic_partitions,
)
from kbroker.group.consumer_state import ConsumerGroupState, Draft
from kbroker.group.patterns import NAMES_AT_ONCE, InvalidPattern, compile_pattern, matching_topics
from kbroker.group.reconciliation import is_within, reconcile
from kbroker.group.step import ConsumerTimeouts, GroupConfig, Now, PatternsToMatch, Step, Ticket
from kbroker.group.topics import Topics
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import consumer_group_heartbeat as messages

__all__ = [
    "JOIN",
    "LEAVE",
    "LEAVE_FOR_A_WHILE",
    "NEWCOMER",
    "Beat",
    "ConsumerGroup",
    "check_instance",
    "replace_static_member",
]

JOIN: Final = 0
LEAVE: Final = -1
LEAVE_FOR_A_WHILE: Final = -2
"""A static member that will be back: nobody else gets its partitions until its session ends."""

NEWCOMER: Final = ConsumerMember(None, None, "", "", (), None, -1, None)

_Response = messages.RESPONSE.value
_Assignment = messages.Assignment.value


class Beat(NamedTuple):
    """A ConsumerGroupHeartbeat, as far as a group cares."""

    body: Any
    client_id: str
    client_host: str
    ticket: Ticket
    may_see: Callable[[str], bool]
    """Whether the client may know of a topic that its regular expression matches."""


class ConsumerGroup:
    __slots__ = (
        "_alarm",
        "_asked",
        "_config",
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
        self, group_id: str, config: GroupConfig, topics: Topics, timeouts: Callable[[str], ConsumerTimeouts]
    ) -> None:
        self.group_id = group_id
        self._config = config
        self._topics = topics
        self._timeouts = timeouts
        self._sessions: dict[str, int] = {}
        self._rebalances: dict[str, tuple[int, int]] = {}  # the epoch to be left, and until when
        self._joins: dict[str, int] = {}
        self._syncs: dict[str, int] = {}
        self._alarm = Alarm()
        self._seen_version = -1
        self._asked: set[str] = set()  # patterns that somebody matches right now

    def __repr__(self) -> str:
        return f"<ConsumerGroup {self.group_id}>"

    def on_loaded(self, state: ConsumerGroupState, now: Now, step: Step) -> None:
        """Members get a whole session to show up again."""
        for member_id, member in state.members.items():
            self.touch(member_id, member, now)
            self._watch_rebalance(member_id, member, state.current(member_id), now)
        self._alarm.put(self.group_id, step)

    # Heartbeats

    def heartbeat(self, beat: Beat, draft: Draft, now: Now, step: Step) -> None:
        """Refusal: nothing has changed."""
        body, state = beat.body, draft.state
        member_id: str = body.member_id
        if len(state.members) >= self._config.consumer_max_size and member_id not in state.members:
            raise Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED, f"There is room for {len(state.members)} members.")
        if body.subscribed_topic_regex and body.subscribed_topic_regex not in state.patterns:
            _check_pattern(body.subscribed_topic_regex)
        owned = None if body.topic_partitions is None else as_assignment(body.topic_partitions)
        member = self._identify(draft, member_id, body, owned)
        before = state.current(member_id)
        is_changed = self.subscribe(draft, member_id, member, _updated(member, beat), beat.may_see, now, step)
        self.refresh(draft, beat.may_see, now, step, is_changed=is_changed)
        self.assign(draft)
        current = self.reconcile(draft, member_id, owned, now)
        self.touch(member_id, state.members[member_id], now)
        is_full = body.member_epoch == JOIN or (
            body.rebalance_timeout_ms != -1
            and (body.subscribed_topic_names is not None or body.subscribed_topic_regex is not None)
            and owned is not None
        )
        assignment = current.assigned if is_full or current.assigned != before.assigned else None
        step.replies.append((beat.ticket, self._answer(member_id, current.epoch, assignment)))
        self._alarm.put(self.group_id, step)

    def quiet_heartbeat(self, beat: Beat, state: ConsumerGroupState, now: Now) -> Any:
        """Hot path: the answer to a member that has nothing new to say in a group where nothing is new, else None."""
        body = beat.body
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
            or member.client_id != beat.client_id
            or member.client_host != beat.client_host
        ):
            return None
        timeouts = self._timeouts(self.group_id)
        self._sessions[member_id] = self._alarm.after(now, timeouts.session_ms)
        return _Response(member_id=member_id, member_epoch=epoch, heartbeat_interval_ms=timeouts.heartbeat_interval_ms)

    def _answer(self, member_id: str, epoch: int, assignment: Assignment | None) -> Any:
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
                    raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not in group {self.group_id}.")
                return NEWCOMER
            _check_epoch(epoch, state.current(member_id), owned)
            return member
        known_id = state.static_ids.get(instance_id)
        if epoch == JOIN:
            if known_id is None:
                return NEWCOMER
            known = state.members[known_id]
            if known.classic is None and state.current(known_id).epoch != LEAVE_FOR_A_WHILE:
                message = f"Instance {instance_id} is in use by member {known_id}."
                raise Refusal(ErrorCode.UNRELEASED_INSTANCE_ID, message)
            self.forget(known_id)
            return replace_static_member(draft, known_id, member_id)
        check_instance(state, member_id, instance_id)
        _check_epoch(epoch, state.current(member_id), owned)
        return state.members[member_id]

    # What a request may set off

    def subscribe(
        self,
        draft: Draft,
        member_id: str,
        member: ConsumerMember,
        updated: ConsumerMember,
        may_see: Callable[[str], bool] | None,
        now: Now,
        step: Step,
    ) -> bool:
        """Writes down what has changed; whether it changes what is read. `may_see`: None for a classic member."""
        if updated == member:
            return False
        draft.set_member(member_id, updated)
        if member.regex is not None and updated.regex != member.regex:
            draft.forget_pattern(member.regex)
        if updated.regex and updated.regex not in draft.state.patterns and may_see is not None:
            self._match(draft, (updated.regex,), may_see, now, step)
        return member is NEWCOMER or updated.topics != member.topics or updated.regex != member.regex

    def refresh(
        self, draft: Draft, may_see: Callable[[str], bool] | None, now: Now, step: Step, *, is_changed: bool
    ) -> None:
        """Another epoch for the group if other topics are read than before, or the topics are other ones."""
        state = draft.state
        is_stale = self._seen_version != self._topics.version
        if not is_changed and not is_stale:
            return
        if is_stale and may_see is not None:
            self._seen_version = self._topics.version
            self._asked.clear()
            if state.patterns:
                self._match(draft, tuple(state.patterns), may_see, now, step)
        metadata_hash = self._topics.metadata_hash(state.subscribed_topics())
        if is_changed or metadata_hash != state.metadata_hash:
            draft.set_epoch(state.epoch + 1, metadata_hash)

    def depart(self, draft: Draft) -> None:
        """Another epoch for those who stay."""
        state = draft.state
        draft.set_epoch(state.epoch + 1, self._topics.metadata_hash(state.subscribed_topics()))

    def assign(self, draft: Draft) -> None:
        """A target for every member, if the one that there is belongs to an earlier epoch."""
        state = draft.state
        if state.epoch <= state.target_epoch:
            return
        subscribers: dict[str, Subscriber] = {}
        known: dict[tuple[tuple[str, ...], str | None], frozenset[bytes]] = {}
        targets = state.targets
        for member_id, member in state.members.items():
            subscription = (member.topics, member.regex)
            topic_ids = known.get(subscription)
            if topic_ids is None:
                topic_ids = known[subscription] = self._topics.ids(state.topics_of(member))
            subscribers[member_id] = Subscriber(topic_ids, targets.get(member_id, NOTHING), member.instance_id)
        names = self._config.consumer_assignors
        name = state.assignor(names[0])
        assignor = ASSIGNORS[name if name in names else names[0]]
        counts = self._topics.partition_counts(frozenset().union(*known.values()))
        for member_id, target in assignor(subscribers, counts).items():
            old = targets.get(member_id)
            if old is not target and old != target:
                draft.set_target(member_id, target)
        draft.set_target_epoch(state.epoch)

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
        self, draft: Draft, regexes: tuple[str, ...], may_see: Callable[[str], bool], now: Now, step: Step
    ) -> None:
        names = list(self._topics.image.topics)
        if len(names) * len(regexes) > NAMES_AT_ONCE:
            regexes = tuple(each for each in regexes if each not in self._asked)
            if regexes:
                self._asked.update(regexes)
                earlier = () if step.patterns is None else step.patterns.regexes
                step.patterns = PatternsToMatch(self.group_id, earlier + regexes, may_see)
            return
        for regex in regexes:
            found = {name for piece in matching_topics(regex, names) for name in piece if may_see(name)}
            self._set_pattern(draft, regex, frozenset(found), now)

    def _set_pattern(self, draft: Draft, regex: str, topics: frozenset[str], now: Now) -> bool:
        known = draft.state.patterns.get(regex)
        if known is not None and known.topics == topics:
            return False
        draft.set_pattern(regex, ResolvedPattern(topics, self._topics.version, now.wall_ms))
        return True

    def on_matched(self, draft: Draft, matched: dict[str, frozenset[str]], now: Now) -> None:
        """What was too much to do on the spot."""
        self._asked.difference_update(matched)
        wanted = {regex: topics for regex, topics in matched.items() if draft.state.is_read(regex)}
        changes = [self._set_pattern(draft, regex, topics, now) for regex, topics in wanted.items()]
        if any(changes):
            self.depart(draft)

    # Leaving

    def leave(self, body: Any, draft: Draft) -> Any:
        """The answer. Refusal: nothing has changed."""
        state = draft.state
        member_id, instance_id = body.member_id, body.instance_id
        if instance_id is not None:
            check_instance(state, member_id, instance_id)
        elif member_id not in state.members:
            raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not in group {self.group_id}.")
        if body.member_epoch == LEAVE_FOR_A_WHILE:
            current = state.current(member_id)
            draft.set_current(
                member_id, CurrentAssignment(LEAVE_FOR_A_WHILE, current.previous_epoch, current.state, current.assigned)
            )
            self._rebalances.pop(member_id, None)
        else:
            self.remove(draft, member_id)
        return _Response(member_id=member_id, member_epoch=body.member_epoch)

    def remove(self, draft: Draft, member_id: str) -> None:
        draft.remove_member(member_id)
        self.forget(member_id)

    # Time

    def touch(self, member_id: str, member: ConsumerMember, now: Now) -> None:
        classic = member.classic
        wait_ms = self._timeouts(self.group_id).session_ms if classic is None else classic.session_timeout_ms
        self._sessions[member_id] = self._alarm.after(now, wait_ms)

    def expect_join(self, member_id: str, member: ConsumerMember, now: Now) -> None:
        """A classic member has been told to rejoin: from the first time on its time runs."""
        if member_id not in self._joins:
            self._joins[member_id] = self._alarm.after(now, member.rebalance_timeout_ms)

    def expect_sync(self, member_id: str, member: ConsumerMember, now: Now) -> None:
        self._joins.pop(member_id, None)
        self._syncs[member_id] = self._alarm.after(now, member.rebalance_timeout_ms)

    def on_sync(self, member_id: str) -> None:
        self._syncs.pop(member_id, None)

    def put_alarm(self, step: Step) -> None:
        self._alarm.put(self.group_id, step)

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
        """Whether members have been removed: their time is up."""
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
        gone = [each for each in dict.fromkeys(late) if each in state.members]
        for member_id in gone:
            self.remove(draft, member_id)
        for member_id in late:
            self.forget(member_id)
        deadlines = [*self._sessions.values(), *self._joins.values(), *self._syncs.values()]
        self._alarm.reset(deadlines + [due for _, due in self._rebalances.values()])
        return bool(gone)


def replace_static_member(draft: Draft, old_id: str, new_id: str) -> ConsumerMember:
    """The process behind an instance id has come back under another id: it takes over what its old self had."""
    state = draft.state
    member, target, current = state.members[old_id], state.target(old_id), state.current(old_id)
    regex_of_both = member.regex and state.patterns.get(member.regex)
    draft.remove_member(old_id)
    draft.set_member(new_id, member)
    draft.set_target(new_id, target)
    draft.set_current(new_id, current._replace(epoch=JOIN, previous_epoch=JOIN))
    if member.regex and regex_of_both:
        draft.set_pattern(member.regex, regex_of_both)
    return member


def check_instance(state: ConsumerGroupState, member_id: str, instance_id: str) -> None:
    known_id = state.static_ids.get(instance_id)
    if known_id is None:
        raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance {instance_id} is not in the group.")
    if known_id != member_id:
        raise Refusal(ErrorCode.FENCED_INSTANCE_ID, f"Instance {instance_id} is now member {known_id}.")


def _check_pattern(regex: str) -> None:
    try:
        compile_pattern(regex)
    except InvalidPattern as problem:
        message = f"{regex} is not a regular expression of RE2: {problem}."
        raise Refusal(ErrorCode.INVALID_REGULAR_EXPRESSION, message) from None


def _check_epoch(epoch: int, current: CurrentAssignment, owned: Assignment | None) -> None:
    """One epoch behind is fine if the answer that told of the new one was lost: it has nothing that is not its own."""
    if epoch == current.epoch:
        return
    if epoch < current.epoch and epoch == current.previous_epoch and is_within(owned, current.assigned):
        return
    message = f"The member is at epoch {current.epoch}, not {epoch}: it must give everything back and join again."
    raise Refusal(ErrorCode.FENCED_MEMBER_EPOCH, message)


def _updated(member: ConsumerMember, beat: Beat) -> ConsumerMember:
    """What a heartbeat does not say stays as it was."""
    body = beat.body
    names, regex = body.subscribed_topic_names, body.subscribed_topic_regex
    return ConsumerMember(
        member.instance_id if body.instance_id is None else body.instance_id,
        member.rack_id if body.rack_id is None else body.rack_id,
        beat.client_id,
        beat.client_host,
        member.topics if names is None else tuple(sorted(set(names))),
        member.regex if regex is None else regex,
        member.rebalance_timeout_ms if body.rebalance_timeout_ms == -1 else body.rebalance_timeout_ms,
        member.assignor if body.server_assignor is None else body.server_assignor,
    )
