"""Functions of the ACL handlers: authorization, filters and entries of requests, and rules about their codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kbroker.errors import PeerError, Refusal
from kbroker.protocol.acl_codes import (
    ANY,
    CLUSTER_NAME,
    MATCH,
    UNKNOWN,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from kbroker.protocol.error_codes import ErrorCode
from kbroker.security.acls.entries import AclBinding, AclEntry, ResourcePattern
from kbroker.security.acls.filters import AclFilter
from kbroker.server.access.permissions import allows_cluster, not_authorized_text

if TYPE_CHECKING:
    from kbroker.controller.acl_store import AclStore
    from kbroker.server.context import Context
    from kbroker.server.requests.request import Request

__all__ = ["acls_of", "binding_of", "check_codes", "filter_of"]

_NOT_CREATED: Final = "Failed to create ACL"


def acls_of(context: Context, request: Request, operation: AclOperation, *, without_authorizer: str) -> AclStore:
    """Returns the ACLs. Raises Refusal if the client is not authorized, or with the text if there is no authorizer."""
    if not allows_cluster(context, request, operation):
        raise Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, not_authorized_text(request))
    if context.acls is None:
        raise Refusal(ErrorCode.SECURITY_DISABLED, without_authorizer)
    return context.acls


def check_codes(*codes: int) -> None:
    """Raises PeerError if the code is one that no client may send. Kafka closes the connection too."""
    if UNKNOWN in codes:
        raise PeerError("ACL request has the code UNKNOWN")


def filter_of(item: Any) -> AclFilter:
    """Returns the filter of a DescribeAcls request, or one of a DeleteAcls request.

    Raises PeerError if a code is one that no client may send.
    """
    check_codes(item.resource_type_filter, item.pattern_type_filter, item.operation, item.permission_type)
    return AclFilter(
        item.resource_type_filter,
        item.resource_name_filter,
        item.pattern_type_filter,
        item.principal_filter,
        item.host_filter,
        item.operation,
        item.permission_type,
    )


def binding_of(creation: Any) -> AclBinding | Refusal:
    """Returns the entry that a CreateAcls request adds, or the Refusal if it is not valid.

    Raises Refusal, for the whole request, if a code is one that only filters have, as Kafka does.
    """
    _check_filter_codes(creation)
    name, principal = creation.resource_name, creation.principal
    if creation.resource_type == ResourceType.CLUSTER and name != CLUSTER_NAME:
        return _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not name:
        return _invalid("Invalid empty resource name")
    if "/" in name:
        return _invalid(_NOT_CREATED)
    if ":" not in principal:
        return _invalid(
            f"Could not parse principal from `{principal}` (no colon is present separating the principal type from "
            "the principal name)"
        )
    try:
        pattern = ResourcePattern(
            ResourceType(creation.resource_type), name, PatternType(creation.resource_pattern_type)
        )
        operation, permission = AclOperation(creation.operation), PermissionType(creation.permission_type)
    except ValueError:  # a code that this version does not know
        return _invalid(_NOT_CREATED)
    return AclBinding(pattern, AclEntry(principal, creation.host, operation, permission))


def _check_filter_codes(creation: Any) -> None:
    if creation.resource_type == ANY:
        raise Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "resourceType must not be ANY")
    if creation.resource_pattern_type in (ANY, MATCH):
        kind = "ANY" if creation.resource_pattern_type == ANY else "MATCH"
        raise Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, f"patternType must not be {kind}")
    if creation.operation == ANY:
        raise Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "operation must not be ANY")
    if creation.permission_type == ANY:
        raise Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, "permissionType must not be ANY")


def _invalid(text: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, text)
