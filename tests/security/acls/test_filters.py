"""Filters of DescribeAcls and DeleteAcls, as Kafka's ResourcePatternFilter and AccessControlEntryFilter match."""

from __future__ import annotations

import pytest

from kbroker.protocol.acl_codes import ANY, MATCH, AclOperation, PatternType, PermissionType, ResourceType
from kbroker.security.acls.entries import AclBinding, AclEntry, ResourcePattern
from kbroker.security.acls.filters import AclFilter

ENTRY = AclEntry("User:a", "*", AclOperation.READ, PermissionType.ALLOW)
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED


def on(name: str, pattern_type: PatternType = LITERAL, kind: ResourceType = ResourceType.TOPIC) -> AclBinding:
    return AclBinding(ResourcePattern(kind, name, pattern_type), ENTRY)


@pytest.mark.parametrize(
    ("pattern_type", "matched"),
    [
        (LITERAL, {("orders", LITERAL)}),
        (PREFIXED, {("orders", PREFIXED)}),
        (ANY, {("orders", LITERAL), ("orders", PREFIXED)}),
        (MATCH, {("orders", LITERAL), ("orders", PREFIXED), ("*", LITERAL), ("ord", PREFIXED)}),
        (99, set()),
    ],
)
def test_a_name_is_matched_by_the_type_of_the_pattern(pattern_type: int, matched: set[tuple[str, PatternType]]) -> None:
    known = [on(name, kind) for name in ("orders", "*", "ord", "order-lines") for kind in (LITERAL, PREFIXED)]
    wanted = AclFilter(ResourceType.TOPIC, "orders", pattern_type)
    assert {(b.pattern.name, b.pattern.pattern_type) for b in known if wanted.matches(b)} == matched


@pytest.mark.parametrize(
    ("wanted", "is_matched"),
    [
        (AclFilter(), True),
        (AclFilter(resource_type=ResourceType.GROUP), False),
        (AclFilter(pattern_type=MATCH), True),
        (AclFilter(principal="User:a", host="*", operation=AclOperation.READ, permission=3), True),
        (AclFilter(principal="User:b"), False),
        (AclFilter(host="10.0.0.1"), False),
        (AclFilter(operation=AclOperation.DESCRIBE), False),
        (AclFilter(operation=99), False),
        (AclFilter(permission=PermissionType.DENY), False),
    ],
)
def test_absent_parts_match_everything(wanted: AclFilter, is_matched: bool) -> None:
    assert wanted.matches(on("orders")) is is_matched
