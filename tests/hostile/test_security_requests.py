"""Requests about users, ACLs and quotas with very many elements: others get their turn, also if all are refused."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.controller.acl_store import AclStore
from kbroker.controller.changes import EntityConfigsChanged
from kbroker.protocol.acl_codes import AclOperation, PatternType, PermissionType, ResourceType
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import (
    alter_client_quotas,
    alter_user_scram_credentials,
    create_acls,
    delete_acls,
    describe_user_scram_credentials,
)
from kbroker.security.acls.entries import AclBinding, AclEntry, ResourcePattern
from tests.hostile.canary import ask_beside_canary
from tests.server.conftest import broker, start_broker
from tests.server.handlers.harness import HandlerBroker
from tests.server.handlers.test_acls import with_acls

__all__ = ["broker", "start_broker"]  # fixtures

CREATE_ACLS, DELETE_ACLS, ALTER_CLIENT_QUOTAS = 30, 31, 49
DESCRIBE_USERS, ALTER_USERS = 50, 51
SUPER_USER = "User:ANONYMOUS"
MANY = 4_000
CREDENTIAL = "salt=c2FsdA==,stored_key=a2V5,server_key=a2V5,iterations=4096"


# Users


def deletion(user: str, mechanism: int) -> Any:
    return alter_user_scram_credentials.ScramCredentialDeletion(name=user, mechanism=mechanism)


async def test_very_many_users_are_refused_in_slices(broker: HandlerBroker) -> None:
    deletions = [deletion(f"u{number}", 0) for number in range(MANY)]
    response, turns = await ask_beside_canary(broker, ALTER_USERS, 0, deletions=deletions, upsertions=[])
    codes = {result.user: result.error_code for result in response.results}
    assert len(codes) == len(response.results) == MANY
    assert set(codes.values()) == {ErrorCode.UNSUPPORTED_SASL_MECHANISM}
    assert turns > 2 * MANY / 5  # they are gathered by user, then refused


async def test_a_user_that_is_altered_very_many_times_is_refused_once(broker: HandlerBroker) -> None:
    deletions = [deletion("u", 1)] * MANY
    response, turns = await ask_beside_canary(broker, ALTER_USERS, 0, deletions=deletions, upsertions=[])
    assert [result.error_code for result in response.results] == [ErrorCode.DUPLICATE_RESOURCE]
    assert turns > MANY / 5


def with_users(broker: HandlerBroker, count: int) -> None:
    changes = [EntityConfigsChanged(f"users/u{number}", {"SCRAM-SHA-256": CREDENTIAL}) for number in range(count)]
    broker.controller.store.commit([*changes, EntityConfigsChanged("users/limited", {"producer_byte_rate": "1"})])


async def test_very_many_users_are_described_in_slices_and_each_once(broker: HandlerBroker) -> None:
    with_users(broker, 2)
    users = [describe_user_scram_credentials.UserName(name=f"u{number % 3_999}") for number in range(MANY)]
    response, turns = await ask_beside_canary(broker, DESCRIBE_USERS, 0, users=users)
    codes = [result.error_code for result in response.results]
    assert codes == [ErrorCode.DUPLICATE_RESOURCE, 0] + [ErrorCode.RESOURCE_NOT_FOUND] * 3_997
    assert turns > 2 * 3_999 / 5


async def test_all_of_very_many_users_are_described_in_slices(broker: HandlerBroker) -> None:
    with_users(broker, MANY)
    response, turns = await ask_beside_canary(broker, DESCRIBE_USERS, 0, users=None)
    assert [result.user for result in response.results] == sorted(f"u{number}" for number in range(MANY))
    assert turns > 2 * MANY / 5


# Quotas


def quota(user: str, *names: str) -> Any:
    return alter_client_quotas.EntryData(
        entity=[alter_client_quotas.EntityData(entity_type="user", entity_name=user)],
        ops=[alter_client_quotas.OpData(key=name, value=1.0, remove=False) for name in names],
    )


@pytest.mark.parametrize("is_same", [True, False])
async def test_quotas_of_very_many_users_are_refused_in_slices(broker: HandlerBroker, is_same: bool) -> None:
    entries = [quota("u" if is_same else f"u{number}", "unknown") for number in range(MANY)]
    response, turns = await ask_beside_canary(broker, ALTER_CLIENT_QUOTAS, 1, entries=entries, validate_only=False)
    assert [entry.error_code for entry in response.entries] == [ErrorCode.INVALID_REQUEST] * MANY
    assert turns > 2 * MANY / 5  # they are compared, then refused


# ACLs


@pytest.fixture
async def acls(broker: HandlerBroker) -> AclStore:
    return await with_acls(broker, SUPER_USER)


async def test_very_many_acls_are_refused_in_slices(broker: HandlerBroker, acls: AclStore) -> None:
    creations = [
        create_acls.AclCreation(
            resource_type=ResourceType.TOPIC,
            resource_name="",
            resource_pattern_type=PatternType.LITERAL,
            principal="User:a",
            host="*",
            operation=AclOperation.READ,
            permission_type=PermissionType.ALLOW,
        )
    ] * MANY
    response, turns = await ask_beside_canary(broker, CREATE_ACLS, 3, creations=creations)
    assert [result.error_code for result in response.results] == [ErrorCode.INVALID_REQUEST] * MANY
    assert turns > MANY / 5


def acl_filter(principal: str | None) -> Any:
    return delete_acls.DeleteAclsFilter(
        resource_type_filter=1,
        resource_name_filter=None,
        pattern_type_filter=1,
        principal_filter=principal,
        host_filter=None,
        operation=1,
        permission_type=1,
    )


def binding(name: str, principal: str) -> AclBinding:
    entry = AclEntry(principal, "*", AclOperation.READ, PermissionType.ALLOW)
    return AclBinding(ResourcePattern(ResourceType.TOPIC, name, PatternType.LITERAL), entry)


async def test_very_many_filters_of_acls_are_applied_in_slices(broker: HandlerBroker, acls: AclStore) -> None:
    assert await acls.add([binding("orders", f"User:{number}") for number in range(10)]) == [None] * 10
    filters = [acl_filter(f"User:{number}") for number in range(9, 1_000)]
    response, turns = await ask_beside_canary(broker, DELETE_ACLS, 3, filters=filters)
    assert [len(result.matching_acls) for result in response.filter_results] == [1] + [0] * 990
    assert len(acls.index.entries(binding("orders", "").pattern)) == 9
    assert turns > (9 * 991 + 2 * 991) / 5  # each entry and the pattern are compared with each filter


async def test_an_acl_that_very_many_filters_match_is_returned_once(broker: HandlerBroker, acls: AclStore) -> None:
    assert await acls.add([binding("orders", "User:a")]) == [None]
    response = await broker.ask(DELETE_ACLS, 3, filters=[acl_filter("User:a"), acl_filter(None)] * 1_000)
    assert [len(result.matching_acls) for result in response.filter_results] == [1] + [0] * 1_999
