"""ListGroups (16), v0-5: the groups that this broker coordinates; by state from v4 on, by type from v5 on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.protocol.messages import list_groups as messages
from kbroker.server.authorization import Operation
from kbroker.server.group_requests import allows_group
from kbroker.server.permissions import allows_cluster

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.request import Request

__all__ = ["handle"]

_Listed = messages.ListedGroup.value


def handle(context: Context, request: Request) -> Any:
    states = {each.lower() for each in request.body.states_filter}
    types = {each.lower() for each in request.body.types_filter}
    may_see_all = allows_cluster(context, request, Operation.DESCRIBE)
    groups = [
        _Listed(
            group_id=each.group_id,
            protocol_type=each.protocol_type,
            group_state=each.state.value,
            group_type=each.type,
        )
        for driver in context.groups.loaded()
        for each in driver.shard.list_groups()
        if (not states or each.state.value.lower() in states)
        and (not types or each.type in types)
        and (may_see_all or allows_group(context, request, Operation.DESCRIBE, each.group_id))
    ]
    return messages.RESPONSE(groups=groups)
