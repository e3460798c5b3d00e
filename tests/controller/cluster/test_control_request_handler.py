"""Control requests: a broker checks epochs, topic ids and the age of states; a controller sends what changed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from kbroker.controller.changes import (
    BrokerAdded,
    ControllerChanged,
    PartitionsChanged,
    TopicAdded,
    TopicRemoved,
    apply,
)
from kbroker.controller.cluster.control_requests import ControlRequest, changed_state, full_state
from kbroker.controller.image import BrokerRegistration, Image, PartitionState, TopicImage
from kbroker.controller.rules.topic_rules import NewTopic
from kbroker.errors import Refusal
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import leader_and_isr, update_metadata
from tests.controller.conftest import Sessions
from tests.controller.members import Members, OneMember, open_members
from tests.controller.test_controller import ENDPOINTS


@pytest.fixture
def zookeeper_address() -> None:
    """Runs these tests on the embedded tree only."""


@pytest.fixture
async def two(sessions: Sessions) -> AsyncIterator[Members]:
    """Broker 1 is the controller; `t` is led by broker 2."""
    async with open_members(sessions) as members:
        for broker_id in (1, 2):
            await members.start(broker_id)
        await members.until_agreed(lambda image: len(image.brokers) == 2)
        await members.controller.controller.create_topic(NewTopic("t", assignment={0: (2, 1)}))
        await members.until_agreed(lambda image: "t" in image.topics)
        yield members


def request(broker: OneMember, message: Any, **changed: Any) -> Any:
    image = broker.image
    members = {
        "controller_id": image.controller_id,
        "controller_epoch": image.controller_epoch,
        "broker_epoch": broker.member.broker_epoch,
    }
    return message(**(members | changed))


def led_by(broker: OneMember, leader: int, *, leader_epoch: int, partition_epoch: int, topic_id: bytes = b"") -> Any:
    state = leader_and_isr.LeaderAndIsrPartitionState(
        partition_index=0,
        controller_epoch=1,
        leader=leader,
        leader_epoch=leader_epoch,
        isr=[2, 1],
        partition_epoch=partition_epoch,
        replicas=[2, 1],
    )
    known = broker.image.topics["t"].id
    return [leader_and_isr.LeaderAndIsrTopicState(topic_name="t", topic_id=topic_id or known, partition_states=[state])]


async def code_of(call: Any) -> ErrorCode:
    with pytest.raises(Refusal) as refused:
        await call
    return ErrorCode(refused.value.code)


async def test_a_request_of_an_earlier_controller_is_refused(two: Members) -> None:
    broker = two.all[2]
    stale = request(broker, update_metadata.REQUEST, controller_epoch=0)
    assert await code_of(broker.member.control_requests.update_metadata(stale)) == ErrorCode.STALE_CONTROLLER_EPOCH
    stale = request(broker, leader_and_isr.REQUEST, controller_epoch=0)
    assert await code_of(broker.member.control_requests.leader_and_isr(stale)) == ErrorCode.STALE_CONTROLLER_EPOCH


async def test_a_request_for_an_earlier_registration_is_refused(two: Members) -> None:
    broker = two.all[2]
    epoch = broker.member.broker_epoch
    stale = request(broker, update_metadata.REQUEST, broker_epoch=epoch - 1)
    assert await code_of(broker.member.control_requests.update_metadata(stale)) == ErrorCode.STALE_BROKER_EPOCH
    # The controller may know the new registration before the broker does.
    await broker.member.control_requests.leader_and_isr(request(broker, leader_and_isr.REQUEST, broker_epoch=epoch + 1))


async def test_a_broker_follows_a_newer_controller_and_resigns(two: Members) -> None:
    broker = two.all[1]
    assert broker.member.is_controller
    body = request(broker, leader_and_isr.REQUEST, controller_id=2, controller_epoch=8)
    await broker.member.control_requests.leader_and_isr(body)
    assert (broker.image.controller_id, broker.image.controller_epoch) == (2, 8)


async def test_a_newer_state_is_applied_and_an_older_one_is_not(two: Members) -> None:
    broker = two.all[2]
    handler = broker.member.control_requests
    newer = led_by(broker, 1, leader_epoch=3, partition_epoch=5)
    codes = await handler.leader_and_isr(request(broker, leader_and_isr.REQUEST, topic_states=newer))
    assert codes == {("t", 0): ErrorCode.NONE}
    taken = PartitionState(1, 3, (2, 1), (2, 1), 5, controller_epoch=1)
    assert broker.image.partition("t", 0) == taken
    older = led_by(broker, 2, leader_epoch=2, partition_epoch=4)
    codes = await handler.leader_and_isr(request(broker, leader_and_isr.REQUEST, topic_states=older))
    assert codes == {("t", 0): ErrorCode.STALE_CONTROLLER_EPOCH}
    assert broker.image.partition("t", 0) == taken


async def test_a_topic_with_the_same_name_and_another_id_is_another_topic(two: Members) -> None:
    broker = two.all[2]
    other = led_by(broker, 1, leader_epoch=3, partition_epoch=5, topic_id=b"x" * 16)
    codes = await broker.member.control_requests.leader_and_isr(
        request(broker, leader_and_isr.REQUEST, topic_states=other)
    )
    assert codes == {("t", 0): ErrorCode.INCONSISTENT_TOPIC_ID}
    known = broker.image.partition("t", 0)
    assert known is not None
    assert known.leader == 2


async def test_a_topic_that_is_not_in_the_tree_is_unknown(two: Members) -> None:
    broker = two.all[2]
    states = led_by(broker, 1, leader_epoch=3, partition_epoch=5)
    states[0].topic_name = "gone"
    codes = await broker.member.control_requests.leader_and_isr(
        request(broker, leader_and_isr.REQUEST, topic_states=states)
    )
    assert codes == {("gone", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


# Requests of the controller


def image_of(*topics: TopicImage) -> Image:
    brokers = [BrokerAdded(BrokerRegistration(broker_id, 10 + broker_id, ENDPOINTS)) for broker_id in (1, 2, 3)]
    return apply(Image(), [*brokers, ControllerChanged(1, 4), *(TopicAdded(topic) for topic in topics)])


ORDERS = TopicImage("orders", b"o" * 16, (PartitionState(2, 0, (2, 3), (2, 3), 0), PartitionState(1, 0, (1,), (1,), 0)))


def kinds(requests: list[ControlRequest]) -> list[str]:
    return [request.api.name for request in requests]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\x00b"])
async def test_a_topic_whose_name_is_no_path_of_the_tree_is_unknown(two: Members, name: str) -> None:
    broker = two.all[2]
    topics = led_by(broker, 2, leader_epoch=1, partition_epoch=1)
    topics[0].topic_name = name
    body = request(broker, leader_and_isr.REQUEST, topic_states=topics)
    codes = await broker.member.control_requests.leader_and_isr(body)
    assert codes == {(name, 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert list(broker.image.topics) == ["t"]


async def test_a_negative_partition_is_refused(two: Members) -> None:
    broker = two.all[2]
    before = broker.image.topics["t"]
    topics = led_by(broker, 2, leader_epoch=9, partition_epoch=9)
    topics[0].partition_states[0].partition_index = -1
    body = request(broker, leader_and_isr.REQUEST, topic_states=topics)
    assert await code_of(broker.member.control_requests.leader_and_isr(body)) == ErrorCode.INVALID_REQUEST
    assert broker.image.topics["t"] == before


@pytest.mark.parametrize("protocol", [-1, 4, 32767])
async def test_a_broker_with_an_unknown_security_protocol_is_refused(two: Members, protocol: int) -> None:
    broker = two.all[2]
    endpoint = update_metadata.UpdateMetadataEndpoint(port=9092, host="h", listener="L", security_protocol=protocol)
    live = [update_metadata.UpdateMetadataBroker(id=3, endpoints=[endpoint])]
    body = request(broker, update_metadata.REQUEST, live_brokers=live)
    assert await code_of(broker.member.control_requests.update_metadata(body)) == ErrorCode.INVALID_REQUEST
    assert sorted(broker.image.brokers) == [1, 2]


def test_every_version_that_may_be_sent_carries_the_topics() -> None:
    image = image_of(ORDERS)
    for sent in full_state(image, image.brokers[2], "PLAINTEXT"):
        for version in range(sent.at_least, sent.api.versions[-1] + 1):
            parts: list[Any] = []
            codec(sent.api.request, version).encode(sent.api.request(**sent.members), parts)
            body, _end = codec(sent.api.request, version).decode(b"".join(parts))
            assert [(topic.topic_name, topic.topic_id) for topic in body.topic_states] == [("orders", ORDERS.id)]


def test_a_newly_registered_broker_gets_the_full_state() -> None:
    image = image_of(ORDERS)
    metadata, leadership = full_state(image, image.brokers[2], "PLAINTEXT")
    assert [topic.topic_name for topic in metadata.members["topic_states"]] == ["orders"]
    assert len(metadata.members["topic_states"][0].partition_states) == 2
    assert [partition.partition_index for partition in leadership.members["topic_states"][0].partition_states] == [0]
    assert metadata.members["broker_epoch"] == leadership.members["broker_epoch"] == 12
    assert leadership.members["type"] == 2


def test_replicas_get_leader_and_isr_before_update_metadata() -> None:
    before, after = image_of(), image_of(ORDERS)
    changes = [TopicAdded(ORDERS)]
    sent_to = {
        broker_id: changed_state(before, after, changes, after.brokers[broker_id], "PLAINTEXT")
        for broker_id in (1, 2, 3)
    }
    assert all(kinds(requests) == ["LeaderAndIsr", "UpdateMetadata"] for requests in sent_to.values())
    (state,) = sent_to[2][0].members["topic_states"][0].partition_states
    assert state.is_new


def test_a_change_of_the_isr_needs_only_update_metadata() -> None:
    before = image_of(ORDERS)
    smaller = ORDERS.partitions[0]._replace(isr=(2,), partition_epoch=1)
    changes = [PartitionsChanged("orders", {0: smaller})]
    after = apply(before, changes)
    assert kinds(changed_state(before, after, changes, after.brokers[3], "PLAINTEXT")) == ["UpdateMetadata"]


def test_replicas_of_a_deleted_topic_are_stopped() -> None:
    before = image_of(ORDERS)
    changes = [TopicRemoved(ORDERS)]
    after = apply(before, changes)
    metadata, stop = changed_state(before, after, changes, after.brokers[3], "PLAINTEXT")
    assert {partition.leader for partition in metadata.members["topic_states"][0].partition_states} == {-2}
    (state,) = stop.members["topic_states"][0].partition_states
    assert (state.partition_index, state.leader_epoch, state.delete_partition) == (0, -2, True)
