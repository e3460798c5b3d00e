"""ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments on one broker: errors as in Apache Kafka."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kbroker.controller.changes import TopicAdded
from kbroker.controller.image import PartitionState, TopicImage
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_partition_reassignments, elect_leaders, list_partition_reassignments
from tests.server.handlers.harness import HandlerBroker

ELECT_LEADERS, ALTER_REASSIGNMENTS, LIST_REASSIGNMENTS = 43, 45, 46
PREFERRED, UNCLEAN = 0, 1


@pytest.fixture
async def stocked(broker: HandlerBroker) -> HandlerBroker:
    """Returns a broker with three topics: `orders` has its preferred leader, `moved` another one, `lost` none."""
    await broker.create_topic("orders", 2)
    moved = PartitionState(1, 4, (1,), (2, 1), 0, adding_replicas=(1,), removing_replicas=(2,))
    lost = PartitionState(-1, 4, (2,), (2,), 0)
    foreign = [TopicAdded(TopicImage("moved", b"m" * 16, (moved,))), TopicAdded(TopicImage("lost", b"l" * 16, (lost,)))]
    broker.controller.store.commit(foreign)
    return broker


async def elect(
    broker: HandlerBroker, election_type: int = PREFERRED, version: int = 2, **topics: list[int]
) -> dict[tuple[str, int], int]:
    asked = [elect_leaders.TopicPartitions(topic=name, partitions=indexes) for name, indexes in topics.items()]
    response = await broker.ask(
        ELECT_LEADERS, version, election_type=election_type, topic_partitions=asked or None, timeout_ms=1000
    )
    assert response.error_code == 0
    return {
        (topic.topic, result.partition_id): result.error_code
        for topic in response.replica_election_results
        for result in topic.partition_result
    }


@pytest.mark.parametrize("version", range(3))
async def test_an_election_is_not_needed_where_the_preferred_replica_leads(
    stocked: HandlerBroker, version: int
) -> None:
    assert await elect(stocked, version=version, orders=[0, 1]) == {
        ("orders", 0): ErrorCode.ELECTION_NOT_NEEDED,
        ("orders", 1): ErrorCode.ELECTION_NOT_NEEDED,
    }


async def test_an_offline_replica_cannot_be_elected(stocked: HandlerBroker) -> None:
    assert await elect(stocked, moved=[0], nowhere=[0], orders=[7]) == {
        ("moved", 0): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("orders", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert await elect(stocked, UNCLEAN, moved=[0], lost=[0]) == {
        ("moved", 0): ErrorCode.ELECTION_NOT_NEEDED,
        ("lost", 0): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    }


async def test_an_election_for_all_partitions_reports_only_failures(stocked: HandlerBroker) -> None:
    assert await elect(stocked) == {("moved", 0): 80, ("lost", 0): 80}
    assert await elect(stocked, UNCLEAN) == {("lost", 0): 83}


async def test_an_unknown_or_unauthorized_election_is_refused(stocked: HandlerBroker) -> None:
    asked = [elect_leaders.TopicPartitions(topic="orders", partitions=[0])]
    answer = await stocked.ask(ELECT_LEADERS, 2, election_type=5, topic_partitions=asked)
    (topic,) = answer.replica_election_results
    assert (answer.error_code, topic.partition_result[0].error_code) == (42, 42)
    stocked.allow()
    answer = await stocked.ask(ELECT_LEADERS, 2, topic_partitions=asked)
    assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def reassign(broker: HandlerBroker, name: str, index: int, replicas: Sequence[int] | None, version: int) -> int:
    partition = alter_partition_reassignments.ReassignablePartition(partition_index=index, replicas=replicas)
    topic = alter_partition_reassignments.ReassignableTopic(name=name, partitions=[partition])
    response = await broker.ask(ALTER_REASSIGNMENTS, version, topics=[topic])
    assert response.error_code == 0
    code: int = response.responses[0].partitions[0].error_code
    return code


@pytest.mark.parametrize("version", range(2))
@pytest.mark.parametrize(
    ("name", "index", "replicas", "code"),
    [
        ("orders", 0, [1], ErrorCode.NONE),
        ("orders", 0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ("orders", 0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 0, [1, 2], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 0, [1, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 0, [-1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("moved", 0, [3], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("orders", 7, [1], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nowhere", 0, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_reassignments_to_unknown_brokers_are_refused(
    stocked: HandlerBroker, version: int, name: str, index: int, replicas: list[int] | None, code: ErrorCode
) -> None:
    assert await reassign(stocked, name, index, replicas, version) == code


async def test_ongoing_reassignments_are_listed(stocked: HandlerBroker) -> None:
    for asked in (
        None,
        [
            list_partition_reassignments.ListPartitionReassignmentsTopics(name="moved", partition_indexes=[0, 5]),
            list_partition_reassignments.ListPartitionReassignmentsTopics(name="orders", partition_indexes=[0]),
            list_partition_reassignments.ListPartitionReassignmentsTopics(name="nowhere", partition_indexes=[0]),
        ],
    ):
        answer = await stocked.ask(LIST_REASSIGNMENTS, 0, topics=asked)
        (topic,) = answer.topics
        (partition,) = topic.partitions
        assert (topic.name, partition.partition_index, list(partition.replicas)) == ("moved", 0, [2, 1])
        assert (list(partition.adding_replicas), list(partition.removing_replicas)) == ([1], [2])


async def test_a_permission_is_required(stocked: HandlerBroker) -> None:
    stocked.allow()
    for key, version in ((ALTER_REASSIGNMENTS, 1), (LIST_REASSIGNMENTS, 0)):
        assert (await stocked.ask(key, version)).error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
