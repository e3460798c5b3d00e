"""ACL entries and the patterns of resources that they are for, as values."""

from __future__ import annotations

from typing import Final, NamedTuple

from kbroker.protocol.acl_codes import AclOperation, PatternType, PermissionType, ResourceType, name_of

__all__ = ["ANY_HOST", "ANY_NAME", "ANY_PRINCIPAL", "AclBinding", "AclEntry", "ResourcePattern", "implied_operations"]

ANY_NAME: Final = "*"
"""Name of a literal pattern that covers all resources of its type."""
ANY_PRINCIPAL: Final = "User:*"
ANY_HOST: Final = "*"

# An entry that allows one of these operations also allows the operation that it maps to. Denials imply nothing.
_IMPLIED: Final = {
    AclOperation.READ: AclOperation.DESCRIBE,
    AclOperation.WRITE: AclOperation.DESCRIBE,
    AclOperation.DELETE: AclOperation.DESCRIBE,
    AclOperation.ALTER: AclOperation.DESCRIBE,
    AclOperation.ALTER_CONFIGS: AclOperation.DESCRIBE_CONFIGS,
}


class ResourcePattern(NamedTuple):
    """One resource, all resources of a type (`*`), or the resources whose names begin with a prefix."""

    type: ResourceType
    name: str
    pattern_type: PatternType = PatternType.LITERAL

    def covers(self, name: str) -> bool:
        """Whether the pattern applies to a resource of its type. A prefix `*` is a star, not a wildcard."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, ANY_NAME)

    def __str__(self) -> str:
        """Formats as Kafka does in audit lines: `Topic:LITERAL:orders`."""
        return f"{name_of(self.type)}:{self.pattern_type.name}:{self.name}"


class AclEntry(NamedTuple):
    principal: str
    """Type and name, for example `User:alice`. They are compared as text."""
    host: str
    """Address in Java's text, or `*`."""
    operation: AclOperation
    permission: PermissionType

    def is_for(self, principal: str, host: str) -> bool:
        return self.principal in (principal, ANY_PRINCIPAL) and self.host in (host, ANY_HOST)


class AclBinding(NamedTuple):
    pattern: ResourcePattern
    entry: AclEntry

    def __str__(self) -> str:
        operation, permission = name_of(self.entry.operation), name_of(self.entry.permission)
        return f"{self.entry.principal} {permission} {operation} from {self.entry.host} on {self.pattern}"


def implied_operations(operation: AclOperation) -> frozenset[AclOperation]:
    """Returns the operations whose ALLOW entries allow `operation`."""
    return _ALLOWED_BY[operation]


_ALLOWED_BY: Final = {
    wanted: frozenset(
        {wanted, AclOperation.ALL, *(operation for operation, implied in _IMPLIED.items() if implied is wanted)}
    )
    for wanted in AclOperation
}
