"""Audit lines of the authorizer, in the words of Kafka's. Names come from clients: control characters are escaped."""

from __future__ import annotations

from typing import Final

from kbroker.protocol.acl_codes import PatternType, name_of
from kbroker.security.acls.decision import Access
from kbroker.security.acls.entries import ResourcePattern
from kbroker.security.acls.hosts import java_host

__all__ = ["AuditLimit", "audit_line"]

_MAX_NAME: Final = 300


def audit_line(access: Access, api_name: str, *, is_allowed: bool) -> str:
    resource = ResourcePattern(access.resource, _printable(access.name), PatternType.LITERAL)
    return (
        f"Principal = {_printable(access.principal)} is {'Allowed' if is_allowed else 'Denied'}"
        f" Operation = {name_of(access.operation)} from host = {java_host(access.host)} on resource = {resource}"
        f" for request = {api_name} with resourceRefCount = 1"
    )


def _printable(text: str) -> str:
    """Escapes characters that could begin a new line or control a terminal, and cuts long texts."""
    if len(text) > _MAX_NAME:
        text = text[:_MAX_NAME] + "..."
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class AuditLimit:
    """Bounds the lines of each second, so that a client cannot flood the log. Counts the lines that were left out."""

    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._second = 0
        self._written = 0
        self._left_out = 0

    def take(self, now: float) -> int | None:
        """Returns None if no line may be written now; else how many were left out since the last one."""
        second = int(now)
        if second != self._second:
            self._second, self._written = second, 0
        if self._written >= self._per_second:
            self._left_out += 1
            return None
        self._written += 1
        left_out, self._left_out = self._left_out, 0
        return left_out
