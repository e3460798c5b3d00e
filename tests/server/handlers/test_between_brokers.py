"""Requests between brokers in all versions; a single broker serves none of them."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kbroker.controller.changes import PartitionsChanged
from kbroker.controller.cluster.control_request_handler import ControlRequestHandler
from kbroker.controller.image import PartitionState
from kbroker.errors import PeerError
from kbroker.protocol.acl_codes import AclOperation, ResourceType
from kbroker.protocol.compiler.load import codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.headers import REQUEST_HEADER, RESPONSE_HEADER
from kbroker.protocol.messages import (
    alter_partition,
    create_topics,
    envelope,
    leader_and_isr,
    stop_replica,
    update_metadata,
)
from kbroker.protocol.registry import APIS, api
from kbroker.server.requests.dispatch import Dispatch
from tests.server.handlers.harness import Allowing, HandlerBroker

LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA, CONTROLLED_SHUTDOWN = 4, 5, 6, 7
API_VERSIONS, CREATE_TOPICS, ALTER_PARTITION, ENVELOPE, ALLOCATE_PRODUCER_IDS = 18, 19, 56, 58, 67

BETWEEN_BROKERS = [api for api in APIS if api.between_brokers]


@pytest.fixture
async def member(broker: HandlerBroker) -> HandlerBroker:
    """Returns the broker as the controller of a cluster, with a topic `t` of one replica."""
    handler = ControlRequestHandler(
        broker.controller.store, os.urandom, broker_epoch=lambda: 5, on_metadata=lambda: None
    )
    broker.context.member = cast(Any, SimpleNamespace(control_requests=handler))
    broker.dispatch = Dispatch(broker.context)
    await broker.create_topic("t")
    return broker


def sender(broker: HandlerBroker, **changed: Any) -> dict[str, Any]:
    image = broker.image
    return {"controller_id": 1, "controller_epoch": image.controller_epoch, "broker_epoch": 5} | changed


@pytest.mark.parametrize("row", BETWEEN_BROKERS, ids=lambda row: row.name)
async def test_a_single_broker_does_not_serve_them(broker: HandlerBroker, row: Any) -> None:
    with pytest.raises(PeerError, match="is not supported"):
        await broker.ask_raw(row.key, row.versions[-1], b"", 2)


async def test_a_cluster_lists_them_in_api_versions(member: HandlerBroker) -> None:
    response = await member.ask(API_VERSIONS, 3, client_software_name="x", client_software_version="1")
    told = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    assert {broker.key: broker.serves for broker in BETWEEN_BROKERS}.items() <= told.items()
    # As Apache Kafka 3.9 with ZooKeeper, which may coordinate the transactions.
    assert "transaction.version" not in {feature.name for feature in response.finalized_features}


@pytest.mark.parametrize("row", BETWEEN_BROKERS, ids=lambda row: row.name)
async def test_requests_between_brokers_need_a_permission(member: HandlerBroker, row: Any) -> None:
    member.allow((AclOperation.ALTER, "kafka-cluster"))
    response = await member.ask(row.key, row.versions[-1])
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    member.controller.store.resign()  # the permission comes before the question who the controller is
    response = await member.ask(row.key, row.versions[-1])
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", range(8))
async def test_a_refused_leader_and_isr_has_the_code_for_each_partition(member: HandlerBroker, version: int) -> None:
    member.allow()
    one = state(member)
    group = leader_and_isr.LeaderAndIsrTopicState(topic_name="t", topic_id=b"x" * 16, partition_states=[one])
    response = await member.ask(
        LEADER_AND_ISR, version, **sender(member), ungrouped_partition_states=[one], topic_states=[group]
    )
    errors = response.topics[0].partition_errors if version >= 5 else response.partition_errors
    assert [(error.partition_index, error.error_code) for error in errors] == [(0, 31)]


@pytest.mark.parametrize("version", range(5))
async def test_a_refused_stop_replica_has_the_code_for_each_partition(member: HandlerBroker, version: int) -> None:
    member.allow()
    states = [stop_replica.StopReplicaPartitionState(partition_index=2)]
    response = await member.ask(
        STOP_REPLICA,
        version,
        **sender(member),
        ungrouped_partitions=[stop_replica.StopReplicaPartitionV0(topic_name="t", partition_index=2)],
        topics=[stop_replica.StopReplicaTopicV1(name="t", partition_indexes=[2])],
        topic_states=[stop_replica.StopReplicaTopicState(topic_name="t", partition_states=states)],
    )
    errors = [(error.topic_name, error.partition_index, error.error_code) for error in response.partition_errors]
    assert errors == [("t", 2, 31)]


def state(broker: HandlerBroker, **members: Any) -> Any:
    known = {"partition_index": 0, "leader": 2, "leader_epoch": 3, "isr": [2], "replicas": [1, 2]}
    return leader_and_isr.LeaderAndIsrPartitionState(**(known | {"partition_epoch": 9, "topic_name": "t"} | members))


@pytest.mark.parametrize("version", range(8))
async def test_leader_and_isr_is_applied_in_every_version(member: HandlerBroker, version: int) -> None:
    topic_id = member.image.topics["t"].id
    one = state(member)
    group = leader_and_isr.LeaderAndIsrTopicState(topic_name="t", topic_id=topic_id, partition_states=[one])
    response = await member.ask(
        LEADER_AND_ISR, version, **sender(member), ungrouped_partition_states=[one], topic_states=[group]
    )
    assert response.error_code == ErrorCode.NONE
    if version >= 5:
        (told,) = response.topics
        assert told.topic_id == topic_id
        assert [(error.partition_index, error.error_code) for error in told.partition_errors] == [(0, 0)]
    else:
        errors = [(error.topic_name, error.partition_index, error.error_code) for error in response.partition_errors]
        assert errors == [("t", 0, 0)]
    assert member.image.partition("t", 0) == PartitionState(2, 3, (2,), (1, 2), 9)


@pytest.mark.parametrize("version", range(9))
async def test_update_metadata_is_applied_in_every_version(member: HandlerBroker, version: int) -> None:
    one = update_metadata.UpdateMetadataPartitionState(
        topic_name="t", partition_index=0, leader=2, leader_epoch=3, isr=[2], zk_version=9, replicas=[1, 2]
    )
    topic_id = member.image.topics["t"].id
    group = update_metadata.UpdateMetadataTopicState(topic_name="t", topic_id=topic_id, partition_states=[one])
    endpoint = update_metadata.UpdateMetadataEndpoint(port=9, host="there", listener="PLAINTEXT")
    live = update_metadata.UpdateMetadataBroker(id=2, v0_host="there", v0_port=9, endpoints=[endpoint])
    response = await member.ask(
        UPDATE_METADATA,
        version,
        **sender(member),
        ungrouped_partition_states=[one],
        topic_states=[group],
        live_brokers=[live],
    )
    assert response.error_code == ErrorCode.NONE
    assert member.image.partition("t", 0) == PartitionState(2, 3, (2,), (1, 2), 9)
    (broker,) = member.image.brokers.values()
    found = broker.endpoint("PLAINTEXT")
    assert found is not None
    assert (broker.id, found.host, found.port) == (2, "there", 9)


@pytest.mark.parametrize("key", [LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA])
async def test_stale_epochs_are_refused(member: HandlerBroker, key: int) -> None:
    version = api(key).versions[-1]
    response = await member.ask(key, version, **sender(member, controller_epoch=0))
    assert response.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    response = await member.ask(key, version, **sender(member, broker_epoch=4))
    assert response.error_code == ErrorCode.STALE_BROKER_EPOCH


async def test_replicas_of_a_deleted_topic_are_deleted_and_stopped_ones_stay(member: HandlerBroker) -> None:
    def states(leader_epoch: int, *, is_deleted: bool) -> Any:
        one = stop_replica.StopReplicaPartitionState(
            partition_index=0, leader_epoch=leader_epoch, delete_partition=is_deleted
        )
        return [stop_replica.StopReplicaTopicState(topic_name="t", partition_states=[one])]

    response = await member.ask(STOP_REPLICA, 4, **sender(member), topic_states=states(3, is_deleted=False))
    assert [(error.topic_name, error.error_code) for error in response.partition_errors] == [("t", 0)]
    assert "t" in member.image.topics
    await member.ask(STOP_REPLICA, 4, **sender(member), topic_states=states(-2, is_deleted=True))
    assert "t" not in member.image.topics
    assert member.partitions.get("t", 0) is None


@pytest.mark.parametrize("version", range(4))
async def test_a_proposed_isr_is_accepted_or_refused(member: HandlerBroker, version: int) -> None:
    first = PartitionState(1, 0, (1, 2), (1, 2), 0)
    member.controller.store.commit([PartitionsChanged("t", {0: first})])
    broker_epoch = member.image.brokers[1].epoch
    one = alter_partition.PartitionData(
        new_isr=[1], new_isr_with_epochs=[alter_partition.BrokerState(broker_id=1)], partition_epoch=0
    )
    known = alter_partition.TopicData(topic_name="t", topic_id=member.image.topics["t"].id, partitions=[one])
    other = alter_partition.TopicData(topic_name="nowhere", topic_id=b"x" * 16, partitions=[one])
    response = await member.ask(ALTER_PARTITION, version, broker_id=1, broker_epoch=broker_epoch, topics=[known, other])
    taken, unknown = (topic.partitions[0] for topic in response.topics)
    assert (taken.error_code, taken.leader_id, taken.isr, taken.partition_epoch) == (0, 1, [1], 1)
    code = ErrorCode.UNKNOWN_TOPIC_ID if version >= 2 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert unknown.error_code == code
    response = await member.ask(ALTER_PARTITION, version, broker_id=1, broker_epoch=broker_epoch + 1, topics=[known])
    assert response.error_code == ErrorCode.STALE_BROKER_EPOCH


@pytest.mark.parametrize("version", range(4))
async def test_a_stopping_broker_gets_the_partitions_it_still_leads(member: HandlerBroker, version: int) -> None:
    alone = PartitionState(1, 0, (1,), (1, 2), 0)
    member.controller.store.commit([PartitionsChanged("t", {0: alone})])
    response = await member.ask(CONTROLLED_SHUTDOWN, version, broker_id=1, broker_epoch=member.image.brokers[1].epoch)
    assert [(partition.topic_name, partition.partition_index) for partition in response.remaining_partitions] == [
        ("t", 0)
    ]
    response = await member.ask(CONTROLLED_SHUTDOWN, version, broker_id=7)
    assert response.error_code == ErrorCode.BROKER_NOT_AVAILABLE


async def test_registered_brokers_get_producer_ids(member: HandlerBroker) -> None:
    epoch = member.image.brokers[1].epoch
    first = await member.ask(ALLOCATE_PRODUCER_IDS, 0, broker_id=1, broker_epoch=epoch)
    second = await member.ask(ALLOCATE_PRODUCER_IDS, 0, broker_id=1, broker_epoch=epoch)
    assert first.producer_id_len == 1000
    assert second.producer_id_start == first.producer_id_start + 1000
    stale = await member.ask(ALLOCATE_PRODUCER_IDS, 0, broker_id=1, broker_epoch=epoch - 1)
    assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH
    unknown = await member.ask(ALLOCATE_PRODUCER_IDS, 0, broker_id=7, broker_epoch=epoch)
    assert unknown.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


def enveloped(key: int, version: int, **members: Any) -> bytes:
    asked = api(key)
    header = REQUEST_HEADER(request_api_key=key, request_api_version=version, correlation_id=3, client_id="kafka")
    body = codec(asked.request, version).to_bytes(asked.request(**members))
    return codec(REQUEST_HEADER, asked.request_header_version(version)).to_bytes(header) + body


def principal(name: str) -> bytes:
    """Returns the bytes of Kafka's DefaultKafkaPrincipalBuilder."""
    return b"\0\0" + codec(envelope.PRINCIPAL, 0).to_bytes(envelope.PRINCIPAL(type="User", name=name))


SENDER: dict[str, Any] = {"request_principal": principal("alice"), "client_host_address": b"\x7f\0\0\1"}


@pytest.mark.parametrize("version", range(2, 8))
async def test_a_topic_is_created_from_an_envelope(member: HandlerBroker, version: int) -> None:
    topic = create_topics.CreatableTopic(name="new", num_partitions=2, replication_factor=1)
    data = enveloped(CREATE_TOPICS, version, topics=[topic], timeout_ms=1000)
    response = await member.ask(ENVELOPE, 0, request_data=data, **SENDER)
    inside = response.response_data
    header, position = codec(RESPONSE_HEADER, api(CREATE_TOPICS).response_header_version(version)).decode(inside)
    answer, end = codec(create_topics.RESPONSE, version).decode(inside, position)
    assert (header.correlation_id, end) == (3, len(inside))
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("new", 0)]
    assert len(member.image.topics["new"].partitions) == 2


@pytest.mark.parametrize("data", [b"", b"\0", enveloped(20, 6, topics=[]), enveloped(19, 7, topics=[])[:-3]])
async def test_an_envelope_with_another_request_is_refused(member: HandlerBroker, data: bytes) -> None:
    response = await member.ask(ENVELOPE, 0, request_data=data, **SENDER)
    assert (response.error_code, response.response_data) == (ErrorCode.INVALID_REQUEST, None)


class Recording(Allowing):
    """Allows all, and records who asks."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str, AclOperation]] = []

    def allows(self, principal: str, host: str, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        self.asked.append((principal, host, operation))
        return True


async def test_a_request_in_an_envelope_is_authorized_as_its_own_client(member: HandlerBroker) -> None:
    authorizer = member.context.authorizer = Recording()
    topic = create_topics.CreatableTopic(name="new", num_partitions=2, replication_factor=1)
    data = enveloped(CREATE_TOPICS, 7, topics=[topic], timeout_ms=1000)
    await member.ask(ENVELOPE, 0, request_data=data, **SENDER)
    assert ("User:ANONYMOUS", "192.0.2.7", AclOperation.CLUSTER_ACTION) in authorizer.asked
    assert ("User:alice", "127.0.0.1", AclOperation.CREATE) in authorizer.asked


@pytest.mark.parametrize("data", [None, b"", b"\0", b"\0\1" + principal("a")[2:], principal("alice")[:-2]])
async def test_an_envelope_without_a_valid_principal_is_refused(member: HandlerBroker, data: bytes | None) -> None:
    response = await member.ask(ENVELOPE, 0, request_data=enveloped(19, 7), request_principal=data)
    assert response.error_code == ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE


async def test_an_envelope_from_a_listener_of_clients_closes_the_connection(member: HandlerBroker) -> None:
    with pytest.raises(PeerError, match="not for brokers"):
        await member.ask(ENVELOPE, 0, request_data=enveloped(19, 7), listener="CLIENTS", **SENDER)


async def test_controller_requests_are_refused_by_other_brokers(member: HandlerBroker) -> None:
    member.controller.store.resign()
    topic = create_topics.CreatableTopic(name="new", num_partitions=2, replication_factor=1)
    response = await member.ask(CREATE_TOPICS, 7, topics=[topic])
    assert [topic.error_code for topic in response.topics] == [ErrorCode.NOT_CONTROLLER]
    for key in (CONTROLLED_SHUTDOWN, ALTER_PARTITION, ENVELOPE, ALLOCATE_PRODUCER_IDS):
        response = await member.ask(key, api(key).versions[-1])
        assert response.error_code == ErrorCode.NOT_CONTROLLER, key
