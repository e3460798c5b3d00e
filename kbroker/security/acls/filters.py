"""Filters of DescribeAcls and DeleteAcls. Codes stay numbers: a filter with an unknown code matches nothing."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.protocol.acl_codes import ANY, MATCH
from kbroker.security.acls.entries import AclBinding, AclEntry, ResourcePattern

__all__ = ["AclFilter"]


class AclFilter(NamedTuple):
    """None and ANY match everything."""

    resource_type: int = ANY
    name: str | None = None
    pattern_type: int = ANY
    """ANY: patterns of this name. MATCH: all patterns that cover this name."""
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission: int = ANY

    def matches(self, binding: AclBinding) -> bool:
        return self.matches_pattern(binding.pattern) and self.matches_entry(binding.entry)

    def matches_pattern(self, pattern: ResourcePattern) -> bool:
        if self.resource_type not in (ANY, pattern.type):
            return False
        if self.pattern_type not in (ANY, MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        return pattern.covers(self.name) if self.pattern_type == MATCH else pattern.name == self.name

    def matches_entry(self, entry: AclEntry) -> bool:
        return (
            self.principal in (None, entry.principal)
            and self.host in (None, entry.host)
            and self.operation in (ANY, entry.operation)
            and self.permission in (ANY, entry.permission)
        )
