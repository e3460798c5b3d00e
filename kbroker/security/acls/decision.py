"""The rules of Kafka's authorizer over a list of bindings: deny before allow, implied operations, super users.

The plain form of the rules, for `kbroker acls test` and as the measure of `AclIndex`, which answers the same quickly.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

from kbroker.protocol.acl_codes import AclOperation, PermissionType, ResourceType
from kbroker.security.acls.entries import AclBinding, implied_operations
from kbroker.security.acls.hosts import java_host

__all__ = ["Access", "AclDecision", "AclRules", "Reason", "decide"]


class Access(NamedTuple):
    """An operation of a client on a resource. `host`: address of the client, in any text."""

    principal: str
    host: str
    operation: AclOperation
    resource: ResourceType
    name: str


class AclRules(NamedTuple):
    """Configs of the authorizer."""

    super_users: frozenset[str] = frozenset()
    allows_without_acl: bool = False
    """allow.everyone.if.no.acl.found: whether a resource that no entry covers is open to all principals."""


class Reason(Enum):
    SUPER_USER = "the principal is a super user"
    DENIED = "an entry denies it"
    ALLOWED = "an entry allows it"
    NO_ACL_FOUND = "no entry covers the resource"
    NOT_ALLOWED = "no entry allows it"


class AclDecision(NamedTuple):
    is_allowed: bool
    reason: Reason
    binding: AclBinding | None = None
    """The entry that decided; None if no single entry did."""


def decide(bindings: Iterable[AclBinding], access: Access, rules: AclRules) -> AclDecision:
    """Returns whether the access is allowed, and why."""
    if access.principal in rules.super_users:
        return AclDecision(True, Reason.SUPER_USER)
    host = java_host(access.host)
    allowing = implied_operations(access.operation)
    covering = [
        binding
        for binding in bindings
        if binding.pattern.type is access.resource and binding.pattern.covers(access.name)
    ]
    if not covering:
        return AclDecision(rules.allows_without_acl, Reason.NO_ACL_FOUND)
    applicable = [binding for binding in covering if binding.entry.is_for(access.principal, host)]
    for binding in applicable:
        operation, permission = binding.entry.operation, binding.entry.permission
        if permission is PermissionType.DENY and operation in (access.operation, AclOperation.ALL):
            return AclDecision(False, Reason.DENIED, binding)
    for binding in applicable:
        if binding.entry.permission is PermissionType.ALLOW and binding.entry.operation in allowing:
            return AclDecision(True, Reason.ALLOWED, binding)
    return AclDecision(False, Reason.NOT_ALLOWED)
