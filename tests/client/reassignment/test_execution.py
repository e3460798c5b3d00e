"""Running moves against a cluster in memory: pace, progress, throttle, cancellation by others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio
import trio.testing

from kbroker.client.cluster import Cluster
from kbroker.client.reassignment.execution import MoveRunner, RunProgress, elect_preferred, without_preferred_leader
from kbroker.client.reassignment.layout import PartitionMove
from kbroker.client.reassignment.requests import cancel_moves, list_moves, read_layout
from kbroker.client.reassignment.throttle import throttled
from kbroker.config.resources import ConfigOperation, ConfigResourceType
from kbroker.errors import UserError
from kbroker.names import TopicPartition
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import (
    alter_partition_reassignments,
    describe_log_dirs,
    elect_leaders,
    incremental_alter_configs,
    list_partition_reassignments,
    metadata,
)
from tests.client.toy_broker import ADDRESS, ToyBroker

SIZE = 1000
BROKERS = (1, 2, 3)


class ToyCluster:
    """Three brokers in one. A move ends when it has been listed `listings` times; None: never."""

    def __init__(self, nursery: trio.Nursery, replicas: Mapping[int, Sequence[int]]) -> None:
        self.replicas = {("orders", partition): tuple(brokers) for partition, brokers in replicas.items()}
        self.leaders = {key: brokers[0] for key, brokers in self.replicas.items()}
        self.targets: dict[TopicPartition, tuple[int, ...]] = {}
        self.listings: int | None = 2
        self.most_at_once = 0
        self.configs: dict[tuple[int, str, str], str] = {}
        self.refused: dict[TopicPartition, ErrorCode] = {}
        self._listed: dict[TopicPartition, int] = {}
        self.broker = ToyBroker(
            nursery,
            {
                "Metadata": self.metadata,
                "AlterPartitionReassignments": self.alter,
                "ListPartitionReassignments": self.list,
                "DescribeLogDirs": self.log_dirs,
                "IncrementalAlterConfigs": self.alter_configs,
                "ElectLeaders": self.elect,
            },
        )

    def metadata(self, _request: Any) -> Any:
        partitions = [
            metadata.MetadataResponsePartition(
                partition_index=partition,
                leader_id=self.leaders[topic, partition],
                replica_nodes=list(brokers),
                isr_nodes=list(brokers),
            )
            for (topic, partition), brokers in self.replicas.items()
        ]
        brokers = [
            metadata.MetadataResponseBroker(node_id=broker_id, host=f"toy{broker_id}", port=9092, rack=None)
            for broker_id in BROKERS
        ]
        topic = metadata.MetadataResponseTopic(name="orders", topic_id=bytes(16), partitions=partitions)
        return metadata.RESPONSE(brokers=brokers, cluster_id="toys", controller_id=1, topics=[topic])

    def alter(self, request: Any) -> Any:
        outcomes = []
        for topic in request.topics:
            for partition in topic.partitions:
                key = (topic.name, partition.partition_index)
                code = self.refused.get(key, ErrorCode.NONE)
                if partition.replicas is None:
                    if self.targets.pop(key, None) is None:
                        code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
                elif code is ErrorCode.NONE:
                    self.targets[key] = tuple(partition.replicas)
                    self._listed[key] = 0
                outcomes.append(
                    alter_partition_reassignments.ReassignablePartitionResponse(
                        partition_index=key[1], error_code=code, error_message=None
                    )
                )
        self.most_at_once = max(self.most_at_once, len(self.targets))
        response = alter_partition_reassignments.ReassignableTopicResponse(name="orders", partitions=outcomes)
        return alter_partition_reassignments.RESPONSE(error_message=None, responses=[response])

    def list(self, _request: Any) -> Any:
        for key, target in list(self.targets.items()):
            self._listed[key] += 1
            if self.listings is not None and self._listed[key] >= self.listings:
                self.replicas[key] = target
                if self.leaders[key] not in target:
                    self.leaders[key] = target[-1]
                del self.targets[key]
        partitions = [
            list_partition_reassignments.OngoingPartitionReassignment(
                partition_index=key[1],
                replicas=list(dict.fromkeys((*target, *self.replicas[key]))),
                adding_replicas=[broker for broker in target if broker not in self.replicas[key]],
                removing_replicas=[broker for broker in self.replicas[key] if broker not in target],
            )
            for key, target in self.targets.items()
        ]
        topics = [list_partition_reassignments.OngoingTopicReassignment(name="orders", partitions=partitions)]
        return list_partition_reassignments.RESPONSE(error_message=None, topics=topics if partitions else [])

    def log_dirs(self, request: Any) -> Any:
        """A request for single partitions asks for new replicas, which are half done."""
        is_half = request.topics is not None
        partitions = [
            describe_log_dirs.DescribeLogDirsPartition(
                partition_index=key[1],
                partition_size=SIZE // 2 if is_half and key in self.targets else SIZE,
                offset_lag=0,
            )
            for key in self.replicas
            if request.topics is None or any(key[1] in topic.partitions for topic in request.topics)
        ]
        topic = describe_log_dirs.DescribeLogDirsTopic(name="orders", partitions=partitions)
        return describe_log_dirs.RESPONSE(
            results=[describe_log_dirs.DescribeLogDirsResult(log_dir="/data", topics=[topic])]
        )

    def alter_configs(self, request: Any) -> Any:
        (resource,) = request.resources
        for config in resource.configs:
            key = (resource.resource_type, resource.resource_name, config.name)
            if config.config_operation == ConfigOperation.SET:
                self.configs[key] = config.value
            else:
                self.configs.pop(key, None)
        response = incremental_alter_configs.AlterConfigsResourceResponse(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
        )
        return incremental_alter_configs.RESPONSE(responses=[response])

    def elect(self, request: Any) -> Any:
        results = []
        for topic in request.topic_partitions:
            outcomes = []
            for partition in topic.partitions:
                preferred = self.replicas[topic.topic, partition][0]
                is_needed = self.leaders[topic.topic, partition] != preferred
                self.leaders[topic.topic, partition] = preferred
                code = ErrorCode.NONE if is_needed else ErrorCode.ELECTION_NOT_NEEDED
                outcomes.append(
                    elect_leaders.PartitionResult(partition_id=partition, error_code=code, error_message=None)
                )
            results.append(elect_leaders.ReplicaElectionResult(topic=topic.topic, partition_result=outcomes))
        return elect_leaders.RESPONSE(replica_election_results=results)

    def cluster(self) -> Cluster:
        return Cluster([ADDRESS], connect=self.broker.connect)


def move(partition: int, before: tuple[int, ...], after: tuple[int, ...]) -> PartitionMove:
    return PartitionMove("orders", partition, before, after, before[0], SIZE)


async def test_moves_run_a_few_at_a_time_to_their_end(autojump_clock: trio.testing.MockClock) -> None:
    shown: list[RunProgress] = []
    async with trio.open_nursery() as nursery:
        toy = ToyCluster(nursery, dict.fromkeys(range(6), (1,)))
        moves = [move(partition, (1,), (2,)) for partition in range(6)]
        await MoveRunner(toy.cluster(), shown.append, moves_per_broker=2).run(moves)
        nursery.cancel_scope.cancel()
    assert set(toy.replicas.values()) == {(2,)}
    assert toy.most_at_once == 2
    assert (shown[0].finished, shown[0].total, shown[0].copied_bytes, shown[0].total_bytes) == (0, 6, SIZE, 6 * SIZE)
    assert (shown[-1].finished, shown[-1].copied_bytes) == (6, 6 * SIZE)


async def test_a_move_that_another_command_cancels_is_an_error(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        toy = ToyCluster(nursery, {0: (1,)})
        toy.listings = None

        def cancel_now(_progress: RunProgress) -> None:
            toy.targets.clear()

        with pytest.raises(UserError, match=r"^The move of orders-0 was cancelled by another command\."):
            await MoveRunner(toy.cluster(), cancel_now, moves_per_broker=2).run([move(0, (1,), (2,))])
        nursery.cancel_scope.cancel()


async def test_a_partition_that_another_command_moves_is_an_error(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        toy = ToyCluster(nursery, {0: (1,)})
        toy.listings = None
        toy.targets["orders", 0] = (3,)
        toy._listed["orders", 0] = 0
        with pytest.raises(UserError, match=r"^orders-0 moves already, for another command\."):
            await MoveRunner(toy.cluster(), lambda _: None, moves_per_broker=2).run([move(0, (1,), (2,))])
        assert toy.targets == {("orders", 0): (3,)}
        nursery.cancel_scope.cancel()


async def test_a_refused_move_names_its_partition(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        toy = ToyCluster(nursery, {0: (1,)})
        toy.refused["orders", 0] = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        with pytest.raises(UserError, match=r"^orders-0: INVALID_REPLICA_ASSIGNMENT$"):
            await MoveRunner(toy.cluster(), lambda _: None, moves_per_broker=2).run([move(0, (1,), (2,))])
        nursery.cancel_scope.cancel()


async def test_moves_of_others_are_followed_to_their_end(autojump_clock: trio.testing.MockClock) -> None:
    """One of them starts after the first look."""
    async with trio.open_nursery() as nursery:
        toy = ToyCluster(nursery, {0: (1,), 1: (1,)})
        toy.listings = 4
        toy.targets["orders", 0] = (2,)
        toy._listed.update({("orders", 0): 0, ("orders", 1): 0})
        cluster = toy.cluster()
        running = await list_moves(cluster, await read_layout(cluster))
        assert running == [move(0, (1,), (2,))]

        def start_another(_progress: RunProgress) -> None:
            if ("orders", 1) not in toy.targets and toy.replicas["orders", 1] == (1,):
                toy.targets["orders", 1] = (3,)

        followed = await MoveRunner(cluster, start_another, moves_per_broker=2).follow(running)
        assert [found.partition for found in followed] == [0, 1]
        nursery.cancel_scope.cancel()
    assert toy.replicas == {("orders", 0): (2,), ("orders", 1): (3,)}


async def test_cancelled_moves_leave_the_original_replicas() -> None:
    async with trio.open_nursery() as nursery:
        toy = ToyCluster(nursery, {0: (1,), 1: (1,)})
        toy.targets["orders", 0] = (2,)
        await cancel_moves(toy.cluster(), [move(0, (1,), (2,)), move(1, (1,), (2,))])  # the second has finished
        nursery.cancel_scope.cancel()
    assert toy.targets == {}


async def test_a_throttle_names_the_replicas_that_copy_and_is_removed() -> None:
    moves = [move(0, (1, 2), (1, 3)), move(1, (2, 1), (1, 2))]
    async with trio.open_nursery() as nursery:
        toy = ToyCluster(nursery, {0: (1, 2), 1: (2, 1)})
        cluster = toy.cluster()
        await cluster.refresh([])
        async with throttled(cluster, moves, 5000):
            topic = ConfigResourceType.TOPIC
            assert toy.configs.pop((topic, "orders", "leader.replication.throttled.replicas")) == "0:1,0:2"
            assert toy.configs.pop((topic, "orders", "follower.replication.throttled.replicas")) == "0:3"
            assert toy.configs == {
                (ConfigResourceType.BROKER, str(broker_id), f"{role}.replication.throttled.rate"): "5000"
                for broker_id in BROKERS
                for role in ("leader", "follower")
            }
        assert toy.configs == {}
        nursery.cancel_scope.cancel()


async def test_a_throttle_is_removed_after_ctrl_c() -> None:
    async with trio.open_nursery() as nursery:
        toy = ToyCluster(nursery, {0: (1,)})
        cluster = toy.cluster()
        await cluster.refresh([])
        with trio.CancelScope() as interrupted:
            async with throttled(cluster, [move(0, (1,), (2,))], 5000):
                assert toy.configs
                interrupted.cancel()
                await trio.sleep_forever()
        assert interrupted.cancelled_caught
        assert toy.configs == {}
        nursery.cancel_scope.cancel()


async def test_a_throttle_that_cannot_be_removed_names_the_command_that_does() -> None:
    async with trio.open_nursery() as nursery:
        toy = ToyCluster(nursery, {0: (1,)})
        cluster = toy.cluster()
        await cluster.refresh([])

        def refuse(request: Any) -> Any:
            response = toy.alter_configs(request)
            response.responses[0].error_code = ErrorCode.POLICY_VIOLATION
            return response

        with pytest.raises(UserError, match=r"^The throttle of broker 1 could not be removed: .*kbroker configs alter"):
            async with throttled(cluster, [move(0, (1,), (2,))], 5000):
                toy.broker.answers["IncrementalAlterConfigs"] = refuse
        nursery.cancel_scope.cancel()


async def test_preferred_leaders_are_elected_where_others_lead() -> None:
    async with trio.open_nursery() as nursery:
        toy = ToyCluster(nursery, {0: (1, 2), 1: (2, 1)})
        toy.leaders["orders", 0] = 2
        cluster = toy.cluster()
        keys = without_preferred_leader((await read_layout(cluster)).partitions)
        assert keys == [("orders", 0)]
        assert await elect_preferred(cluster, keys) == 1
        assert await elect_preferred(cluster, []) == 0
        nursery.cancel_scope.cancel()
    assert toy.leaders["orders", 0] == 1
