"""Members of the classic protocol in a group of the consumer protocol, while an application moves to the other.

They join, sync and send heartbeats as ever, but nobody waits for anybody: the broker has assigned already, a join is
answered at once with the member's epoch as the generation, and nobody leads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.errors import Refusal
from kbroker.group.classic import Joining, join_error
from kbroker.group.consumer import NEWCOMER, ConsumerGroup, check_instance, replace_static_member
from kbroker.group.consumer_records import UNRELEASED, UNREVOKED, ClassicSide, ConsumerMember
from kbroker.group.consumer_state import ConsumerGroupState, Draft
from kbroker.group.embedded import MalformedEmbedding, Subscription, encode_assignment, read_subscription
from kbroker.group.reconciliation import waits_for_others
from kbroker.group.step import GroupConfig, Now, Step
from kbroker.group.subscriptions import CONSUMER
from kbroker.group.topics import Topics
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import join_group, sync_group

__all__ = ["check_commit", "heartbeat_classic", "join_classic", "leave_classic", "sync_classic"]

_JoinResponse = join_group.RESPONSE.value
_SyncResponse = sync_group.RESPONSE.value


def join_classic(
    group: ConsumerGroup, joining: Joining, draft: Draft, topics: Topics, config: GroupConfig, now: Now, step: Step
) -> str | None:
    """The id of the member that has joined; None if it has been told something else."""
    body, state = joining.body, draft.state
    member_id = body.member_id or joining.new_id
    if len(state.members) >= config.consumer_max_size and member_id not in state.members:
        raise Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED)
    if body.protocol_type != CONSUMER or not _shares_one_of(state, {name for name, _ in joining.protocols}):
        raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not body.member_id and body.group_instance_id is None and joining.version >= 4:
        step.replies.append((joining.ticket, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id)))
        return None
    try:
        subscription = read_subscription(joining.protocols[0][1])
    except MalformedEmbedding:
        raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None
    member = _identify(group, draft, member_id, body)
    updated = _updated(member, joining, subscription)
    is_changed = group.subscribe(draft, member_id, member, updated, None, now, step)
    group.refresh(draft, None, now, step, is_changed=is_changed)
    group.assign(draft)
    current = group.reconcile(draft, member_id, topics.by_id(subscription.owned), now)
    group.touch(member_id, updated, now)
    group.expect_sync(member_id, updated, now)
    answer = _JoinResponse(
        member_id=member_id,
        generation_id=current.epoch,
        protocol_type=CONSUMER,
        protocol_name=joining.protocols[0][0],
    )
    step.replies.append((joining.ticket, answer))
    group.put_alarm(step)
    return member_id


def _shares_one_of(state: ConsumerGroupState, names: set[str]) -> bool:
    sides = [each.classic for each in state.members.values() if each.classic is not None]
    supported = [{name for name, _ in each.protocols} for each in sides]
    return bool(names.intersection(*supported))


def _identify(group: ConsumerGroup, draft: Draft, member_id: str, body: Any) -> ConsumerMember:
    state = draft.state
    if body.group_instance_id is None:
        return state.members.get(member_id, NEWCOMER)
    known_id = state.static_ids.get(body.group_instance_id)
    if body.member_id:
        check_instance(state, member_id, body.group_instance_id)
        return state.members[member_id]
    if known_id is None:
        return NEWCOMER
    group.forget(known_id)
    return replace_static_member(draft, known_id, member_id)


def _updated(member: ConsumerMember, joining: Joining, subscription: Subscription) -> ConsumerMember:
    body = joining.body
    return ConsumerMember(
        member.instance_id if body.group_instance_id is None else body.group_instance_id,
        member.rack_id if subscription.rack_id is None else subscription.rack_id,
        joining.client_id,
        joining.client_host,
        tuple(sorted(set(subscription.topics))),
        None,
        joining.rebalance_timeout_ms,
        None,
        ClassicSide(body.session_timeout_ms, joining.protocols),
    )


def _classic_member(state: ConsumerGroupState, member_id: str, instance_id: str | None) -> ConsumerMember:
    if instance_id is not None:
        check_instance(state, member_id, instance_id)
    member = state.members.get(member_id)
    if member is None or member.classic is None:
        raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def sync_classic(group: ConsumerGroup, body: Any, state: ConsumerGroupState, topics: Topics, now: Now) -> Any:
    """The answer; Refusal if there is none to have."""
    member_id = body.member_id
    member = _classic_member(state, member_id, body.group_instance_id)
    assert member.classic is not None
    name, metadata = member.classic.protocols[0]
    current = state.current(member_id)
    if body.generation_id != current.epoch:
        raise Refusal(ErrorCode.ILLEGAL_GENERATION)
    if body.protocol_type not in (None, CONSUMER) or body.protocol_name not in (None, name):
        raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    # Who has still to give partitions back has rejoined already; it gets what it may keep.
    if state.epoch > current.epoch and current.state != UNREVOKED:
        group.expect_join(member_id, member, now)
        raise Refusal(ErrorCode.REBALANCE_IN_PROGRESS)
    group.on_sync(member_id)
    group.touch(member_id, member, now)
    assignment = encode_assignment(topics.by_name(current.assigned), read_subscription(metadata).version)
    return _SyncResponse(protocol_type=CONSUMER, protocol_name=name, assignment=assignment)


def heartbeat_classic(group: ConsumerGroup, body: Any, state: ConsumerGroupState, now: Now) -> ErrorCode:
    member_id = body.member_id
    try:
        member = _classic_member(state, member_id, body.group_instance_id)
    except Refusal as refusal:
        return ErrorCode(refusal.code)
    current = state.current(member_id)
    if body.generation_id != current.epoch:
        return ErrorCode.ILLEGAL_GENERATION
    group.touch(member_id, member, now)
    is_free = current.state == UNRELEASED and not waits_for_others(current, state.target(member_id), state.owners)
    if current.epoch < state.epoch or current.state == UNREVOKED or is_free:
        group.expect_join(member_id, member, now)
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def leave_classic(
    group: ConsumerGroup, leaving: Iterable[tuple[str, str | None]], draft: Draft
) -> list[tuple[str, ErrorCode]]:
    """The member's id and the outcome for each (member id, instance id)."""
    outcomes = []
    for member_id, instance_id in leaving:
        if not member_id and instance_id is not None:
            member_id = draft.state.static_ids.get(instance_id, "")
        try:
            # An admin may send members of either protocol away.
            if instance_id is not None:
                check_instance(draft.state, member_id, instance_id)
            elif member_id not in draft.state.members:
                raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)
        except Refusal as refusal:
            outcomes.append((member_id, ErrorCode(refusal.code)))
        else:
            group.remove(draft, member_id)
            outcomes.append((member_id, ErrorCode.NONE))
    return outcomes


def check_commit(state: ConsumerGroupState, member_id: str, epoch: int, version: int) -> ErrorCode:
    """Epoch -1: by an admin, or by a consumer that assigns partitions to itself, if the group is empty."""
    if epoch < 0 and not state.members:
        return ErrorCode.NONE
    member = state.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if member.classic is None and version < 9:
        return ErrorCode.UNSUPPORTED_VERSION
    if epoch == state.current(member_id).epoch:
        return ErrorCode.NONE
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
