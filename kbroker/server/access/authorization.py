"""Authorizer that handlers ask through `permissions.py`. Without `authorizer.class.name` it allows everything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kbroker.protocol.acl_codes import AclOperation, ResourceType

if TYPE_CHECKING:
    from kbroker.security.acls.decision import Access

__all__ = ["AllowAll", "Authorizer"]


class Authorizer(Protocol):
    allows_all: bool
    """True if `allows` always returns True: the hot path skips the call then."""

    @property
    def logs_all(self) -> bool:
        """Whether allowed requests are logged too. Then no request may skip its handler."""
        ...

    def allows(self, principal: str, host: str, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        """Decides, without an audit line."""
        ...

    def allows_any(self, principal: str, host: str, operation: AclOperation, resource: ResourceType) -> bool:
        """Whether the operation is allowed on any resource of the type, also on one that does not exist."""
        ...

    def audit(self, access: Access, api_name: str, *, is_allowed: bool) -> None:
        """Logs a decision, as Kafka's authorizer does."""
        ...


class AllowAll:
    allows_all = True
    logs_all = False

    def allows(self, principal: str, host: str, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        return True

    def allows_any(self, principal: str, host: str, operation: AclOperation, resource: ResourceType) -> bool:
        return True

    def audit(self, access: Access, api_name: str, *, is_allowed: bool) -> None:
        """Logs nothing."""
