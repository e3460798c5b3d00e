"""DescribeAcls, CreateAcls, DeleteAcls: Kafka's codes and texts in all versions, with and without an authorizer."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.controller.acl_store import AclStore
from kbroker.errors import PeerError
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import create_acls, delete_acls
from kbroker.security.acls.decision import AclRules
from kbroker.security.acls.index import AclIndex
from kbroker.server.access.acl_authorizer import AclAuthorizer
from tests.server.handlers.harness import HandlerBroker

DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 29, 30, 31
ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
TOPIC, GROUP, CLUSTER, USER = 2, 3, 4, 7
READ, ALLOW = 3, 3
PRINCIPAL = "User:ANONYMOUS"


async def with_acls(broker: HandlerBroker, *super_users: str) -> AclStore:
    index = AclIndex(AclRules(frozenset(super_users)))
    store = AclStore(broker.controller.store.tree, index, broker.context.clock, timeout_s=10)
    await store.load()
    broker.context.acls = store
    broker.context.authorizer = AclAuthorizer(index, broker.clock)
    return store


@pytest.fixture
async def acls(broker: HandlerBroker) -> AclStore:
    return await with_acls(broker, PRINCIPAL)


def creation(name: str = "orders", **members: Any) -> Any:
    known = {
        "resource_type": TOPIC,
        "resource_name": name,
        "resource_pattern_type": LITERAL,
        "principal": "User:a",
        "host": "*",
        "operation": READ,
        "permission_type": ALLOW,
    }
    return create_acls.AclCreation(**(known | members))


def wanted(**members: Any) -> dict[str, Any]:
    known = {
        "resource_type_filter": ANY,
        "resource_name_filter": None,
        "pattern_type_filter": ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANY,
        "permission_type": ANY,
    }
    return known | members


async def create(broker: HandlerBroker, *creations: Any, version: int = 3) -> list[tuple[int, str | None]]:
    response = await broker.ask(CREATE_ACLS, version, creations=list(creations))
    return [(result.error_code, result.error_message) for result in response.results]


async def describe(broker: HandlerBroker, version: int = 3, **members: Any) -> list[tuple[int, str, int, list[str]]]:
    response = await broker.ask(DESCRIBE_ACLS, version, **wanted(**members))
    assert (response.error_code, response.error_message) == (0, None)
    return [
        (found.resource_type, found.resource_name, found.pattern_type, [acl.principal for acl in found.acls])
        for found in response.resources
    ]


@pytest.mark.parametrize("version", range(4))
async def test_entries_are_created_described_and_deleted(broker: HandlerBroker, acls: AclStore, version: int) -> None:
    created = await create(broker, creation(), creation(principal="User:b"), creation("other"), version=version)
    assert created == [(0, None)] * 3
    assert sorted(await describe(broker, version)) == [
        (TOPIC, "orders", LITERAL, ["User:a", "User:b"]),
        (TOPIC, "other", LITERAL, ["User:a"]),
    ]
    filters = [delete_acls.DeleteAclsFilter(**wanted(resource_name_filter="orders", principal_filter="User:a"))]
    response = await broker.ask(DELETE_ACLS, version, filters=filters)
    (result,) = response.filter_results
    assert (result.error_code, result.error_message) == (0, None)
    (deleted,) = result.matching_acls
    assert (deleted.error_code, deleted.resource_type, deleted.resource_name) == (0, TOPIC, "orders")
    assert (deleted.principal, deleted.host, deleted.operation, deleted.permission_type) == ("User:a", "*", READ, ALLOW)
    assert sorted(await describe(broker, version)) == [
        (TOPIC, "orders", LITERAL, ["User:b"]),
        (TOPIC, "other", LITERAL, ["User:a"]),
    ]


async def test_filters_find_patterns_by_name_and_by_what_they_cover(broker: HandlerBroker, acls: AclStore) -> None:
    await create(
        broker,
        creation(),
        creation("ord", resource_pattern_type=PREFIXED),
        creation("*"),
        creation(resource_type=GROUP),
    )
    named: dict[str, Any] = {"resource_name_filter": "orders", "resource_type_filter": TOPIC}
    assert [found[1] for found in await describe(broker, **named)] == ["orders"]
    assert sorted(found[1] for found in await describe(broker, **named, pattern_type_filter=MATCH)) == [
        "*",
        "ord",
        "orders",
    ]
    assert [found[2] for found in await describe(broker, pattern_type_filter=PREFIXED)] == [PREFIXED]
    assert await describe(broker, 0, resource_name_filter="ord") == []  # v0 knows literal patterns only


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"resource_type": CLUSTER}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"resource_name": ""}, "Invalid empty resource name"),
        ({"resource_name": "a/b"}, "Failed to create ACL"),
        ({"resource_name": "a\nb"}, "Failed to create ACL"),
        ({"resource_type": 99}, "Failed to create ACL"),
        ({"resource_pattern_type": 5}, "Failed to create ACL"),
        ({"operation": 99}, "Failed to create ACL"),
        ({"permission_type": 9}, "Failed to create ACL"),
    ],
)
async def test_an_invalid_entry_is_refused_and_the_others_are_created(
    broker: HandlerBroker, acls: AclStore, bad: dict[str, Any], text: str
) -> None:
    refused, created = await create(broker, creation(**bad), creation("good"))
    assert refused == (ErrorCode.INVALID_REQUEST, text)
    assert created == (0, None)
    assert [found[1] for found in await describe(broker)] == ["good"]


@pytest.mark.parametrize("version", range(1, 4))
@pytest.mark.parametrize("resource_type", [TOPIC, GROUP])
async def test_an_empty_prefix_which_would_cover_every_name_is_refused(
    broker: HandlerBroker, acls: AclStore, version: int, resource_type: int
) -> None:
    empty = creation("", resource_type=resource_type, resource_pattern_type=PREFIXED)
    assert await create(broker, empty, version=version) == [(ErrorCode.INVALID_REQUEST, "Invalid empty resource name")]
    assert await describe(broker) == []
    assert acls.index.patterns() == []


async def test_a_principal_without_type_is_refused(broker: HandlerBroker, acls: AclStore) -> None:
    ((code, text),) = await create(broker, creation(principal="alice"))
    assert code == ErrorCode.INVALID_REQUEST
    assert text is not None
    assert text.startswith("Could not parse principal from `alice`")


@pytest.mark.parametrize(
    "bad",
    [
        {"resource_type": ANY},
        {"resource_pattern_type": ANY},
        {"resource_pattern_type": MATCH},
        {"operation": ANY},
        {"permission_type": ANY},
    ],
)
async def test_a_code_of_filters_refuses_the_whole_request(
    broker: HandlerBroker, acls: AclStore, bad: dict[str, Any]
) -> None:
    results = await create(broker, creation("good"), creation(**bad))
    assert [code for code, _ in results] == [-1, -1]
    assert await describe(broker) == []


@pytest.mark.parametrize("member", ["resource_type", "resource_pattern_type", "operation", "permission_type"])
async def test_the_unknown_code_closes_the_connection(broker: HandlerBroker, acls: AclStore, member: str) -> None:
    created: dict[str, Any] = {member: 0}
    with pytest.raises(PeerError):
        await create(broker, creation(**created))
    filtered = {"resource_type": "resource_type_filter", "resource_pattern_type": "pattern_type_filter"}
    unknown = wanted(**{filtered.get(member, member): 0})
    with pytest.raises(PeerError):
        await broker.ask(DESCRIBE_ACLS, 3, **unknown)
    with pytest.raises(PeerError):
        await broker.ask(DELETE_ACLS, 3, filters=[delete_acls.DeleteAclsFilter(**unknown)])


async def test_a_client_without_the_right_gets_the_text_of_kafka(broker: HandlerBroker) -> None:
    await with_acls(broker)
    ((code, text),) = await create(broker, creation())
    assert code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert text is not None
    assert text.startswith("Request Request(")
    assert text.endswith(" is not authorized.")


@pytest.mark.parametrize("version", range(4))
async def test_without_an_authorizer_security_is_disabled(broker: HandlerBroker, version: int) -> None:
    seen = await broker.ask(DESCRIBE_ACLS, version, **wanted())
    assert (seen.error_code, seen.resources) == (ErrorCode.SECURITY_DISABLED, [])
    assert seen.error_message == "No Authorizer is configured on the broker"
    assert await create(broker, creation(), creation(), version=version) == [(54, "No Authorizer is configured.")] * 2
    gone = await broker.ask(DELETE_ACLS, version, filters=[delete_acls.DeleteAclsFilter(**wanted())])
    assert [(result.error_code, result.matching_acls) for result in gone.filter_results] == [(54, [])]
