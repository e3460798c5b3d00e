"""ConsumerGroupDescribe (69), v0-1: state, members, what each has and shall have. Classic groups are not found here.

v1: whether a member speaks the classic protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import Refusal
from kbroker.group.consumer_state import ConsumerGroupState
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import consumer_group_describe as messages
from kbroker.server.authorization import Operation
from kbroker.server.group_requests import find_shard, group_operations
from kbroker.server.permissions import allows_topic

if TYPE_CHECKING:
    from kbroker.group.consumer_records import Assignment
    from kbroker.group.topics import Topics
    from kbroker.server.context import Context
    from kbroker.server.request import Request

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
    return messages.RESPONSE(groups=[_describe(context, request, each) for each in request.body.group_ids])


def refuse(request: Request, code: int, message: str | None) -> Any:
    groups = [_Group(group_id=each, error_code=code, error_message=message) for each in request.body.group_ids]
    return messages.RESPONSE(groups=groups)


def _describe(context: Context, request: Request, group_id: str) -> Any:
    if not group_id:
        return _Group(group_id=group_id, error_code=ErrorCode.INVALID_GROUP_ID)
    try:
        driver = find_shard(context, request, Operation.DESCRIBE, group_id)
    except Refusal as refusal:
        return _Group(group_id=group_id, error_code=refusal.code)
    shard = driver.shard
    state = shard.describe_consumers(group_id)
    if state is None:
        is_classic = shard.describe(group_id) is not None
        message = f"Group {group_id} is of the classic protocol." if is_classic else f"Group {group_id} not found."
        answer = _Group(group_id=group_id, error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=message)
    else:
        answer = _present(group_id, state, shard.topics, shard.default_assignor)
        names = {part.topic_name for each in answer.members for part in each.assignment.topic_partitions}
        names |= {part.topic_name for each in answer.members for part in each.target_assignment.topic_partitions}
        if not all(allows_topic(context, request, Operation.DESCRIBE, each) for each in names):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            answer = _Group(group_id=group_id, error_code=code, error_message="A topic of it is out of bounds.")
    if request.body.include_authorized_operations:
        answer.authorized_operations = group_operations(context, request, group_id)
    return answer


def _present(group_id: str, state: ConsumerGroupState, topics: Topics, default_assignor: str) -> Any:
    return _Group(
        group_id=group_id,
        group_state=state.status.value,
        group_epoch=state.epoch,
        assignment_epoch=state.target_epoch,
        assignor_name=state.assignor(default_assignor),
        members=[_member(state, each, topics) for each in state.members],
    )


def _member(state: ConsumerGroupState, member_id: str, topics: Topics) -> Any:
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


def _assignment(assignment: Assignment, topics: Topics) -> Any:
    names = topics.image.topic_names_by_id
    return _Assignment(
        topic_partitions=[
            _TopicPartitions(topic_id=each, topic_name=names[each], partitions=sorted(partitions))
            for each, partitions in assignment.items()
            if each in names
        ]
    )
