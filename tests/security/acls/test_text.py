"""ACL entries as lines of text."""

from __future__ import annotations

import pytest

from kbroker.errors import UserError
from kbroker.protocol.acl_codes import AclOperation, PatternType, PermissionType, ResourceType
from kbroker.security.acls.entries import AclEntry, ResourcePattern
from kbroker.security.acls.text import parse_acl

ALLOW, DENY = PermissionType.ALLOW, PermissionType.DENY


def test_a_line_is_an_entry_for_each_operation() -> None:
    assert parse_acl("allow User:a READ,write topic orders") == [
        (ResourcePattern(ResourceType.TOPIC, "orders"), AclEntry("User:a", "*", AclOperation.READ, ALLOW)),
        (ResourcePattern(ResourceType.TOPIC, "orders"), AclEntry("User:a", "*", AclOperation.WRITE, ALLOW)),
    ]


def test_a_trailing_star_is_a_prefix_and_the_cluster_needs_no_name() -> None:
    ((pattern, entry),) = parse_acl("deny User:* describe-configs transactional_id tx-* from 10.0.0.1")
    assert pattern == ResourcePattern(ResourceType.TRANSACTIONAL_ID, "tx-", PatternType.PREFIXED)
    assert entry == AclEntry("User:*", "10.0.0.1", AclOperation.DESCRIBE_CONFIGS, DENY)
    ((pattern, _),) = parse_acl("allow User:a CREATE cluster")
    assert pattern == ResourcePattern(ResourceType.CLUSTER, "kafka-cluster")
    ((pattern, _),) = parse_acl("allow User:a READ topic *")
    assert pattern == ResourcePattern(ResourceType.TOPIC, "*")


@pytest.mark.parametrize(
    "line",
    [
        "allow User:a READ topic",
        "permit User:a READ topic t",
        "allow alice READ topic t",
        "allow User:a EAT topic t",
        "allow User:a READ topics t",
        "allow User:a READ topic a/b",
        "allow User:a READ cluster other",
    ],
)
def test_other_lines_are_refused(line: str) -> None:
    with pytest.raises(UserError):
        parse_acl(line)
