"""Audit lines have Kafka's words, one line each, and cannot flood the log."""

from __future__ import annotations

from kbroker.protocol.acl_codes import AclOperation, ResourceType
from kbroker.security.acls.audit import AuditLimit, audit_line
from kbroker.security.acls.decision import Access

WRITE = Access("User:a", "1.2.3.4", AclOperation.WRITE, ResourceType.TOPIC, "t")


def test_a_line_has_the_words_of_kafka() -> None:
    assert audit_line(WRITE, "Produce", is_allowed=False) == (
        "Principal = User:a is Denied Operation = Write from host = 1.2.3.4 on resource = Topic:LITERAL:t"
        " for request = Produce with resourceRefCount = 1"
    )
    described = WRITE._replace(operation=AclOperation.DESCRIBE_CONFIGS, resource=ResourceType.TRANSACTIONAL_ID)
    assert "Allowed Operation = DescribeConfigs" in audit_line(described, "X", is_allowed=True)
    assert "TransactionalId:LITERAL:t" in audit_line(described, "X", is_allowed=True)


def test_names_cannot_forge_lines_or_control_a_terminal() -> None:
    line = audit_line(
        WRITE._replace(principal="User:a\nfake", name="\x1b[31mt\r\n\u2028" + "x" * 5000), "Produce", is_allowed=False
    )
    assert line.isprintable()
    assert r"User:a\nfake" in line
    assert r"\x1b[31mt\r\n\u2028" in line
    assert len(line) < 1000


def test_lines_of_a_second_are_bounded_and_the_rest_is_counted() -> None:
    limit = AuditLimit(2)
    assert [limit.take(10.1), limit.take(10.2), limit.take(10.3), limit.take(10.9)] == [0, 0, None, None]
    assert [limit.take(11.0), limit.take(11.1)] == [2, 0]
