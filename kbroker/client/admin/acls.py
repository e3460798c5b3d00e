"""ACLs of a cluster: lists, adds and removes entries (DescribeAcls, CreateAcls, DeleteAcls)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kbroker.client.cluster import Cluster
from kbroker.client.failures import BrokerRefusal
from kbroker.protocol.acl_codes import AclOperation, PatternType, PermissionType, ResourceType
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.registry import api
from kbroker.security.acls.entries import AclBinding, AclEntry, ResourcePattern
from kbroker.security.acls.filters import AclFilter

__all__ = ["create_acls", "delete_acls", "describe_acls"]

DESCRIBE_ACLS: Final = api(29)
CREATE_ACLS: Final = api(30)
DELETE_ACLS: Final = api(31)

_SUBJECT: Final = "ACLs"
# Without pattern types (v0) a prefix would become a literal name.
_PATTERNS_SINCE: Final = 1
_USERS_SINCE: Final = 3


async def describe_acls(cluster: Cluster, wanted: AclFilter) -> list[AclBinding]:
    """Returns the entries that match, sorted."""
    connection = await cluster.any_connection()
    response = await connection.send(DESCRIBE_ACLS, at_least=_PATTERNS_SINCE, **_filter_members(wanted))
    if response.error_code != ErrorCode.NONE:
        raise BrokerRefusal(response.error_code, _SUBJECT, response.error_message)
    found = [
        _binding(resource.resource_type, resource.resource_name, resource.pattern_type, acl)
        for resource in response.resources
        for acl in resource.acls
    ]
    return sorted(binding for binding in found if binding is not None)


async def create_acls(cluster: Cluster, bindings: Sequence[AclBinding]) -> None:
    """Adds entries; those that exist stay. Raises BrokerRefusal if one is refused, with the reason of the first."""
    from kbroker.protocol.messages.create_acls import AclCreation

    has_users = any(binding.pattern.type is ResourceType.USER for binding in bindings)
    creations = [
        AclCreation(
            resource_type=pattern.type,
            resource_name=pattern.name,
            resource_pattern_type=pattern.pattern_type,
            principal=entry.principal,
            host=entry.host,
            operation=entry.operation,
            permission_type=entry.permission,
        )
        for pattern, entry in bindings
    ]
    connection = await cluster.any_connection()
    response = await connection.send(
        CREATE_ACLS, at_least=_USERS_SINCE if has_users else _PATTERNS_SINCE, creations=creations
    )
    for binding, result in zip(bindings, response.results, strict=True):
        if result.error_code != ErrorCode.NONE:
            raise BrokerRefusal(result.error_code, f"ACL '{binding}'", result.error_message)


async def delete_acls(cluster: Cluster, wanted: AclFilter) -> list[AclBinding]:
    """Removes the entries that match, and returns them."""
    from kbroker.protocol.messages.delete_acls import DeleteAclsFilter

    connection = await cluster.any_connection()
    filters = [DeleteAclsFilter(**_filter_members(wanted))]
    response = await connection.send(DELETE_ACLS, at_least=_PATTERNS_SINCE, filters=filters)
    (result,) = response.filter_results
    for refused in (result, *result.matching_acls):
        if refused.error_code != ErrorCode.NONE:
            raise BrokerRefusal(refused.error_code, _SUBJECT, refused.error_message)
    found = [_binding(acl.resource_type, acl.resource_name, acl.pattern_type, acl) for acl in result.matching_acls]
    return sorted(binding for binding in found if binding is not None)


def _filter_members(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def _binding(resource_type: int, name: str, pattern_type: int, acl: Any) -> AclBinding | None:
    """Returns None for an entry with a code that only a newer Kafka knows."""
    try:
        pattern = ResourcePattern(ResourceType(resource_type), name, PatternType(pattern_type))
        operation, permission = AclOperation(acl.operation), PermissionType(acl.permission_type)
    except ValueError:
        return None
    return AclBinding(pattern, AclEntry(acl.principal, acl.host, operation, permission))
