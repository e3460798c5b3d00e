"""`kbroker acls`: allow, deny, list, test and remove."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kbroker.testing.running_broker import RunningBroker, running_broker
from tests.cli.conftest import Call

PROPERTIES = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(tmp_path / "data", PROPERTIES) as broker:
        yield broker


async def test_entries_are_added_listed_and_removed(call: Call) -> None:
    assert await call("acls", "list") == (0, "", "No ACLs.\n")
    assert (await call("acls", "allow", "User:alice", "read,write", "--topic", "orders")).out == "Added 2 ACLs.\n"
    assert (await call("acls", "deny", "User:bob", "all", "--topic", "ord*", "--host", "10.0.0.1")).out == (
        "Added 1 ACL.\n"
    )
    await call("acls", "allow", "User:alice", "describe", "--cluster")
    lines = [line.split() for line in (await call("acls", "list")).out.splitlines()]
    assert lines == [
        ["PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "HOST"],
        ["User:bob", "DENY", "ALL", "topic", "ord*", "10.0.0.1"],
        ["User:alice", "ALLOW", "READ", "topic", "orders", "*"],
        ["User:alice", "ALLOW", "WRITE", "topic", "orders", "*"],
        ["User:alice", "ALLOW", "DESCRIBE", "cluster", "kafka-cluster", "*"],
    ]
    listed = json.loads((await call("acls", "list", "--topic", "orders", "--covering", "--json")).out)
    assert [(entry["name"], entry["pattern_type"]) for entry in listed] == [
        ("ord", "PREFIXED"),
        ("orders", "LITERAL"),
        ("orders", "LITERAL"),
    ]
    assert len(json.loads((await call("acls", "list", "--topic", "orders", "--json")).out)) == 2
    removed = await call("acls", "remove", "--principal", "User:alice", "--topic", "orders", "--yes")
    assert removed.out.splitlines() == [
        "Removed: ALLOW User:alice READ topic orders from *",
        "Removed: ALLOW User:alice WRITE topic orders from *",
    ]
    again = await call("acls", "remove", "--principal", "User:alice", "--topic", "orders", "--yes")
    assert again == (0, "", "No matching ACLs.\n")
    assert len(json.loads((await call("acls", "list", "--json")).out)) == 2


async def test_resources_and_hosts_may_be_repeated(call: Call) -> None:
    resources = ("--topic", "orders", "--topic", "payments", "--group", "billing-*", "--cluster")
    added = await call("acls", "deny", "User:bob", "describe", *resources, "--host", "10.0.0.1", "--host", "10.0.0.2")
    assert added == (0, "Added 8 ACLs.\n", "")
    listed = json.loads((await call("acls", "list", "--json")).out)
    assert {(entry["resource_type"], entry["name"], entry["host"]) for entry in listed} == {
        (*resource, host)
        for resource in (
            ("TOPIC", "orders"),
            ("TOPIC", "payments"),
            ("GROUP", "billing-"),
            ("CLUSTER", "kafka-cluster"),
        )
        for host in ("10.0.0.1", "10.0.0.2")
    }


async def test_a_decision_is_explained(call: Call) -> None:
    await call("acls", "allow", "User:alice", "write", "--topic", "orders-*")
    await call("acls", "deny", "User:*", "write", "--topic", "orders-secret")
    assert await call("acls", "test", "User:alice", "write", "--topic", "orders-1") == (
        0,
        "May User:alice WRITE topic orders-1? Yes, by: ALLOW User:alice WRITE topic orders-* from *\n",
        "",
    )
    code, out, _ = await call("acls", "test", "User:alice", "write,read", "--topic", "orders-secret")
    assert (code, out.splitlines()) == (
        1,
        [
            "May User:alice WRITE topic orders-secret? No, by: DENY User:* WRITE topic orders-secret from *",
            "May User:alice READ topic orders-secret? No: no entry allows it.",
        ],
    )
    code, out, _ = await call("acls", "test", "User:alice", "read", "--group", "g")
    assert (code, out) == (1, "May User:alice READ group g? No: no entry covers the resource.\n")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("allow", "alice", "read", "--topic", "t"), "Expected a principal like User:alice"),
        (("allow", "User:a", "eat", "--topic", "t"), "Unknown operation 'eat'"),
        (("allow", "User:a", "read"), "Use one of --topic"),
        (("test", "User:a", "read", "--topic", "t", "--group", "g"), "Use one of --topic"),
        (("list", "--topic", "t", "--topic", "u"), "Use --topic only once"),
        (("remove", "--yes", "--topic", "t", "--topic", "u"), "Use --topic only once"),
        (("allow", "User:a", "read", "--topic", "a/b"), "Invalid resource name"),
        (("test", "User:a", "read", "--topic", "t*"), "without '*'"),
        (("remove", "--yes"), "Use --principal or a resource"),
        (("list", "--covering"), "--covering needs a resource"),
    ],
)
async def test_invalid_arguments_are_usage_errors(call: Call, arguments: tuple[str, ...], problem: str) -> None:
    code, _, err = await call("acls", *arguments)
    assert code == 2
    assert problem in err


async def test_entries_are_not_removed_without_confirmation(call: Call) -> None:
    await call("acls", "allow", "User:alice", "read", "--topic", "orders")
    code, _, err = await call("acls", "remove", "--principal", "User:alice")
    assert code == 1
    assert "--yes" in err
    assert len(json.loads((await call("acls", "list", "--json")).out)) == 1
