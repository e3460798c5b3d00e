"""ACLs in memory: the entries of each pattern, and decisions about requests. Asked for every request, so it is quick.

A decision is remembered until any entry changes. Otherwise the patterns that cover a name are looked up: the name
itself, `*`, and one prefix for each length that any prefix has. The entries of a pattern are grouped by principal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from kbroker.protocol.acl_codes import AclOperation, PatternType, PermissionType, ResourceType
from kbroker.security.acls.decision import AclRules
from kbroker.security.acls.entries import (
    ANY_NAME,
    ANY_PRINCIPAL,
    AclBinding,
    AclEntry,
    ResourcePattern,
    implied_operations,
)
from kbroker.security.acls.hosts import java_host

__all__ = ["MAX_DECISIONS", "AclIndex"]

MAX_DECISIONS: Final = 65_536
"""Decisions that are remembered. Clients choose names: without a bound they could fill the memory."""
_MAX_TEXT: Final = 512  # longer texts are not remembered
_ANY_RESOURCE: Final = 1 << 16  # marks decisions of `allows_any`
_DENY: Final = PermissionType.DENY

_ByPrincipal = dict[str, tuple[AclEntry, ...]]


class _Patterns:
    """Patterns of one resource type."""

    def __init__(self) -> None:
        self.literal: dict[str, _ByPrincipal] = {}
        self.prefixed: dict[str, _ByPrincipal] = {}
        self.lengths: dict[int, int] = {}
        """Length of a prefix -> number of prefixes."""
        self.held: dict[str, set[ResourcePattern]] = {}
        """Principal -> patterns with entries for it."""

    def table(self, pattern: ResourcePattern) -> dict[str, _ByPrincipal]:
        return self.prefixed if pattern.pattern_type is PatternType.PREFIXED else self.literal

    def replace(self, pattern: ResourcePattern, entries: Iterable[AclEntry]) -> None:
        grouped: _ByPrincipal = {}
        for entry in entries:
            grouped[entry.principal] = (*grouped.get(entry.principal, ()), entry)
        table = self.table(pattern)
        before = table.pop(pattern.name, None)
        if before is not None:
            self._forget(pattern, before)
        if not grouped:
            return
        table[pattern.name] = grouped
        held = self.held
        for principal in grouped:
            if principal in held:
                held[principal].add(pattern)
            else:
                held[principal] = {pattern}
        if pattern.pattern_type is PatternType.PREFIXED:
            self.lengths[len(pattern.name)] = self.lengths.get(len(pattern.name), 0) + 1

    def _forget(self, pattern: ResourcePattern, before: _ByPrincipal) -> None:
        for principal in before:
            patterns = self.held[principal]
            patterns.discard(pattern)
            if not patterns:
                del self.held[principal]
        if pattern.pattern_type is PatternType.PREFIXED:
            length = len(pattern.name)
            self.lengths[length] -= 1
            if not self.lengths[length]:
                del self.lengths[length]

    def covering(self, name: str) -> Iterator[_ByPrincipal]:
        literal = self.literal
        if name in literal:
            yield literal[name]
        if ANY_NAME in literal and name != ANY_NAME:
            yield literal[ANY_NAME]
        prefixed = self.prefixed
        for length in self.lengths:
            if length <= len(name) and (found := prefixed.get(name[:length])) is not None:
                yield found


class AclIndex:
    def __init__(self, rules: AclRules) -> None:
        self._rules = rules
        self._entries: dict[ResourcePattern, frozenset[AclEntry]] = {}
        self._patterns = {kind: _Patterns() for kind in ResourceType}
        self._decisions: dict[tuple[str, str, int, str], bool] = {}

    # Entries

    def replace(self, changed: Mapping[ResourcePattern, frozenset[AclEntry]]) -> None:
        """Sets all entries of these patterns. Decisions that were made before are forgotten."""
        for pattern, entries in changed.items():
            if entries:
                self._entries[pattern] = entries
            else:
                self._entries.pop(pattern, None)
            self._patterns[pattern.type].replace(pattern, entries)
        self._decisions = {}

    def entries(self, pattern: ResourcePattern) -> frozenset[AclEntry]:
        return self._entries.get(pattern, frozenset())

    def patterns(self) -> list[ResourcePattern]:
        """Returns the patterns that have entries."""
        return list(self._entries)

    def bindings(self) -> Iterator[AclBinding]:
        for pattern, entries in self._entries.items():
            for entry in entries:
                yield AclBinding(pattern, entry)

    # Decisions

    def allows(self, principal: str, host: str, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        key = (principal, host, operation << 4 | resource, name)
        known = self._decisions.get(key)
        if known is not None:
            return known
        return self._remember(key, self._decide(principal, java_host(host), operation, resource, name))

    def allows_any(self, principal: str, host: str, operation: AclOperation, resource: ResourceType) -> bool:
        """Whether there can be a resource of the type, existing or not, on which the operation is allowed.

        Kafka's `authorizeByResourceType`: an allowed pattern counts unless a denied pattern covers all of it.
        """
        key = (principal, host, _ANY_RESOURCE | operation << 4 | resource, "")
        known = self._decisions.get(key)
        if known is not None:
            return known
        return self._remember(key, self._decide_any(principal, java_host(host), operation, resource))

    def _remember(self, key: tuple[str, str, int, str], is_allowed: bool) -> bool:
        decisions = self._decisions
        if len(decisions) >= MAX_DECISIONS:
            decisions.clear()
        if len(key[0]) + len(key[3]) <= _MAX_TEXT:
            decisions[key] = is_allowed
        return is_allowed

    def _decide(self, principal: str, host: str, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        if principal in self._rules.super_users:
            return True
        allowing = implied_operations(operation)
        has_acl = is_allowed = False
        for by_principal in self._patterns[resource].covering(name):
            has_acl = True
            for entry in _entries_for(by_principal, principal, host):
                if entry.permission is _DENY:
                    if entry.operation in (operation, AclOperation.ALL):
                        return False
                elif entry.operation in allowing:
                    is_allowed = True
        return is_allowed if has_acl else self._rules.allows_without_acl

    def _decide_any(self, principal: str, host: str, operation: AclOperation, resource: ResourceType) -> bool:
        if principal in self._rules.super_users:
            return True
        patterns = self._patterns[resource]
        allowing = implied_operations(operation)
        allowed: set[ResourcePattern] = set()
        denied: set[ResourcePattern] = set()
        for pattern in patterns.held.get(principal, set()) | patterns.held.get(ANY_PRINCIPAL, set()):
            for entry in _entries_for(patterns.table(pattern)[pattern.name], principal, host):
                if entry.permission is not _DENY:
                    if entry.operation in allowing:
                        allowed.add(pattern)
                elif entry.operation in (operation, AclOperation.ALL):
                    denied.add(pattern)
        if ResourcePattern(resource, ANY_NAME) in denied:
            return False
        if self._rules.allows_without_acl:
            return True
        return any(not _is_dominated(pattern, denied) for pattern in allowed)


def _entries_for(by_principal: _ByPrincipal, principal: str, host: str) -> Iterator[AclEntry]:
    own = by_principal.get(principal, ())
    shared = by_principal.get(ANY_PRINCIPAL, ()) if principal != ANY_PRINCIPAL else ()
    for entry in (*own, *shared):
        if entry.is_for(principal, host):
            yield entry


def _is_dominated(allowed: ResourcePattern, denied: set[ResourcePattern]) -> bool:
    """Whether denied patterns cover all names of an allowed pattern, as far as Kafka looks."""
    kind, name, pattern_type = allowed
    if pattern_type is PatternType.LITERAL:
        if name == ANY_NAME:
            return False  # a denial of all names was checked before
        if allowed in denied:
            return True
    return any(ResourcePattern(kind, name[:length], PatternType.PREFIXED) in denied for length in range(len(name) + 1))
