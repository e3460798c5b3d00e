"""AlterClientQuotas and DescribeClientQuotas: quotas of users, client ids and IP addresses."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_client_quotas, describe_client_quotas
from tests.server.handlers.harness import HandlerBroker

DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS = 48, 49
EXACT, DEFAULT, ANY = range(3)

Entity = dict[str, str | None]
Filter = tuple[str, int, str | None]
PRODUCE, CONSUME = "producer_byte_rate", "consumer_byte_rate"


def entry(entity: Entity, **values: float | None) -> Any:
    return alter_client_quotas.EntryData(
        entity=[alter_client_quotas.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[
            alter_client_quotas.OpData(key=key, value=value or 0.0, remove=value is None)
            for key, value in values.items()
        ],
    )


async def alter(broker: HandlerBroker, *entries: Any, version: int = 1, **members: Any) -> list[tuple[int, str | None]]:
    response = await broker.ask(ALTER_CLIENT_QUOTAS, version, entries=list(entries), **members)
    return [(entry.error_code, entry.error_message) for entry in response.entries]


async def find(
    broker: HandlerBroker, *filters: Filter, is_strict: bool = False, version: int = 1
) -> list[tuple[Entity, dict[str, float]]]:
    response = await broker.ask(
        DESCRIBE_CLIENT_QUOTAS,
        version,
        components=[
            describe_client_quotas.ComponentData(entity_type=kind, match_type=how, match=match)
            for kind, how, match in filters
        ],
        strict=is_strict,
    )
    assert response.error_code == 0
    return [
        (
            {part.entity_type: part.entity_name for part in found.entity},
            {quota.key: quota.value for quota in found.values},
        )
        for found in response.entries
    ]


@pytest.mark.parametrize("version", range(2))
async def test_a_quota_is_set_described_and_removed(broker: HandlerBroker, version: int) -> None:
    alice: Entity = {"user": "alice"}
    assert await alter(broker, entry(alice, producer_byte_rate=1000.0, request_percentage=12.5), version=version) == [
        (0, None)
    ]
    assert await find(broker, version=version) == [(alice, {PRODUCE: 1000.0, "request_percentage": 12.5})]
    assert broker.image.configs_of("users/alice") == {PRODUCE: "1000", "request_percentage": "12.5"}
    assert await alter(broker, entry(alice, request_percentage=None), version=version) == [(0, None)]
    assert await find(broker, version=version) == [(alice, {PRODUCE: 1000.0})]
    assert await alter(broker, entry(alice, producer_byte_rate=None), version=version) == [(0, None)]
    assert await find(broker, version=version) == []


async def test_setting_a_quota_logs_no_warning(broker: HandlerBroker, caplog: pytest.LogCaptureFixture) -> None:
    states = [broker.quotas.is_on]
    await alter(broker, entry(ALICE, producer_byte_rate=5.0))
    assert [*states, broker.quotas.is_on] == [False, True]
    assert caplog.records == []


async def test_other_configs_of_a_user_are_kept(broker: HandlerBroker) -> None:
    await broker.controller.update_entity_configs("users/alice", lambda _: {"SCRAM-SHA-256": "salt=…"})
    await alter(broker, entry({"user": "alice"}, producer_byte_rate=5.0))
    assert broker.image.configs_of("users/alice") == {"SCRAM-SHA-256": "salt=…", PRODUCE: "5"}
    await alter(broker, entry({"user": "alice"}, producer_byte_rate=None))
    assert (await find(broker), len(broker.image.configs_of("users/alice"))) == ([], 1)


ALICE: Entity = {"user": "alice"}
ANY_USER: Entity = {"user": None}
APP: Entity = {"client-id": "app"}
ALICES_APP: Entity = {"user": "alice", "client-id": "app"}
ALICES_OTHERS: Entity = {"user": "alice", "client-id": None}
WEIRD: Entity = {"user": "CN=a b/c, O=<default>"}
HOST: Entity = {"ip": "127.0.0.9"}
ANY_HOST: Entity = {"ip": None}


@pytest.fixture
async def stocked(broker: HandlerBroker) -> HandlerBroker:
    users = [
        entry(entity, producer_byte_rate=1.0) for entity in (ALICE, ANY_USER, APP, ALICES_APP, ALICES_OTHERS, WEIRD)
    ]
    hosts = [entry(entity, connection_creation_rate=2.0) for entity in (HOST, ANY_HOST)]
    assert await alter(broker, *users, *hosts) == [(0, None)] * 8
    return broker


@pytest.mark.parametrize(
    ("filters", "is_strict", "found"),
    [
        ([], False, [ALICE, ANY_USER, APP, ALICES_APP, ALICES_OTHERS, WEIRD, HOST, ANY_HOST]),
        ([], True, []),
        ([("user", EXACT, "alice")], False, [ALICE, ALICES_APP, ALICES_OTHERS]),
        ([("user", EXACT, "alice")], True, [ALICE]),
        ([("user", DEFAULT, None)], False, [ANY_USER]),
        ([("user", ANY, None)], True, [ALICE, ANY_USER, WEIRD]),
        ([("user", EXACT, "CN=a b/c, O=<default>")], True, [WEIRD]),
        ([("user", ANY, None), ("client-id", ANY, None)], False, [ALICES_APP, ALICES_OTHERS]),
        ([("client-id", ANY, None)], False, [APP, ALICES_APP, ALICES_OTHERS]),
        ([("client-id", DEFAULT, None)], False, [ALICES_OTHERS]),
        ([("ip", ANY, None)], False, [HOST, ANY_HOST]),
        ([("ip", EXACT, "127.0.0.9")], True, [HOST]),
        ([("user", EXACT, "nobody")], False, []),
    ],
)
async def test_a_filter_returns_matching_entities(
    stocked: HandlerBroker, filters: list[Filter], is_strict: bool, found: list[Entity]
) -> None:
    entities = [entity for entity, _ in await find(stocked, *filters, is_strict=is_strict)]
    assert sorted(map(repr, map(sorted, map(dict.items, entities)))) == sorted(
        map(repr, map(sorted, map(dict.items, found)))
    )


@pytest.mark.parametrize(
    ("filters", "code"),
    [
        ([("user", EXACT, "a"), ("user", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("colour", EXACT, "red")], ErrorCode.UNSUPPORTED_VERSION),
        ([("", EXACT, "red")], ErrorCode.INVALID_REQUEST),
        ([("user", 5, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("user", DEFAULT, "a")], ErrorCode.INVALID_REQUEST),
        ([("user", ANY, "a")], ErrorCode.INVALID_REQUEST),
        ([("ip", ANY, None), ("user", ANY, None)], ErrorCode.INVALID_REQUEST),
    ],
)
async def test_an_invalid_filter_is_refused(broker: HandlerBroker, filters: list[Filter], code: ErrorCode) -> None:
    components = [
        describe_client_quotas.ComponentData(entity_type=kind, match_type=how, match=match)
        for kind, how, match in filters
    ]
    response = await broker.ask(DESCRIBE_CLIENT_QUOTAS, 1, components=components)
    assert (response.error_code, response.entries) == (code, None)
    assert response.error_message


@pytest.mark.parametrize(
    ("entity", "values", "reason"),
    [
        (ALICE, {"colour": 1.0}, "Invalid configuration key colour"),
        (ALICE, {"connection_creation_rate": 1.0}, "Invalid configuration key"),
        (HOST, {PRODUCE: 1.0}, "Invalid configuration key"),
        (ALICE, {PRODUCE: 1.5}, "fractional"),
        (ALICE, {PRODUCE: -1.0}, "greater than 0"),
        (ALICE, {"request_percentage": float("nan")}, "greater than 0"),
        (ALICE, {"request_percentage": float("inf")}, "greater than 0"),
        (ALICE, {PRODUCE: 1e30}, "too large"),
        ({}, {PRODUCE: 1.0}, "empty client quota entity"),
        ({"colour": "red"}, {PRODUCE: 1.0}, "entity type: colour"),
        ({"user": ""}, {PRODUCE: 1.0}, "Empty user"),
        ({"ip": "127.0.0.1", "user": "a"}, {PRODUCE: 1.0}, "should not be used with user"),
        ({"ip": "no address"}, {"connection_creation_rate": 1.0}, "not a valid IP"),
    ],
)
async def test_an_invalid_quota_is_refused_with_its_reason(
    broker: HandlerBroker, entity: Entity, values: dict[str, float], reason: str
) -> None:
    ((code, message),) = await alter(broker, entry(entity, **values))
    assert code == ErrorCode.INVALID_REQUEST
    assert message is not None
    assert reason in message
    assert broker.image.entity_configs == {}


async def test_a_zero_is_no_quota(broker: HandlerBroker) -> None:
    zero = entry(ALICE, producer_byte_rate=1.0)
    zero.ops[0].value = 0.0
    assert [code for code, _ in await alter(broker, zero)] == [ErrorCode.INVALID_REQUEST]


async def test_entities_and_quotas_named_twice_are_refused_and_the_others_are_changed(broker: HandlerBroker) -> None:
    once, twice = entry(APP, producer_byte_rate=1.0), entry(ALICE, producer_byte_rate=1.0)
    doubled = entry({"user": "bob"}, producer_byte_rate=1.0)
    doubled.ops *= 2
    assert [code for code, _ in await alter(broker, twice, once, doubled, twice)] == [42, 0, 42, 42]
    assert await find(broker) == [(APP, {PRODUCE: 1.0})]


async def test_validate_only_sets_nothing(broker: HandlerBroker) -> None:
    assert await alter(broker, entry(ALICE, producer_byte_rate=1.0), validate_only=True) == [(0, None)]
    ((code, _),) = await alter(broker, entry(ALICE, colour=1.0), validate_only=True)
    assert (code, await find(broker)) == (ErrorCode.INVALID_REQUEST, [])


async def test_a_permission_is_required(broker: HandlerBroker) -> None:
    broker.allow()
    ((code, _),) = await alter(broker, entry(ALICE, producer_byte_rate=1.0))
    response = await broker.ask(DESCRIBE_CLIENT_QUOTAS, 1)
    assert code == response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
