"""ListGroups (16), v0-5: lists the groups that this broker coordinates.

v4: filter by state (KIP-518). v5: filter by type (KIP-848).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.messages import list_groups as messages
from kbroker.server.access.permissions import allows_cluster, allows_group

if TYPE_CHECKING:
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]

_Listed = messages.ListedGroup.value


def handle(context: Context, request: Request) -> Any:
    states = {state.lower() for state in request.body.states_filter}
    types = {group_type.lower() for group_type in request.body.types_filter}
    may_see_all = allows_cluster(context, request, AclOperation.DESCRIBE, quiet=True)
    groups = [
        _Listed(
            group_id=group.group_id,
            protocol_type=group.protocol_type,
            group_state=group.state.value,
            group_type=group.type,
        )
        for driver in context.groups.shards.loaded()
        for group in driver.shard.list_groups()
        if (not states or group.state.value.lower() in states)
        and (not types or group.type in types)
        and (may_see_all or allows_group(context, request, AclOperation.DESCRIBE, group.group_id, quiet=True))
    ]
    return messages.RESPONSE(groups=groups)
