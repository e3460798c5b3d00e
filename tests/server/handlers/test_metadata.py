"""Metadata: brokers of the client's listener, topics by name and by id, and automatic creation of topics."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio

from kbroker.config.endpoints import Endpoint
from kbroker.controller.changes import BrokerAdded, TopicAdded, apply
from kbroker.controller.image import BrokerRegistration, Image, PartitionState, TopicImage
from kbroker.names import CONSUMER_OFFSETS, TRANSACTION_STATE, ZERO_UUID
from kbroker.protocol.acl_codes import CLUSTER_NAME, AclOperation
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import metadata as messages
from tests.server.conftest import StartBroker
from tests.server.handlers.harness import FrozenController, HandlerBroker

METADATA = 3
VERSIONS = range(14)
UNASKED = -0x80000000


def named(*names: str | None) -> list[Any]:
    return [messages.MetadataRequestTopic(name=name) for name in names]


def by_id(*ids: bytes) -> list[Any]:
    return [messages.MetadataRequestTopic(name=None, topic_id=topic_id) for topic_id in ids]


def topics_of(response: Any) -> dict[str | None, Any]:
    return {topic.name: topic for topic in response.topics}


def codes_of(response: Any) -> dict[str | None, int]:
    return {topic.name: topic.error_code for topic in response.topics}


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_topic_is_described_in_every_version(broker: HandlerBroker, version: int) -> None:
    topic = await broker.create_topic("orders", 2)
    response = await broker.ask(METADATA, version, topics=named("orders"))
    (answer,) = response.topics
    assert (answer.error_code, answer.name) == (0, "orders")
    assert [partition.partition_index for partition in answer.partitions] == [0, 1]
    for partition in answer.partitions:
        assert (partition.error_code, partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (
            0,
            1,
            [1],
            [1],
        )
        assert partition.leader_epoch == (0 if version >= 7 else -1)
        assert partition.offline_replicas == []
    assert answer.topic_id == (topic.id if version >= 10 else ZERO_UUID)
    assert answer.topic_authorized_operations == UNASKED
    (node,) = response.brokers
    assert (node.node_id, node.host, node.port, node.rack) == (1, "127.0.0.1", 9092, None)
    if version >= 1:
        assert response.controller_id == 1
    if version >= 2:
        assert response.cluster_id == broker.image.cluster_id != ""


async def test_the_endpoint_is_that_of_the_clients_listener(broker: HandlerBroker) -> None:
    response = await broker.ask(METADATA, 12, listener="EXTERNAL", topics=[])
    assert [(broker.host, broker.port) for broker in response.brokers] == [("kbroker.example", 19092)]


async def test_the_rack_is_returned(start_broker: StartBroker) -> None:
    broker = await start_broker(broker_rack="cellar")
    response = await broker.ask(METADATA, 1, topics=[])
    assert [broker.rack for broker in response.brokers] == ["cellar"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_all_topics_are_an_empty_list_in_v0_and_null_from_v1_on(broker: HandlerBroker, version: int) -> None:
    await broker.create_topic("a")
    await broker.create_topic("b")
    response = await broker.ask(METADATA, version, topics=[] if version == 0 else None)
    assert codes_of(response) == {"a": 0, "b": 0}


@pytest.mark.parametrize("version", VERSIONS[1:])
async def test_an_empty_list_means_no_topic_from_v1_on(broker: HandlerBroker, version: int) -> None:
    await broker.create_topic("a")
    response = await broker.ask(METADATA, version, topics=[])
    assert response.topics == []
    assert len(response.brokers) == 1


async def test_the_cached_response_for_all_topics_follows_changes(broker: HandlerBroker) -> None:
    assert codes_of(await broker.ask(METADATA, 12, topics=None)) == {}
    await broker.create_topic("a")
    assert codes_of(await broker.ask(METADATA, 12, topics=None)) == {"a": 0}
    assert codes_of(await broker.ask(METADATA, 12, topics=None)) == {"a": 0}
    await broker.controller.delete_topic(name="a")
    assert codes_of(await broker.ask(METADATA, 12, topics=None)) == {}


async def test_the_cached_response_for_all_topics_differs_by_listener_and_version(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    for version in (1, 9, 12):
        for listener, port in (("PLAINTEXT", 9092), ("EXTERNAL", 19092)):
            response = await broker.ask(METADATA, version, listener=listener, topics=None)
            assert [broker.port for broker in response.brokers] == [port]
            assert codes_of(response) == {"a": 0}


async def test_a_topic_named_twice_is_returned_once(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    response = await broker.ask(METADATA, 12, topics=named("a", "a"))
    assert [topic.name for topic in response.topics] == ["a"]


@pytest.mark.parametrize("version", [12, 13])
async def test_topics_are_found_by_id(broker: HandlerBroker, version: int) -> None:
    topic = await broker.create_topic("orders")
    response = await broker.ask(METADATA, version, topics=by_id(topic.id))
    (answer,) = response.topics
    assert (answer.name, answer.topic_id, answer.error_code, len(answer.partitions)) == ("orders", topic.id, 0, 1)


async def test_an_unknown_id_has_its_own_code_and_no_name(broker: HandlerBroker) -> None:
    response = await broker.ask(METADATA, 12, topics=by_id(b"?" * 16))
    (answer,) = response.topics
    assert (answer.name, answer.topic_id, answer.error_code) == (None, b"?" * 16, ErrorCode.UNKNOWN_TOPIC_ID)


async def test_with_one_id_all_topics_are_looked_up_by_id(broker: HandlerBroker) -> None:
    topic = await broker.create_topic("a")
    await broker.create_topic("b")
    response = await broker.ask(METADATA, 12, topics=[*by_id(topic.id), *named("b")])
    assert codes_of(response) == {"a": 0}


@pytest.mark.parametrize("version", [10, 11])
async def test_an_id_before_v12_is_refused_for_each_topic(broker: HandlerBroker, version: int) -> None:
    topics = [messages.MetadataRequestTopic(name="a", topic_id=b"1" * 16)]
    response = await broker.ask(METADATA, version, topics=topics)
    assert codes_of(response) == {"a": ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize("version", [10, 11, 12, 13])
async def test_neither_name_nor_id_is_refused(broker: HandlerBroker, version: int) -> None:
    response = await broker.ask(METADATA, version, topics=named(None))
    assert [topic.error_code for topic in response.topics] == [ErrorCode.INVALID_REQUEST]
    assert response.error_code == (ErrorCode.INVALID_REQUEST if version >= 13 else 0)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_missing_topic_is_created_and_returned(start_broker: StartBroker, version: int) -> None:
    broker = await start_broker(num_partitions=3)
    response = await broker.ask(METADATA, version, topics=named("fresh"))
    (answer,) = response.topics
    assert (answer.name, answer.error_code, len(answer.partitions)) == ("fresh", 0, 3)
    assert all(partition.leader_id == 1 for partition in answer.partitions)
    assert broker.partitions.get("fresh", 2) is not None


@pytest.mark.parametrize("version", VERSIONS[4:])
async def test_a_client_may_forbid_the_creation_from_v4_on(broker: HandlerBroker, version: int) -> None:
    response = await broker.ask(METADATA, version, topics=named("fresh"), allow_auto_topic_creation=False)
    assert codes_of(response) == {"fresh": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert broker.image.topic("fresh") is None


async def test_the_config_may_forbid_the_creation(start_broker: StartBroker) -> None:
    broker = await start_broker(auto_create_topics_enable="false")
    response = await broker.ask(METADATA, 12, topics=named("fresh", "bad/name"))
    assert codes_of(response) == {
        "fresh": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "bad/name": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    assert broker.image.topics == {}


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "ü", "x" * 250])
async def test_a_topic_with_an_invalid_name_is_not_created(broker: HandlerBroker, name: str) -> None:
    response = await broker.ask(METADATA, 12, topics=named(name, "fine"))
    assert codes_of(response) == {name: ErrorCode.INVALID_TOPIC_EXCEPTION, "fine": 0}


async def test_a_name_that_collides_is_refused(broker: HandlerBroker) -> None:
    await broker.create_topic("a.b")
    response = await broker.ask(METADATA, 12, topics=named("a_b"))
    assert codes_of(response) == {"a_b": ErrorCode.INVALID_TOPIC_EXCEPTION}


async def test_an_impossible_replication_factor_is_reported(start_broker: StartBroker) -> None:
    broker = await start_broker(default_replication_factor=3)
    response = await broker.ask(METADATA, 12, topics=named("fresh"))
    assert codes_of(response) == {"fresh": ErrorCode.INVALID_REPLICATION_FACTOR}


async def test_concurrent_requests_for_one_new_topic_all_get_it(broker: HandlerBroker) -> None:
    responses = []

    async def ask() -> None:
        responses.append(await broker.ask(METADATA, 12, topics=named("fresh")))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(ask)
    ids = {response.topics[0].topic_id for response in responses}
    assert [codes_of(response) for response in responses] == [{"fresh": 0}] * 5
    assert len(ids) == 1


async def test_internal_topics_are_created_with_their_own_counts_and_configs(start_broker: StartBroker) -> None:
    broker = await start_broker(offsets_topic_num_partitions=7, transaction_state_log_num_partitions=5)
    response = await broker.ask(METADATA, 12, topics=named(CONSUMER_OFFSETS, TRANSACTION_STATE))
    answers = topics_of(response)
    assert len(answers[CONSUMER_OFFSETS].partitions) == 7
    assert len(answers[TRANSACTION_STATE].partitions) == 5
    assert all(topic.is_internal for topic in response.topics)
    assert broker.image.topics[CONSUMER_OFFSETS].configs["cleanup.policy"] == "compact"
    assert broker.image.topics[TRANSACTION_STATE].configs["min.insync.replicas"] == "1"


async def test_a_topic_of_a_client_is_not_internal(broker: HandlerBroker) -> None:
    response = await broker.ask(METADATA, 12, topics=named("orders"))
    assert not response.topics[0].is_internal


@pytest.mark.parametrize("version", [8, 10, 12])
async def test_authorized_operations_are_returned_on_request(broker: HandlerBroker, version: int) -> None:
    await broker.create_topic("a")
    response = await broker.ask(
        METADATA,
        version,
        topics=None,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    assert response.topics[0].topic_authorized_operations == 0b1101_1111_1000
    assert response.cluster_authorized_operations == (0b1_1111_1010_0000 if version <= 10 else UNASKED)
    # The cached response has no authorized operations.
    plain = await broker.ask(METADATA, version, topics=None)
    assert plain.topics[0].topic_authorized_operations == UNASKED
    assert plain.cluster_authorized_operations == UNASKED


async def test_authorized_operations_follow_the_permissions(broker: HandlerBroker) -> None:
    await broker.create_topic("a")
    broker.allow((AclOperation.DESCRIBE, "a"), (AclOperation.READ, "a"))
    response = await broker.ask(
        METADATA,
        8,
        topics=named("a"),
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    assert response.topics[0].topic_authorized_operations == 1 << AclOperation.DESCRIBE | 1 << AclOperation.READ
    assert response.cluster_authorized_operations == 0


async def test_topics_that_may_not_be_described_are_hidden(broker: HandlerBroker) -> None:
    seen = await broker.create_topic("seen")
    hidden = await broker.create_topic("hidden")
    broker.allow((AclOperation.DESCRIBE, "seen"))
    assert codes_of(await broker.ask(METADATA, 12, topics=None)) == {"seen": 0}
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    by_name = await broker.ask(METADATA, 12, topics=named("seen", "hidden", "absent"))
    assert codes_of(by_name) == {"seen": 0, "hidden": refused, "absent": refused}
    assert topics_of(by_name)["hidden"].topic_id == ZERO_UUID
    answers = {
        topic.topic_id: topic for topic in (await broker.ask(METADATA, 12, topics=by_id(seen.id, hidden.id))).topics
    }
    assert (answers[seen.id].name, answers[hidden.id].name) == ("seen", None)
    assert answers[hidden.id].error_code == refused
    assert broker.image.topic("absent") is None


async def test_creation_needs_a_permission_for_the_cluster_or_for_the_topic(broker: HandlerBroker) -> None:
    describe = [(AclOperation.DESCRIBE, name) for name in ("a", "b", "c")]
    broker.allow(*describe, (AclOperation.CREATE, "a"))
    response = await broker.ask(METADATA, 12, topics=named("a", "b"))
    assert codes_of(response) == {"a": 0, "b": ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    broker.allow(*describe, (AclOperation.CREATE, CLUSTER_NAME))
    assert codes_of(await broker.ask(METADATA, 12, topics=named("c"))) == {"c": 0}


def put_cluster_of_three(broker: HandlerBroker) -> None:
    """Broker 2 lacks the listener, broker 3 is offline; 1 leads partition 0, 2 leads 1, 3 leads 2."""
    plain = Endpoint("PLAINTEXT", "127.0.0.1", 9092)
    brokers = [
        BrokerRegistration(1, 10, (plain,)),
        BrokerRegistration(2, 11, (Endpoint("INTERNAL", "127.0.0.1", 9093),)),
    ]
    partitions = tuple(PartitionState(leader, 4, (1, 2), (1, 2, 3), 0) for leader in (1, 2, 3))
    topic = TopicImage(
        "orders",
        b"t" * 16,
        (*partitions, PartitionState(1, 4, (1,), (1,), 0), PartitionState(-1, 4, (3,), (3,), 0)),
    )
    image = apply(Image("id", 1, 1), [*map(BrokerAdded, brokers), TopicAdded(topic)])
    broker.context.controller = cast(Any, FrozenController(image))


@pytest.mark.parametrize(
    ("version", "missing_listener"), [(1, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)]
)
async def test_unreachable_leaders_are_reported(
    broker: HandlerBroker, version: int, missing_listener: ErrorCode
) -> None:
    put_cluster_of_three(broker)
    response = await broker.ask(METADATA, version, topics=named("orders"))
    partitions = response.topics[0].partitions
    gone = ErrorCode.LEADER_NOT_AVAILABLE
    assert [partition.error_code for partition in partitions] == [0, missing_listener, gone, 0, gone]
    assert [partition.leader_id for partition in partitions] == [1, -1, -1, 1, -1]
    assert partitions[1].replica_nodes == [1, 2, 3]
    assert partitions[1].isr_nodes == [1, 2]
    assert [broker.node_id for broker in response.brokers] == [1]


async def test_unreachable_replicas_are_offline(broker: HandlerBroker) -> None:
    put_cluster_of_three(broker)
    response = await broker.ask(METADATA, 5, topics=named("orders"))
    assert [partition.offline_replicas for partition in response.topics[0].partitions] == [
        [2, 3],
        [2, 3],
        [2, 3],
        [],
        [3],
    ]


async def test_v0_leaves_out_unreachable_replicas(broker: HandlerBroker) -> None:
    put_cluster_of_three(broker)
    response = await broker.ask(METADATA, 0, topics=named("orders"))
    partitions = response.topics[0].partitions
    assert [partition.replica_nodes for partition in partitions] == [[1], [1], [1], [1], []]
    assert partitions[0].error_code == ErrorCode.REPLICA_NOT_AVAILABLE
    assert partitions[3].error_code == 0
