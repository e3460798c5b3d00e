"""DescribeGroups (15), v0-6: state, protocol and members of classic groups.

A group that is not there is Dead; from v6 on it is GROUP_ID_NOT_FOUND too. What members said of themselves is told only
of a stable group: before that they have not agreed on how to say it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import Refusal
from kbroker.group.states import GroupState
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_groups as messages
from kbroker.server.authorization import Operation
from kbroker.server.group_requests import find_shard, group_operations

if TYPE_CHECKING:
    from kbroker.group.classic import ClassicGroup
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle", "refuse"]

NOT_FOUND_SINCE: Final = 6

_Group = messages.DescribedGroup.value
_Member = messages.DescribedGroupMember.value


def handle(context: Context, request: Request) -> Any:
    return messages.RESPONSE(groups=[_describe(context, request, each) for each in request.body.groups])


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(groups=[_Group(group_id=each, error_code=code) for each in request.body.groups])


def _describe(context: Context, request: Request, group_id: str) -> Any:
    try:
        driver = find_shard(context, request, Operation.DESCRIBE, group_id)
    except Refusal as refusal:
        return _Group(group_id=group_id, error_code=refusal.code)
    group = driver.shard.describe(group_id)
    if group is None:
        is_consumer = driver.shard.describe_consumers(group_id) is not None
        answer = _absent(request, group_id, "is not of the classic protocol" if is_consumer else "not found")
    else:
        answer = _present(group)
    if request.body.include_authorized_operations and answer.error_code == ErrorCode.NONE:
        answer.authorized_operations = group_operations(context, request, group_id)
    return answer


def _absent(request: Request, group_id: str, why: str) -> Any:
    answer = _Group(group_id=group_id, group_state=GroupState.DEAD.value)
    if request.version >= NOT_FOUND_SINCE:
        answer.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        answer.error_message = f"Group {group_id} {why}."
    return answer


def _present(group: ClassicGroup) -> Any:
    is_stable = group.state is GroupState.STABLE
    return _Group(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=(group.protocol or "") if is_stable else "",
        members=[
            _Member(
                member_id=each.member_id,
                group_instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                member_metadata=each.metadata(group.protocol) if is_stable else b"",
                member_assignment=each.assignment if is_stable else b"",
            )
            for each in group.roster.by_id.values()
        ],
    )
