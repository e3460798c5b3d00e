"""ConsumerGroupDescribe (69), v0-1: returns state, members and assignments of consumer groups (KIP-848).

Classic groups get GROUP_ID_NOT_FOUND. v1: the type of each member, classic or consumer (KIP-1099).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import Refusal
from kbroker.group.consumer.consumer_state import ConsumerGroupState
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import consumer_group_describe as messages
from kbroker.server.access.authorized_operations import group_operations
from kbroker.server.access.permissions import allows_topic
from kbroker.server.coordinators.group_requests import find_shard
from kbroker.time_slice import respond_once_in_slices

if TYPE_CHECKING:
    from kbroker.group.consumer.consumer_records import Assignment
    from kbroker.group.consumer.topics import TopicSource
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1

_Group = messages.DescribedGroup.value
_Member = messages.Member.value
_Assignment = messages.Assignment.value
_TopicPartitions = messages.TopicPartitions.value


def handle(context: Context, request: Request) -> Any:
    if "consumer" not in context.config.group_coordinator_rebalance_protocols:
        raise Refusal(ErrorCode.UNSUPPORTED_VERSION)
    # A group that a request names several times is described once: a small request must not make a huge response.
    return respond_once_in_slices(
        context.clock, partial(_describe, context, request), request.body.group_ids, _response
    )


def refuse(request: Request, code: int, message: str | None) -> Any:
    group_ids = dict.fromkeys(request.body.group_ids)
    return _response([_Group(group_id=group_id, error_code=code, error_message=message) for group_id in group_ids])


def _response(groups: list[Any]) -> Any:
    return messages.RESPONSE(groups=groups)


def _describe(context: Context, request: Request, group_id: str) -> Any:
    try:
        driver = find_shard(context, request, AclOperation.DESCRIBE, group_id, needs_id=True)
    except Refusal as refusal:
        return _Group(group_id=group_id, error_code=refusal.code)
    shard = driver.shard
    state = shard.describe_consumers(group_id)
    if state is None:
        is_classic = shard.describe(group_id) is not None
        message = f"Group {group_id} is not a consumer group." if is_classic else f"Group {group_id} not found."
        answer = _Group(group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=message)
    else:
        answer = _present(group_id, state, shard.topics, shard.default_assignor)
        names = {
            topic.topic_name
            for member in answer.members
            for assignment in (member.assignment, member.target_assignment)
            for topic in assignment.topic_partitions
        }
        if not all(allows_topic(context, request, AclOperation.DESCRIBE, name) for name in names):
            message = "The group has described topic(s) that the client is not authorized to describe."
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            answer = _Group(group_id=group_id, error_code=code, error_message=message)
    if request.body.include_authorized_operations:
        answer.authorized_operations = group_operations(context, request, group_id)
    return answer


def _present(group_id: str, state: ConsumerGroupState, topics: TopicSource, default_assignor: str) -> Any:
    return _Group(
        group_id=group_id,
        group_state=state.status.value,
        group_epoch=state.epoch,
        assignment_epoch=state.target_epoch,
        assignor_name=state.assignor(default_assignor),
        members=[_member(state, member_id, topics) for member_id in state.members],
    )


def _member(state: ConsumerGroupState, member_id: str, topics: TopicSource) -> Any:
    member, current = state.members[member_id], state.current(member_id)
    return _Member(
        member_id=member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=current.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.regex or "",
        assignment=_assignment(current.assigned, topics),
        target_assignment=_assignment(state.target(member_id), topics),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _assignment(assignment: Assignment, topics: TopicSource) -> Any:
    names = topics.image.topic_names_by_id
    return _Assignment(
        topic_partitions=[
            _TopicPartitions(topic_id=topic_id, topic_name=names[topic_id], partitions=sorted(partitions))
            for topic_id, partitions in assignment.items()
            if topic_id in names
        ]
    )
