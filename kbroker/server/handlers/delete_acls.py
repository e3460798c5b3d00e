"""DeleteAcls (31), v0-3: deletes the ACLs that match filters, and returns them (KIP-140). v1: pattern types (KIP-290).

An entry that several filters match is returned for the first of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.errors import Refusal
from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.messages import delete_acls as messages
from kbroker.server.access.acl_requests import acls_of, filter_of
from kbroker.server.requests.error_fields import error_fields
from kbroker.time_slice import map_in_slices

if TYPE_CHECKING:
    from kbroker.clock import Clock
    from kbroker.controller.acl_store import AclStore, RemovedAcl
    from kbroker.security.acls.entries import AclBinding
    from kbroker.security.acls.filters import AclFilter
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle", "refuse"]


def handle(context: Context, request: Request) -> Any:
    filters = [filter_of(item) for item in request.body.filters]
    acls = acls_of(context, request, AclOperation.ALTER, without_authorizer="No Authorizer is configured.")
    return _delete(context.clock, acls, filters)


async def _delete(clock: Clock, acls: AclStore, filters: list[AclFilter]) -> Any:
    return messages.RESPONSE(filter_results=await map_in_slices(clock, _result, await acls.remove(filters)))


def _result(removed: list[RemovedAcl]) -> Any:
    return messages.DeleteAclsFilterResult(
        error_message=None, matching_acls=[_matching(*outcome) for outcome in removed]
    )


def _matching(binding: AclBinding, refusal: Refusal | None) -> Any:
    pattern, entry = binding
    return messages.DeleteAclsMatchingAcl(
        **error_fields(refusal),
        resource_type=pattern.type,
        resource_name=pattern.name,
        pattern_type=pattern.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )


def refuse(request: Request, code: int, message: str | None) -> Any:
    return messages.RESPONSE(
        filter_results=[
            messages.DeleteAclsFilterResult(error_code=code, error_message=message) for _ in request.body.filters
        ]
    )
