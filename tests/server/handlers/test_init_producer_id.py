"""InitProducerId of idempotent producers; transactions are tested with complete brokers."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kbroker.protocol.acl_codes import CLUSTER_NAME, AclOperation
from kbroker.protocol.error_codes import ErrorCode
from tests.server.handlers.harness import HandlerBroker

INIT_PRODUCER_ID = 22
VERSIONS = range(6)


async def ask(broker: HandlerBroker, version: int = 5, **members: Any) -> tuple[int, int, int]:
    members = {"transactional_id": None, "transaction_timeout_ms": 60_000, **members}
    response = await broker.ask(INIT_PRODUCER_ID, version, **members)
    return response.error_code, response.producer_id, response.producer_epoch


async def test_every_producer_gets_a_new_id_with_epoch_0(broker: HandlerBroker) -> None:
    answers = [await ask(broker, version) for version in VERSIONS]
    assert [(code, epoch) for code, _, epoch in answers] == [(0, 0)] * len(VERSIONS)
    ids = [producer_id for _, producer_id, _ in answers]
    assert ids == list(range(ids[0], ids[0] + len(VERSIONS)))


async def test_an_idempotent_producer_that_names_its_id_gets_a_new_one(broker: HandlerBroker) -> None:
    _, first, _ = await ask(broker)
    for version in VERSIONS[3:]:
        code, second, epoch = await ask(broker, version, producer_id=first, producer_epoch=3)
        assert (code, epoch) == (0, 0)
        assert second > first


async def test_an_id_without_epoch_or_an_epoch_without_id_is_refused(broker: HandlerBroker) -> None:
    for version in VERSIONS[3:]:
        for members in ({"producer_id": 1}, {"producer_epoch": 1}):
            assert await ask(broker, version, **members) == (ErrorCode.INVALID_REQUEST, -1, -1)


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": "t", "transaction_timeout_ms": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transactional_id": "t", "transaction_timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
    ],
)
async def test_an_invalid_transactional_request_is_refused(
    broker: HandlerBroker, members: dict[str, Any], code: ErrorCode
) -> None:
    for version in VERSIONS:
        assert await ask(broker, version, **members) == (code, -1, -1)


async def test_producer_ids_need_a_permission(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    broker.allow()
    assert (await ask(broker))[0] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert (await ask(broker, transactional_id="t"))[0] == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    for allowed in ((AclOperation.IDEMPOTENT_WRITE, CLUSTER_NAME), (AclOperation.WRITE, "a")):
        broker.allow(allowed)
        assert (await ask(broker))[0] == 0
    broker.allow((AclOperation.WRITE, ""))
    assert (await ask(broker, transactional_id=""))[0] == ErrorCode.INVALID_REQUEST


async def test_concurrent_requests_get_different_ids(broker: HandlerBroker) -> None:
    ids = []

    async def take() -> None:
        ids.append((await ask(broker))[1])

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(take)
    assert len(set(ids)) == 20
