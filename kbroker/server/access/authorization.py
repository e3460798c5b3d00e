"""Authorizer that handlers ask, with Kafka's operations and resource types. The default one allows everything."""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

__all__ = ["AclOperation", "AllowAll", "Authorizer", "ResourceType"]


class AclOperation(IntEnum):
    """Kafka's `AclOperation`. The numbers are also bit positions in authorized operations (KIP-430)."""

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


class ResourceType(IntEnum):
    """Kafka's `ResourceType` of ACLs. Config resources have other numbers: `ConfigResourceType`."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Authorizer(Protocol):
    allows_all: bool
    """True if `allows` always returns True: the hot path skips the call then."""

    def allows(self, principal: str, host: str, operation: AclOperation, resource: ResourceType, name: str) -> bool: ...


class AllowAll:
    allows_all = True

    def allows(self, principal: str, host: str, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        return True
