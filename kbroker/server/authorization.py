"""Who may do what. Every handler asks here at Kafka's granularity; without an authorizer everybody may do all."""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

__all__ = ["AllowAll", "Authorizer", "Operation", "ResourceType"]


class Operation(IntEnum):
    """Kafka's numbers of `AclOperation`; also the bits of authorized operations."""

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
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Authorizer(Protocol):
    allows_all: bool
    """True lets the hot path skip the question."""

    def allows(self, principal: str, host: str, operation: Operation, resource: ResourceType, name: str) -> bool: ...


class AllowAll:
    allows_all = True

    def allows(self, principal: str, host: str, operation: Operation, resource: ResourceType, name: str) -> bool:
        return True
