"""Paths and contents of the nodes of ACLs, as in Apache Kafka 3.9 with ZooKeeper. Pure: bytes in, values out.

/kafka-acl/<Type>/<name>                        entries of a literal pattern
/kafka-acl-extended/prefixed/<Type>/<name>      entries of a prefix
/kafka-acl-changes, /kafka-acl-extended-changes announcements of changes, for the other brokers
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from kbroker.controller.trees.znodes import BadNode
from kbroker.protocol.acl_codes import AclOperation, PatternType, PermissionType, ResourceType, code_of, name_of
from kbroker.security.acls.entries import AclEntry, ResourcePattern

__all__ = [
    "ACL_PATHS",
    "CHANGES",
    "TYPE_PATHS",
    "change_path",
    "decode_change",
    "decode_entries",
    "encode_change",
    "encode_entries",
    "entries_path",
]

_ROOTS: Final = {PatternType.LITERAL: "/kafka-acl", PatternType.PREFIXED: "/kafka-acl-extended/prefixed"}
CHANGES: Final = {PatternType.LITERAL: "/kafka-acl-changes", PatternType.PREFIXED: "/kafka-acl-extended-changes"}
"""Parents of announcements."""

TYPE_PATHS: Final = {
    (kind, pattern_type): f"{root}/{name_of(kind)}" for pattern_type, root in _ROOTS.items() for kind in ResourceType
}
"""Parent of all patterns of a type."""

ACL_PATHS: Final = (
    "/kafka-acl",
    "/kafka-acl-extended",
    "/kafka-acl-extended/prefixed",
    *CHANGES.values(),
    *TYPE_PATHS.values(),
)
"""Nodes that exist while an authorizer is configured, parents first."""


def entries_path(pattern: ResourcePattern) -> str:
    return f"{TYPE_PATHS[pattern.type, pattern.pattern_type]}/{pattern.name}"


def change_path(pattern: ResourcePattern) -> str:
    """Returns the path of an announcement, without its sequence number."""
    return f"{CHANGES[pattern.pattern_type]}/acl_changes_"


def encode_entries(entries: Iterable[AclEntry]) -> bytes:
    acls = [
        {
            "principal": entry.principal,
            "permissionType": name_of(entry.permission),
            "operation": name_of(entry.operation),
            "host": entry.host,
        }
        for entry in sorted(entries)
    ]
    return _dump({"version": 1, "acls": acls})


def decode_entries(pattern: ResourcePattern, data: bytes) -> frozenset[AclEntry]:
    """Returns the entries of a pattern. Raises BadNode if any of them cannot be read: it may be a denial."""
    if not data:
        return frozenset()
    try:
        return frozenset(map(_entry, json.loads(data.decode())["acls"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadNode(f"The node {entries_path(pattern)} has no valid ACLs. Repair or delete it.") from None


def _entry(content: Any) -> AclEntry:
    principal, host = content["principal"], content["host"]
    operation, permission = _OPERATIONS.get(content["operation"]), _PERMISSIONS.get(content["permissionType"])
    if operation is None:
        operation = code_of(AclOperation, content["operation"])
    if permission is None:
        permission = code_of(PermissionType, content["permissionType"])
    if operation is None or permission is None or principal.__class__ is not str or host.__class__ is not str:
        raise ValueError
    return AclEntry(principal, host, operation, permission)


# With Kafka's spelling, which all but hand-written nodes have.
_OPERATIONS: Final = {name_of(operation): operation for operation in AclOperation}
_PERMISSIONS: Final = {name_of(permission): permission for permission in PermissionType}


def encode_change(pattern: ResourcePattern) -> bytes:
    if pattern.pattern_type is PatternType.LITERAL:
        return f"{pattern.type.name}:{pattern.name}".encode()
    return _dump(
        {
            "version": 1,
            "resourceType": pattern.type.name,
            "name": pattern.name,
            "patternType": pattern.pattern_type.name,
        }
    )


def decode_change(pattern_type: PatternType, data: bytes) -> ResourcePattern | None:
    """Returns the pattern whose entries have changed; None if the announcement cannot be read."""
    try:
        text = data.decode()
        if pattern_type is PatternType.LITERAL:
            type_name, colon, name = text.partition(":")
        else:
            content = json.loads(text)
            type_name, colon, name = str(content["resourceType"]), ":", str(content["name"])
    except (ValueError, KeyError, TypeError):
        return None
    kind = code_of(ResourceType, type_name)
    return None if kind is None or not colon or not name else ResourcePattern(kind, name, pattern_type)


def _dump(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
