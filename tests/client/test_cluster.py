"""Who leads what: asked for when needed, asked again when it was wrong, and given up after the deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from kbroker.client.address import Address
from kbroker.client.admin.topics import create_topic
from kbroker.client.cluster import Cluster
from kbroker.client.connection import BrokerConnection
from kbroker.client.failures import BrokerRefusal, ConnectionFailed, CouldNotConnect, NoSuchTopic
from kbroker.client.offsets import LATEST, FoundOffset, commit_offsets, committed_offsets, list_offsets
from kbroker.errors import PeerError, UserError
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import create_topics, find_coordinator, metadata, offset_commit, offset_fetch
from kbroker.protocol.messages import list_offsets as messages
from tests.client.toy_broker import ADDRESS, ToyBroker, metadata_of

RETRY_SECONDS = 20.0


def offsets_answer(codes: list[int]) -> Callable[[Any], Any]:
    """Takes the next code for each request; partitions are asked one at a time here."""

    def answer(request: Any) -> Any:
        (topic,) = request.topics
        code = codes.pop(0)
        partitions = [
            messages.ListOffsetsPartitionResponse(partition_index=listed.partition_index, error_code=code, offset=42)
            for listed in topic.partitions
        ]
        return messages.RESPONSE(topics=[messages.ListOffsetsTopicResponse(name=topic.name, partitions=partitions)])

    return answer


def cluster_of(broker: ToyBroker) -> Cluster:
    return Cluster([ADDRESS], retry_s=RETRY_SECONDS, connect=broker.connect)


async def test_a_leader_that_moved_is_found_again(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    codes = [int(ErrorCode.NOT_LEADER_OR_FOLLOWER), 0]
    broker = ToyBroker(nursery, {"Metadata": lambda _: metadata_of({"a": 2}), "ListOffsets": offsets_answer(codes)})
    cluster = cluster_of(broker)
    assert await list_offsets(cluster, "a", {1: LATEST}) == {1: FoundOffset(42, -1)}
    assert broker.asked["Metadata"] == broker.asked["ListOffsets"] == 2
    await cluster.aclose()


async def test_what_is_known_is_not_asked_again(nursery: trio.Nursery) -> None:
    broker = ToyBroker(nursery, {"Metadata": lambda _: metadata_of({"a": 1}), "ListOffsets": offsets_answer([0, 0])})
    cluster = cluster_of(broker)
    await list_offsets(cluster, "a", {0: LATEST})
    await list_offsets(cluster, "a", {0: LATEST})
    assert broker.asked["Metadata"] == 1
    await cluster.aclose()


async def test_a_refusal_that_lasts_ends_with_its_code(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    codes = [int(ErrorCode.NOT_LEADER_OR_FOLLOWER)] * 1000
    broker = ToyBroker(nursery, {"Metadata": lambda _: metadata_of({"a": 1}), "ListOffsets": offsets_answer(codes)})
    cluster = cluster_of(broker)
    started = trio.current_time()
    with pytest.raises(BrokerRefusal, match="partition 0 of topic a: NOT_LEADER_OR_FOLLOWER"):
        await list_offsets(cluster, "a", {0: LATEST})
    assert RETRY_SECONDS - 1.1 < trio.current_time() - started <= RETRY_SECONDS
    await cluster.aclose()


async def test_a_refusal_that_no_retry_helps_is_raised_at_once(nursery: trio.Nursery) -> None:
    codes = [int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)]
    broker = ToyBroker(nursery, {"Metadata": lambda _: metadata_of({"a": 1}), "ListOffsets": offsets_answer(codes)})
    cluster = cluster_of(broker)
    with pytest.raises(BrokerRefusal) as refused:
        await list_offsets(cluster, "a", {0: LATEST})
    assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    await cluster.aclose()


async def test_a_partition_without_a_leader_is_waited_for(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    leaders = [-1, -1, 1]
    broker = ToyBroker(
        nursery,
        {
            "Metadata": lambda _: metadata_of({"a": 1}, leader=leaders.pop(0)),
            "ListOffsets": offsets_answer([0]),
        },
    )
    cluster = cluster_of(broker)
    assert await list_offsets(cluster, "a", {0: LATEST}) == {0: FoundOffset(42, -1)}
    assert leaders == []
    await cluster.aclose()


async def test_a_connection_that_broke_is_made_anew(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    broker = ToyBroker(nursery, {"Metadata": lambda _: metadata_of({"a": 1}), "ListOffsets": offsets_answer([0, 0])})
    cluster = cluster_of(broker)
    await list_offsets(cluster, "a", {0: LATEST})
    await broker.drop_connections()
    assert await list_offsets(cluster, "a", {0: LATEST}) == {0: FoundOffset(42, -1)}
    assert broker.asked["ApiVersions"] == 2
    await cluster.aclose()


async def test_a_broker_that_restarts_is_waited_for(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    broker = ToyBroker(nursery, {"Metadata": lambda _: metadata_of({"a": 1}), "ListOffsets": offsets_answer([0, 0])})
    cluster = cluster_of(broker)
    await list_offsets(cluster, "a", {0: LATEST})
    broker.is_down = True
    await broker.drop_connections()

    async def come_back() -> None:
        await trio.sleep(RETRY_SECONDS / 2)
        broker.is_down = False

    nursery.start_soon(come_back)
    assert await list_offsets(cluster, "a", {0: LATEST}) == {0: FoundOffset(42, -1)}
    await cluster.aclose()


async def test_a_broker_that_stays_away_is_given_up(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    broker = ToyBroker(nursery, {"Metadata": lambda _: metadata_of({"a": 1}), "ListOffsets": offsets_answer([0])})
    cluster = cluster_of(broker)
    await list_offsets(cluster, "a", {0: LATEST})
    broker.is_down = True
    await broker.drop_connections()
    with pytest.raises(ConnectionFailed, match="Could not connect"):
        await list_offsets(cluster, "a", {0: LATEST})
    await cluster.aclose()


async def test_nobody_at_the_bootstrap_is_told_at_once(nursery: trio.Nursery) -> None:
    broker = ToyBroker(nursery)
    broker.is_down = True
    with pytest.raises(ConnectionFailed, match="Could not connect to toy:9092"):
        await cluster_of(broker).topics()


async def test_an_unknown_topic_is_told_at_once(nursery: trio.Nursery) -> None:
    unknown = metadata_of({"a": 0}, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    broker = ToyBroker(nursery, {"Metadata": lambda _: unknown})
    cluster = cluster_of(broker)
    with pytest.raises(NoSuchTopic):
        await cluster.topic("a")
    assert broker.asked["Metadata"] == 1
    await cluster.aclose()


async def test_a_topic_that_may_be_created_is_asked_for_and_waited_for(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    may_create = []

    def answer(request: Any) -> Any:
        may_create.append(request.allow_auto_topic_creation)
        if len(may_create) < 4:
            return metadata_of({"a": 0}, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return metadata_of({"a": 3})

    broker = ToyBroker(nursery, {"Metadata": answer})
    cluster = cluster_of(broker)
    assert len((await cluster.topic("a", may_create=True)).partitions) == 3
    assert may_create == [False, True, True, True]
    await cluster.aclose()


async def test_a_partition_that_does_not_exist_is_one_line(nursery: trio.Nursery) -> None:
    broker = ToyBroker(nursery, {"Metadata": lambda _: metadata_of({"a": 2})})
    cluster = cluster_of(broker)
    with pytest.raises(UserError, match="Topic 'a' has 2 partitions; partition 2 does not exist"):
        await list_offsets(cluster, "a", {2: LATEST})
    await cluster.aclose()


async def test_an_answer_for_other_partitions_is_nonsense(nursery: trio.Nursery) -> None:
    broker = ToyBroker(
        nursery, {"Metadata": lambda _: metadata_of({"a": 1}), "ListOffsets": lambda _: messages.RESPONSE()}
    )
    cluster = cluster_of(broker)
    with pytest.raises(PeerError, match="other partitions"):
        await list_offsets(cluster, "a", {0: LATEST})
    await cluster.aclose()


async def test_a_controller_that_moved_is_found_again(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    codes = [int(ErrorCode.NOT_CONTROLLER), 0]

    def create(request: Any) -> Any:
        result = create_topics.CreatableTopicResult(
            name=request.topics[0].name, error_code=codes.pop(0), num_partitions=5, replication_factor=1
        )
        return create_topics.RESPONSE(topics=[result])

    broker = ToyBroker(nursery, {"Metadata": lambda _: metadata_of({}), "CreateTopics": create})
    cluster = cluster_of(broker)
    assert (await create_topic(cluster, "a")).partitions == 5
    assert broker.asked["CreateTopics"] == 2
    await cluster.aclose()


async def test_a_coordinator_that_is_coming_up_is_waited_for(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    finds = [int(ErrorCode.COORDINATOR_NOT_AVAILABLE), 0, 0, 0, 0]
    fetches = [int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), 0]
    commits = [int(ErrorCode.NOT_COORDINATOR), 0]

    def find(_request: Any) -> Any:
        found = find_coordinator.Coordinator(host=ADDRESS.host, port=ADDRESS.port, error_code=finds.pop(0))
        return find_coordinator.RESPONSE(coordinators=[found])

    def fetch(_request: Any) -> Any:
        known = offset_fetch.OffsetFetchResponsePartitions(partition_index=0, committed_offset=9)
        unknown = offset_fetch.OffsetFetchResponsePartitions(partition_index=1, committed_offset=-1)
        topics = [offset_fetch.OffsetFetchResponseTopics(name="a", partitions=[known, unknown])]
        group = offset_fetch.OffsetFetchResponseGroup(group_id="g", topics=topics, error_code=fetches.pop(0))
        return offset_fetch.RESPONSE(groups=[group])

    def commit(_request: Any) -> Any:
        partition = offset_commit.OffsetCommitResponsePartition(partition_index=0, error_code=commits.pop(0))
        return offset_commit.RESPONSE(
            topics=[offset_commit.OffsetCommitResponseTopic(name="a", partitions=[partition])]
        )

    broker = ToyBroker(nursery, {"FindCoordinator": find, "OffsetFetch": fetch, "OffsetCommit": commit})
    cluster = cluster_of(broker)
    assert await committed_offsets(cluster, group="g", topic="a", partitions=[0, 1]) == {0: 9}
    await commit_offsets(cluster, group="g", topic="a", offsets={0: 10})
    assert finds == fetches == commits == []
    await cluster.aclose()


DEAD = Address("dead", 9092)
OTHER = Address("other", 9092)


def cluster_with_dead_broker(broker: ToyBroker) -> Cluster:
    async def connect(address: Address, *, client_id: str) -> BrokerConnection:
        if address == DEAD:
            raise CouldNotConnect(address)
        return await broker.connect(address, client_id=client_id)

    return Cluster([ADDRESS], retry_s=RETRY_SECONDS, connect=connect)


def metadata_with(*addresses: Address, controller_id: int) -> Any:
    response = metadata_of({})
    response.controller_id = controller_id
    response.brokers = [
        metadata.MetadataResponseBroker(node_id=number, host=address.host, port=address.port)
        for number, address in enumerate(addresses, 1)
    ]
    return response


async def test_a_controller_that_has_died_is_replaced(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """The other brokers name it until its session has expired."""
    controllers = [2, 2, 2, 1]
    answer = {"Metadata": lambda _: metadata_with(ADDRESS, DEAD, controller_id=controllers.pop(0))}
    cluster = cluster_with_dead_broker(ToyBroker(nursery, answer))
    assert (await cluster.controller_connection()).address == ADDRESS
    assert controllers == []
    await cluster.aclose()


async def test_a_coordinator_that_has_died_is_replaced(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    addresses = [DEAD, DEAD, ADDRESS]

    def find(_request: Any) -> Any:
        host, port = addresses.pop(0)
        return find_coordinator.RESPONSE(coordinators=[find_coordinator.Coordinator(host=host, port=port)])

    answers = {"FindCoordinator": find, "Metadata": lambda _: metadata_with(ADDRESS, DEAD, controller_id=1)}
    cluster = cluster_with_dead_broker(ToyBroker(nursery, answers))
    assert (await cluster.coordinator_connection("g")).address == ADDRESS
    assert addresses == []
    await cluster.aclose()


async def test_every_broker_is_asked_without_one_that_has_died(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    known = [(ADDRESS, DEAD), (ADDRESS, DEAD), (ADDRESS, OTHER)]
    answer = {"Metadata": lambda _: metadata_with(*(known.pop(0) if len(known) > 1 else known[0]), controller_id=1)}
    cluster = cluster_with_dead_broker(ToyBroker(nursery, answer))

    async def address_of(node_id: int) -> Address:
        return (await cluster.broker_connection(node_id)).address

    assert await cluster.ask_each_broker(address_of) == [ADDRESS, OTHER]
    await cluster.aclose()


async def test_a_lone_broker_with_a_wrong_advertised_address_is_reported_at_once(nursery: trio.Nursery) -> None:
    broker = ToyBroker(nursery, {"Metadata": lambda _: metadata_with(DEAD, controller_id=1)})
    cluster = cluster_with_dead_broker(broker)
    with pytest.raises(ConnectionFailed, match="Could not connect to dead:9092"):
        await cluster.controller_connection()
    await cluster.aclose()
