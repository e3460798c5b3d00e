"""OffsetForLeaderEpoch: the end of a leader epoch, by which a client detects truncation."""

from __future__ import annotations

from typing import Any

import pytest

from kbroker.errors import StorageFailure
from kbroker.protocol.acl_codes import CLUSTER_NAME, AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import offset_for_leader_epoch as messages
from tests.log.batches import make_batch
from tests.server.handlers.harness import HandlerBroker

OFFSET_FOR_LEADER_EPOCH = 23
VERSIONS = range(5)


async def ask(
    broker: HandlerBroker, epoch: int, *, name: str = "a", index: int = 0, current: int = -1, version: int = 4
) -> Any:
    wanted = messages.OffsetForLeaderPartition(partition=index, current_leader_epoch=current, leader_epoch=epoch)
    topic = messages.OffsetForLeaderTopic(topic=name, partitions=[wanted])
    response = await broker.ask(OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=[topic])
    (answer,) = response.topics
    (partition,) = answer.partitions
    assert (answer.topic, partition.partition) == (name, index)
    return partition


async def two_epochs(broker: HandlerBroker) -> None:
    """Appends offsets 0 and 1 in epoch 0, and offset 2 in epoch 1."""
    await broker.create_topic("a")
    broker.append("a", make_batch(b"0", b"1"))
    await broker.controller.bump_leader_epochs([("a", 0)])
    broker.append("a", make_batch(b"2"), epoch=1)


async def test_the_end_of_an_epoch_is_returned_in_every_version(broker: HandlerBroker) -> None:
    await two_epochs(broker)
    for version in VERSIONS:
        old = await ask(broker, 0, version=version)
        now = await ask(broker, 1, version=version)
        assert (old.error_code, old.end_offset, now.end_offset) == (0, 2, 3)
        if version >= 1:
            assert (old.leader_epoch, now.leader_epoch) == (0, 1)


async def test_an_unknown_epoch_has_no_end_offset(broker: HandlerBroker) -> None:
    await two_epochs(broker)
    for epoch in (5, -1):
        answer = await ask(broker, epoch)
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, -1, -1)


async def test_an_epoch_without_records_ends_where_the_epoch_before_it_does(broker: HandlerBroker) -> None:
    """A crash lost the records of epoch 1 and 2, and epoch 3 has none yet."""
    await broker.create_topic("a")
    broker.append("a", make_batch(b"0", b"1"))
    for _ in range(3):
        await broker.controller.bump_leader_epochs([("a", 0)])
    for epoch in (0, 1, 2):
        answer = await ask(broker, epoch)
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, 0, 2)
    assert (await ask(broker, 3)).leader_epoch == 3
    assert (await ask(broker, 4)).leader_epoch == -1
    broker.append("a", make_batch(b"2"), epoch=3)
    for epoch in (0, 1, 2):
        answer = await ask(broker, epoch)
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, 0, 2)


async def test_earlier_epochs_of_an_empty_log_end_at_its_start(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    for _ in range(2):
        await broker.controller.bump_leader_epochs([("a", 0)])
    answer = await ask(broker, 1)
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, 1, 0)
    assert (await ask(broker, -1)).leader_epoch == -1


async def test_the_current_epoch_of_an_empty_log_ends_at_its_start(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    answer = await ask(broker, 0)
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, 0, 0)


async def test_another_current_epoch_is_fenced_from_v2_on(broker: HandlerBroker) -> None:
    await two_epochs(broker)
    for version in VERSIONS[2:]:
        assert (await ask(broker, 0, current=0, version=version)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (await ask(broker, 0, current=2, version=version)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await ask(broker, 0, current=1, version=version)).end_offset == 2


async def test_unknown_partitions_are_reported(broker: HandlerBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    await two_epochs(broker)
    for version in VERSIONS:
        for answer in (
            await ask(broker, 0, index=1, version=version),
            await ask(broker, 0, name="absent", version=version),
        ):
            assert (answer.error_code, answer.end_offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    monkeypatch.setattr(broker.partitions, "get", lambda name, index: None)
    assert (await ask(broker, 0)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_brokers_and_clients_need_a_permission(broker: HandlerBroker) -> None:
    await two_epochs(broker)
    broker.allow((AclOperation.READ, "a"))
    assert (await ask(broker, 0)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    for allowed in ((AclOperation.DESCRIBE, "a"), (AclOperation.CLUSTER_ACTION, CLUSTER_NAME)):
        broker.allow(allowed)
        assert (await ask(broker, 0)).end_offset == 2


async def test_a_storage_failure_is_reported(broker: HandlerBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(log: object, epoch: int) -> None:
        raise StorageFailure("broken")

    await two_epochs(broker)
    monkeypatch.setattr(type(broker.log("a")), "end_offset_for_epoch", fail)
    assert (await ask(broker, 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
