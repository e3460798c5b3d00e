"""DescribeGroups (15), v0-6: returns state, protocol and members of classic groups.

A group that does not exist is described as Dead, from v6 with GROUP_ID_NOT_FOUND (KIP-1043). The protocol and the
members' metadata and assignments are sent only for a stable group, as in Apache Kafka: before that, the members have
not agreed on a protocol. A group that a request names several times is described once, so that a small request does not
make a huge response.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import Refusal
from kbroker.group.classic.states import GroupState
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import describe_groups as messages
from kbroker.server.access.authorized_operations import group_operations
from kbroker.server.coordinators.group_requests import find_shard
from kbroker.time_slice import respond_once_in_slices

if TYPE_CHECKING:
    from kbroker.group.classic.classic_group import ClassicGroup
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]

NOT_FOUND_SINCE: Final = 6

_Group = messages.DescribedGroup.value
_Member = messages.DescribedGroupMember.value


def handle(context: Context, request: Request) -> Any:
    return respond_once_in_slices(context.clock, partial(_describe, context, request), request.body.groups, _response)


def refuse(request: Request, code: int, message: str | None) -> Any:
    return _response([_Group(group_id=group_id, error_code=code) for group_id in dict.fromkeys(request.body.groups)])


def _response(groups: list[Any]) -> Any:
    return messages.RESPONSE(groups=groups)


def _describe(context: Context, request: Request, group_id: str) -> Any:
    try:
        driver = find_shard(context, request, AclOperation.DESCRIBE, group_id)
    except Refusal as refusal:
        return _Group(group_id=group_id, error_code=refusal.code)
    group = driver.shard.describe(group_id)
    if group is None:
        is_consumer = driver.shard.describe_consumers(group_id) is not None
        answer = _absent(request, group_id, "is not a classic group" if is_consumer else "not found")
    else:
        answer = _present(group)
    if request.body.include_authorized_operations and answer.error_code == ErrorCode.NONE:
        answer.authorized_operations = group_operations(context, request, group_id)
    return answer


def _absent(request: Request, group_id: str, reason: str) -> Any:
    answer = _Group(group_id=group_id, group_state=GroupState.DEAD.value)
    if request.version >= NOT_FOUND_SINCE:
        answer.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        answer.error_message = f"Group {group_id} {reason}."
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
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol) if is_stable else b"",
                member_assignment=member.assignment if is_stable else b"",
            )
            for member in group.roster.by_id.values()
        ],
    )
