"""ACL entries as lines of text: `allow User:alice READ,WRITE topic orders`, for tests and the command line.

    allow|deny  PRINCIPAL  OPERATION,...  TYPE  NAME  [from HOST]

A name that ends in `*` is a prefix; `*` alone covers all names. `cluster` needs no name.
"""

from __future__ import annotations

from kbroker.errors import UserError
from kbroker.protocol.acl_codes import (
    CLUSTER_NAME,
    AclOperation,
    Code,
    PatternType,
    PermissionType,
    ResourceType,
    code_of,
)
from kbroker.security.acls.entries import ANY_HOST, ANY_NAME, AclBinding, AclEntry, ResourcePattern

__all__ = ["parse_acl", "parse_operations", "parse_pattern", "parse_principal"]


def parse_acl(text: str) -> list[AclBinding]:
    """Returns an entry for each operation. Raises UserError if the line has another form."""
    words = text.split()
    host = ANY_HOST
    if len(words) > 2 and words[-2].lower() == "from":
        host = words.pop()
        words.pop()
    if len(words) == 4 and words[3].lower() == "cluster":
        words.append(CLUSTER_NAME)
    if len(words) != 5:
        raise UserError(f"Expected 'allow PRINCIPAL OPERATION TYPE NAME [from HOST]', got '{text}'")
    permission = _code(PermissionType, words[0], "permission")
    principal = parse_principal(words[1])
    pattern = parse_pattern(_code(ResourceType, words[3], "resource type"), words[4])
    return [
        AclBinding(pattern, AclEntry(principal, host, operation, permission))
        for operation in parse_operations(words[2])
    ]


def parse_operations(text: str) -> list[AclOperation]:
    """Parses operations that are separated by commas, in any case."""
    return [_code(AclOperation, name, "operation") for name in text.split(",")]


def parse_pattern(kind: ResourceType, text: str) -> ResourcePattern:
    """Returns the pattern of a name. Raises UserError if Kafka does not allow it."""
    if not text or "/" in text:
        raise UserError(f"Invalid resource name '{text}': it must not be empty or contain '/'")
    if kind is ResourceType.CLUSTER and text != CLUSTER_NAME:
        raise UserError(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if text.endswith(ANY_NAME) and text != ANY_NAME:
        return ResourcePattern(kind, text[:-1], PatternType.PREFIXED)
    return ResourcePattern(kind, text)


def parse_principal(text: str) -> str:
    if ":" not in text:
        raise UserError(f"Expected a principal like User:alice, got '{text}'")
    return text


def _code(kind: type[Code], text: str, what: str) -> Code:
    code = code_of(kind, text.strip().replace("-", "_"))
    if code is None:
        known = ", ".join(item.name for item in kind)
        raise UserError(f"Unknown {what} '{text}'. Known: {known}")
    return code
