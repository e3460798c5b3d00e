"""AlterUserScramCredentials and DescribeUserScramCredentials: error codes and texts of Kafka, and no secrets."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.protocol.acl_codes import AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_user_scram_credentials as alteration
from kbroker.protocol.messages import describe_user_scram_credentials as description
from kbroker.security.credentials import SCRAM_MECHANISMS, credential_of_password, parse_credential, salted_password
from tests.server.handlers.harness import HandlerBroker

DESCRIBE_USER_SCRAM_CREDENTIALS, ALTER_USER_SCRAM_CREDENTIALS = 50, 51
SHA_256, SHA_512 = 1, 2
SALT = b"0123456789abcdef"


def upsertion(name: str, mechanism: int = SHA_256, *, iterations: int = 4096, password: str = "pencil") -> Any:
    scram = SCRAM_MECHANISMS["SCRAM-SHA-512" if mechanism == SHA_512 else "SCRAM-SHA-256"]
    salted = salted_password(scram, password, salt=SALT, iterations=4096)
    return alteration.ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=SALT, salted_password=salted
    )


def deletion(name: str, mechanism: int = SHA_256) -> Any:
    return alteration.ScramCredentialDeletion(name=name, mechanism=mechanism)


async def alter(
    broker: HandlerBroker, upsertions: list[Any] | None = None, deletions: list[Any] | None = None
) -> list[tuple[str, int, str | None]]:
    response = await broker.ask(ALTER_USER_SCRAM_CREDENTIALS, 0, upsertions=upsertions or [], deletions=deletions or [])
    return [(result.user, result.error_code, result.error_message) for result in response.results]


async def describe(broker: HandlerBroker, *names: str) -> list[tuple[str, int, list[tuple[int, int]]]]:
    users = [description.UserName(name=name) for name in names] if names else None
    response = await broker.ask(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=users)
    assert response.error_code == 0
    return [
        (result.user, result.error_code, [(info.mechanism, info.iterations) for info in result.credential_infos])
        for result in response.results
    ]


async def test_credentials_are_stored_with_the_text_of_kafka(broker: HandlerBroker) -> None:
    assert await alter(broker, [upsertion("al/ice")]) == [("al/ice", 0, None)]
    text = broker.controller.image.configs_of("users/al%2Fice")["SCRAM-SHA-256"]
    expected = credential_of_password(SCRAM_MECHANISMS["SCRAM-SHA-256"], "pencil", salt=SALT)
    assert parse_credential(text) == expected


async def test_users_are_described_without_their_secrets(broker: HandlerBroker) -> None:
    await alter(broker, [upsertion("bob"), upsertion("alice", SHA_512, iterations=8192), upsertion("alice")])
    assert await describe(broker) == [
        ("alice", 0, [(SHA_256, 4096), (SHA_512, 8192)]),
        ("bob", 0, [(SHA_256, 4096)]),
    ]
    response = await broker.ask(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=[])
    assert len(response.results) == 2
    assert await describe(broker, "bob", "carol", "bob", "alice") == [
        ("bob", ErrorCode.DUPLICATE_RESOURCE, []),
        ("carol", ErrorCode.RESOURCE_NOT_FOUND, []),
        ("alice", 0, [(SHA_256, 4096), (SHA_512, 8192)]),
    ]


async def test_credentials_are_replaced_and_deleted(broker: HandlerBroker) -> None:
    await alter(broker, [upsertion("alice"), upsertion("alice", SHA_512)])
    assert await alter(broker, [upsertion("alice", SHA_512, iterations=5000)], [deletion("alice")]) == [
        ("alice", 0, None)
    ]
    assert await describe(broker) == [("alice", 0, [(SHA_512, 5000)])]
    assert await alter(broker, None, [deletion("alice", SHA_512)]) == [("alice", 0, None)]
    assert await describe(broker) == []
    assert broker.controller.image.entity_configs.get("users/alice") is None


@pytest.mark.parametrize(
    ("upsertions", "deletions", "code", "text"),
    [
        ([upsertion("")], [], ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        ([], [deletion("")], ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        ([upsertion("a", 0)], [], ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        ([upsertion("a", 3)], [], ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        ([], [deletion("a", 7)], ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        ([upsertion("a", iterations=4095)], [], ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        ([upsertion("a", iterations=-1)], [], ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        ([upsertion("a", iterations=16385)], [], ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
        (
            [upsertion("a"), upsertion("a")],
            [],
            ErrorCode.DUPLICATE_RESOURCE,
            "A user credential cannot be altered twice in the same request",
        ),
        (
            [upsertion("a")],
            [deletion("a")],
            ErrorCode.DUPLICATE_RESOURCE,
            "A user credential cannot be altered twice in the same request",
        ),
        (
            [],
            [deletion("a")],
            ErrorCode.RESOURCE_NOT_FOUND,
            "Attempt to delete a user credential that does not exist",
        ),
    ],
)
async def test_an_invalid_change_has_the_error_of_kafka(
    broker: HandlerBroker, upsertions: list[Any], deletions: list[Any], code: ErrorCode, text: str
) -> None:
    results = await alter(broker, [*upsertions, upsertion("other")], deletions)
    assert [result for result in results if result[0] != "other"] == [((upsertions or deletions)[0].name, code, text)]
    assert ("other", 0, None) in results
    assert [name for name, _, _ in await describe(broker)] == ["other"]


async def test_permissions_are_required(broker: HandlerBroker) -> None:
    broker.allow()
    response = await broker.ask(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=None)
    assert (response.error_code, response.results) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
    results = await alter(broker, [upsertion("a"), upsertion("b")], [deletion("a", SHA_512)])
    assert [(user, code) for user, code, _ in results] == [
        ("a", ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        ("b", ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ]
    broker.allow((AclOperation.ALTER, "kafka-cluster"))
    assert await alter(broker, [upsertion("a")]) == [("a", 0, None)]


async def test_handshakes_and_tokens_are_refused_without_a_login(broker: HandlerBroker) -> None:
    handshake = await broker.ask(17, 1, mechanism="PLAIN")
    assert (handshake.error_code, handshake.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    authenticated = await broker.ask(36, 2, auth_bytes=b"\0a\0b")
    assert authenticated.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert authenticated.error_message == "SaslAuthenticate request received after successful authentication"
