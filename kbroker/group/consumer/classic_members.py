"""Members of the classic protocol in a consumer group, while an application migrates to the consumer protocol.

They join, sync and send heartbeats as in a classic group, but never wait for each other: the broker assigns. A join is
answered at once, with the member epoch as the generation and without a leader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.errors import Refusal
from kbroker.group.classic.classic_group import JoinRequest
from kbroker.group.classic.consumer_protocol_codec import (
    MalformedConsumerProtocol,
    Subscription,
    encode_assignment,
    read_subscription,
)
from kbroker.group.classic.rebalance import join_error
from kbroker.group.classic.subscriptions import CONSUMER
from kbroker.group.consumer.consumer_group import NEW_MEMBER, ConsumerGroup, check_instance, replace_static_member
from kbroker.group.consumer.consumer_records import UNRELEASED, UNREVOKED, ClassicSide, ConsumerMember
from kbroker.group.consumer.consumer_state import ConsumerGroupState, Draft
from kbroker.group.consumer.reconciliation import waits_for_others
from kbroker.group.consumer.topics import TopicSource
from kbroker.group.result import GroupCoordinatorConfig, GroupResult, Now
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import join_group, sync_group

__all__ = ["check_commit", "heartbeat_classic", "join_classic", "leave_classic", "sync_classic"]

_JoinResponse = join_group.RESPONSE.value
_SyncResponse = sync_group.RESPONSE.value


def join_classic(
    group: ConsumerGroup,
    request: JoinRequest,
    draft: Draft,
    topics: TopicSource,
    config: GroupCoordinatorConfig,
    now: Now,
    result: GroupResult,
) -> str | None:
    """Handles a JoinGroup. Returns the id of the member, or None if it must join again with its new member id."""
    body, state = request.body, draft.state
    member_id = body.member_id or request.new_id
    if len(state.members) >= config.consumer_max_size and member_id not in state.members:
        raise Refusal(ErrorCode.GROUP_MAX_SIZE_REACHED)
    if body.protocol_type != CONSUMER or not _shares_one_of(state, {name for name, _ in request.protocols}):
        raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if not body.member_id and body.group_instance_id is None and request.version >= 4:
        result.replies.append((request.pending, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id)))
        return None
    try:
        subscription = read_subscription(request.protocols[0][1])
    except MalformedConsumerProtocol:
        raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None
    member = _identify(group, draft, member_id, body)
    updated = _updated(member, request, subscription)
    is_changed = group.subscribe(draft, member_id, member, updated, None, now, result)
    group.refresh(draft, None, now, result, is_changed=is_changed)
    group.assign(draft, result)
    current = group.reconcile(draft, member_id, topics.by_id(subscription.owned), now)
    group.touch(member_id, updated, now)
    group.expect_sync(member_id, updated, now)
    response = _JoinResponse(
        member_id=member_id,
        generation_id=current.epoch,
        protocol_type=CONSUMER,
        protocol_name=request.protocols[0][0],
    )
    result.replies.append((request.pending, response))
    group.put_alarm(result)
    return member_id


def _shares_one_of(state: ConsumerGroupState, names: set[str]) -> bool:
    supported = [
        {name for name, _ in member.classic.protocols}
        for member in state.members.values()
        if member.classic is not None
    ]
    return bool(names.intersection(*supported))


def _identify(group: ConsumerGroup, draft: Draft, member_id: str, body: Any) -> ConsumerMember:
    state = draft.state
    if body.group_instance_id is None:
        return state.members.get(member_id, NEW_MEMBER)
    known_id = state.static_ids.get(body.group_instance_id)
    if body.member_id:
        check_instance(state, member_id=member_id, instance_id=body.group_instance_id)
        return state.members[member_id]
    if known_id is None:
        return NEW_MEMBER
    group.forget(known_id)
    return replace_static_member(draft, old_id=known_id, new_id=member_id)


def _updated(member: ConsumerMember, request: JoinRequest, subscription: Subscription) -> ConsumerMember:
    body = request.body
    return ConsumerMember(
        member.instance_id if body.group_instance_id is None else body.group_instance_id,
        member.rack_id if subscription.rack_id is None else subscription.rack_id,
        request.client_id,
        request.client_host,
        tuple(sorted(set(subscription.topics))),
        None,
        request.rebalance_timeout_ms,
        None,
        ClassicSide(body.session_timeout_ms, request.protocols),
    )


def _classic_member(state: ConsumerGroupState, member_id: str, instance_id: str | None) -> ConsumerMember:
    if instance_id is not None:
        check_instance(state, member_id=member_id, instance_id=instance_id)
    member = state.members.get(member_id)
    if member is None or member.classic is None:
        raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def sync_classic(group: ConsumerGroup, body: Any, state: ConsumerGroupState, topics: TopicSource, now: Now) -> Any:
    """Returns the SyncGroup response. Raises Refusal if the member must rejoin first or the request is invalid."""
    member_id = body.member_id
    member = _classic_member(state, member_id, body.group_instance_id)
    assert member.classic is not None
    name, metadata = member.classic.protocols[0]
    current = state.current(member_id)
    if body.generation_id != current.epoch:
        raise Refusal(ErrorCode.ILLEGAL_GENERATION)
    if body.protocol_type not in (None, CONSUMER) or body.protocol_name not in (None, name):
        raise Refusal(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    # A member that must still revoke partitions has rejoined already, and gets the partitions that it keeps.
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
    is_unblocked = current.state == UNRELEASED and not waits_for_others(current, state.target(member_id), state.owners)
    if current.epoch < state.epoch or current.state == UNREVOKED or is_unblocked:
        group.expect_join(member_id, member, now)
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def leave_classic(
    group: ConsumerGroup, leaving: Iterable[tuple[str, str | None]], draft: Draft
) -> list[tuple[str, ErrorCode]]:
    """Removes members, given as (member id, instance id). Returns the member id and the error code of each."""
    outcomes = []
    for member_id, instance_id in leaving:
        if not member_id and instance_id is not None:
            member_id = draft.state.static_ids.get(instance_id, "")
        try:
            # An admin may remove members of either protocol.
            if instance_id is not None:
                check_instance(draft.state, member_id=member_id, instance_id=instance_id)
            elif member_id not in draft.state.members:
                raise Refusal(ErrorCode.UNKNOWN_MEMBER_ID)
        except Refusal as refusal:
            outcomes.append((member_id, ErrorCode(refusal.code)))
        else:
            group.remove(draft, member_id)
            outcomes.append((member_id, ErrorCode.NONE))
    return outcomes


def check_commit(state: ConsumerGroupState, member_id: str, *, epoch: int, version: int) -> ErrorCode:
    """Validates a commit to a consumer group.

    Epoch -1 is allowed in an empty group: from an admin, or from a consumer that assigns its partitions itself.
    """
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
