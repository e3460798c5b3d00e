"""DescribeAcls (29), v0-3: returns the ACLs that match a filter (KIP-140). v1: pattern types (KIP-290)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.messages import describe_acls as messages
from kbroker.server.access.acl_requests import acls_of, filter_of
from kbroker.time_slice import respond_in_slices

if TYPE_CHECKING:
    from kbroker.security.acls.entries import ResourcePattern
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["handle"]

_NO_AUTHORIZER = "No Authorizer is configured on the broker"


def handle(context: Context, request: Request) -> Any:
    wanted = filter_of(request.body)
    acls = acls_of(context, request, AclOperation.DESCRIBE, without_authorizer=_NO_AUTHORIZER)

    def describe(pattern: ResourcePattern) -> Any:
        if not wanted.matches_pattern(pattern):
            return None
        entries = [entry for entry in acls.index.entries(pattern) if wanted.matches_entry(entry)]
        return _resource(pattern, entries) if entries else None

    return respond_in_slices(context.clock, describe, acls.index.patterns(), _response)


def _response(resources: list[Any]) -> Any:
    found = [resource for resource in resources if resource is not None]
    return messages.RESPONSE(error_message=None, resources=found)


def _resource(pattern: ResourcePattern, entries: list[Any]) -> Any:
    return messages.DescribeAclsResource(
        resource_type=pattern.type,
        resource_name=pattern.name,
        pattern_type=pattern.pattern_type,
        acls=[
            messages.AclDescription(
                principal=entry.principal,
                host=entry.host,
                operation=entry.operation,
                permission_type=entry.permission,
            )
            for entry in sorted(entries)
        ],
    )
