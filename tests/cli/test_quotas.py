"""`kbroker quotas`: set, list and delete client quotas."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Call


async def test_quotas_are_set_listed_and_deleted(call: Call) -> None:
    assert (await call("quotas", "list")) == (0, "", "No quotas.\n")
    billing = ("--client-id", "billing")
    assert (await call("quotas", "set", *billing, "producer_byte_rate=1048576", "request_percentage=12.5")) == (
        0,
        "Set quotas.\n",
        "",
    )
    await call("quotas", "set", "--user", "default", "consumer_byte_rate=10")
    found = json.loads((await call("quotas", "list", "--json")).out)
    assert found == [
        {"entity": {"client-id": "billing"}, "quotas": {"producer_byte_rate": 1048576.0, "request_percentage": 12.5}},
        {"entity": {"user": None}, "quotas": {"consumer_byte_rate": 10.0}},
    ]
    lines = [line.split() for line in (await call("quotas", "list")).out.splitlines()]
    assert lines == [
        ["USER", "CLIENT", "ID", "IP", "QUOTA", "LIMIT"],
        ["billing", "producer_byte_rate", "1048576"],
        ["billing", "request_percentage", "12.5"],
        ["<default>", "consumer_byte_rate", "10"],
    ]
    assert len(json.loads((await call("quotas", "list", "--user", "default", "--json")).out)) == 1
    assert (await call("quotas", "delete", *billing, "request_percentage")).out == (
        "Deleted quotas: request_percentage.\n"
    )
    assert (await call("quotas", "delete", *billing)).out == "Deleted quotas: producer_byte_rate.\n"
    assert (await call("quotas", "delete", *billing)) == (0, "", "No quotas to delete.\n")
    assert len(json.loads((await call("quotas", "list", "--json")).out)) == 1


async def test_validating_changes_nothing(call: Call) -> None:
    arguments = ("quotas", "set", "--ip", "127.0.0.9", "connection_creation_rate=5", "--validate-only")
    assert (await call(*arguments)).out == "The quotas are valid; nothing changed.\n"
    assert json.loads((await call("quotas", "list", "--json")).out) == []


async def test_an_unknown_quota_is_the_brokers_refusal(call: Call) -> None:
    code, out, err = await call("quotas", "set", "--client-id", "a", "no_such_quota=1")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "INVALID_REQUEST" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("set", "producer_byte_rate=1"),
        ("set", "--user", "a"),
        ("set", "--user", "a", "producer_byte_rate"),
        ("set", "--user", "a", "producer_byte_rate=much"),
        ("set", "--user", "a", "producer_byte_rate=1", "producer_byte_rate=2"),
        ("set", "--user", "a", "--ip", "10.0.0.1", "connection_creation_rate=1"),
        ("delete",),
        ("delete", "--user", "a", "no_such_quota"),
    ],
)
async def test_a_usage_error_is_one_line(call: Call, arguments: tuple[str, ...]) -> None:
    code, out, err = await call("quotas", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
