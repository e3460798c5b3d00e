"""Kafka's codes in ACL requests and their names: operations, resource types, pattern types, permissions.

Each enum has the codes that an entry can have. UNKNOWN and the codes that only filters use are constants.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, TypeVar

__all__ = [
    "ANY",
    "CLUSTER_NAME",
    "MATCH",
    "UNKNOWN",
    "AclOperation",
    "Code",
    "PatternType",
    "PermissionType",
    "ResourceType",
    "code_of",
    "name_of",
]

UNKNOWN: Final = 0
"""Code that no request may have: Kafka closes the connection."""
ANY: Final = 1
"""Code of a filter that matches all values."""
MATCH: Final = 2
"""Pattern type of a filter that matches every pattern which covers a name."""

CLUSTER_NAME: Final = "kafka-cluster"
"""Name of the only resource of the type CLUSTER."""


class AclOperation(IntEnum):
    """Kafka's `AclOperation`. The numbers are also bit positions in authorized operations (KIP-430)."""

    __hash__ = int.__hash__  # the one of Enum is a Python function, and ACLs are hashed very often

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """Kafka's `ResourceType` of ACLs. Config resources have other numbers: `ConfigResourceType`."""

    __hash__ = int.__hash__

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    __hash__ = int.__hash__

    LITERAL = 3
    PREFIXED = 4


class PermissionType(IntEnum):
    __hash__ = int.__hash__

    DENY = 2
    ALLOW = 3


Code = TypeVar("Code", AclOperation, ResourceType, PatternType, PermissionType)


def name_of(code: IntEnum) -> str:
    """Returns Kafka's name in znodes and in audit lines, for example `DescribeConfigs`."""
    return _NAMES[type(code), code]


def code_of(kind: type[Code], name: str) -> Code | None:
    """Returns the code for a name in any case, with or without underscores, as Kafka reads it; None if unknown."""
    return _CODES[kind].get(name.replace("_", "").lower())  # type: ignore[return-value]


_KINDS: Final[tuple[type[IntEnum], ...]] = (AclOperation, ResourceType, PatternType, PermissionType)
_NAMES: Final = {(kind, code): code.name.title().replace("_", "") for kind in _KINDS for code in kind}
_CODES: Final[dict[type[IntEnum], dict[str, IntEnum]]] = {
    kind: {code.name.replace("_", "").lower(): code for code in kind} for kind in _KINDS
}
