"""Three kbrokers move partitions between them while stock clients write and read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka import Producer
from kafka.admin import KafkaAdminClient
from kafka.structs import TopicPartition

from compat_tests.apache_kafka import JavaTools
from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster, all_brokers_live
from tests.cluster.stock_clients import Group, NumberedRecords, committed, eventually, goes_on, read_all

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

TOPIC = "orders"
Moves = Mapping[tuple[str, int], Sequence[int] | None]


def python_admin(cluster: RunningCluster) -> Any:
    return KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))


async def create(cluster: RunningCluster, replicas: Sequence[Sequence[int]]) -> None:
    def create_topic() -> None:
        with_admin = python_admin(cluster)
        try:
            assignments = {index: list(brokers) for index, brokers in enumerate(replicas)}
            with_admin.create_topics({TOPIC: {"assignments": assignments}})
        finally:
            with_admin.close()

    await trio.to_thread.run_sync(create_topic)


async def reassign(cluster: RunningCluster, moves: Moves) -> dict[tuple[str, int], Any]:
    def alter() -> dict[tuple[str, int], Any]:
        admin = python_admin(cluster)
        try:
            wanted = {
                TopicPartition(*key): None if brokers is None else list(brokers) for key, brokers in moves.items()
            }
            outcomes = admin.alter_partition_reassignments(wanted)
        finally:
            admin.close()
        return {tuple(partition): error for partition, error in outcomes.items()}

    return await trio.to_thread.run_sync(alter)


async def until_moved(cluster: RunningCluster, moves: Moves) -> None:
    """Waits until every live broker knows these replicas, and all are in sync."""
    found: Any = None
    with trio.move_on_after(TIMEOUT_SECONDS):
        while True:
            found = {}
            for broker_id in cluster.alive:
                topics = (await cluster.metadata(broker_id)).topics
                for name, index in moves:
                    partition = topics[name].partitions[index]
                    found[broker_id, name, index] = (list(partition.replicas), sorted(partition.isrs))
            if all(
                found[broker_id, *key] == (list(brokers or ()), sorted(brokers or ()))
                for broker_id in cluster.alive
                for key, brokers in moves.items()
            ):
                return
    pytest.fail(f"not moved to {moves}: {found}\n{cluster.log()}")


def directories(cluster: RunningCluster, topic: str) -> dict[int, list[str]]:
    return {
        broker_id: sorted(path.name for path in (cluster.directory / str(broker_id)).glob(f"{topic}-[0-9]"))
        for broker_id in cluster.brokers
    }


@all_brokers_live
async def test_partitions_move_grow_and_shrink_under_load(three: RunningCluster) -> None:
    await three.until_agreed(lambda _c, brokers, _t: brokers == [1, 2, 3])
    await create(three, [[1], [2]])
    records = NumberedRecords(three.bootstrap, TOPIC, 2)
    group = Group(three.bootstrap, TOPIC, "readers")
    offsets = [("__consumer_offsets", index) for index in range(3)]
    with group.running():
        with records.running():
            await eventually(lambda: bool(group.read), three.log)
            steps: list[dict[tuple[str, int], list[int]]] = [
                {(TOPIC, 0): [3], (TOPIC, 1): [3, 1], **{key: [2] for key in offsets}},
                {(TOPIC, 0): [1, 2, 3], (TOPIC, 1): [2], **{key: [3, 1] for key in offsets}},
                {(TOPIC, 0): [2], (TOPIC, 1): [3, 2, 1], **{key: [1, 2, 3] for key in offsets}},
            ]
            for moves in steps:
                assert set((await reassign(three, moves)).values()) == {None}
                await until_moved(three, moves)
                await goes_on(records, three)
        sent = {value for values in records.sent for value in values}
        await eventually(lambda: group.read == sent, lambda: (len(sent), len(group.read), three.log()))
    assert records.failures == []
    assert records.acknowledged == records.sent

    def check() -> None:
        assert [read_all(three.bootstrap, TOPIC, index) for index in range(2)] == records.sent
        assert committed(three.bootstrap, TOPIC, 2, "readers") == [len(values) for values in records.sent]

    await trio.to_thread.run_sync(check)
    assert directories(three, TOPIC) == {1: ["orders-1"], 2: ["orders-0", "orders-1"], 3: ["orders-1"]}
    assert "Traceback" not in three.log()


TOOL = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
MB = 1 << 20


def write_megabytes(cluster: RunningCluster, count: int) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0, "linger.ms": 0})
    for _ in range(2 * count):
        producer.produce(TOPIC, bytes(MB // 2), partition=0)
        producer.poll(0)
    assert producer.flush(TIMEOUT_SECONDS) == 0


class Tools:
    """Kafka's reassignment tool, of 3.9 and 4.1, with a plan for partition 0."""

    def __init__(self, cluster: RunningCluster, java: str, classpaths: Mapping[str, str], directory: Path) -> None:
        self._cluster = cluster
        self._tools = {release: JavaTools(java, classpath, directory) for release, classpath in classpaths.items()}
        self._plan = directory / "plan.json"

    def write_plan(self, replicas: Sequence[int]) -> None:
        partition = {"topic": TOPIC, "partition": 0, "replicas": replicas}
        self._plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))

    async def __call__(self, release: str, *arguments: str) -> str:
        plan = () if "--list" in arguments else ("--reassignment-json-file", str(self._plan))
        command = (TOOL, "--bootstrap-server", self._cluster.bootstrap, *plan, *arguments)
        return await trio.to_thread.run_sync(lambda: self._tools[release].run(*command))


async def test_kafkas_tools_start_watch_cancel_and_finish_a_throttled_move(
    three: RunningCluster, java: str, judge_classpath: str, judge39_classpath: str, tmp_path: Path
) -> None:
    """At 1 byte/s the move lasts until it is cancelled: one fetch of 1 MB in 11 seconds, of 30 MB."""
    await three.until_agreed(lambda _c, brokers, _t: brokers == [1, 2, 3])
    await create(three, [[1, 2]])
    await trio.to_thread.run_sync(write_megabytes, three, 30)
    tools = Tools(three, java, {"3.9": judge39_classpath, "4.1": judge_classpath}, tmp_path)
    tools.write_plan([3, 1])
    said = await tools("4.1", "--execute", "--throttle", "1")
    assert "Successfully started partition reassignment for orders-0" in said

    controller, _brokers, _topics = await three.until_agreed(lambda controller, _b, _t: controller > 0)
    await three.brokers[controller].kill()
    await three.until_agreed(lambda now, _b, _t: now not in (-1, controller))
    await three.start(controller)
    await three.until_agreed(lambda _c, brokers, _t: brokers == [1, 2, 3])

    assert "orders-0: replicas: 3,1,2. adding: 3. removing: 2." in await tools("3.9", "--list")
    said = await tools("4.1", "--cancel")
    assert "Successfully cancelled partition reassignment for: orders-0" in said
    await until_moved(three, {(TOPIC, 0): [1, 2]})

    assert "Successfully started" in await tools("3.9", "--execute", "--throttle", str(100 * MB))
    await until_moved(three, {(TOPIC, 0): [3, 1]})
    said = await tools("4.1", "--verify")
    assert "Reassignment of partition orders-0 is completed." in said
    assert "Clearing topic-level throttles on topic orders" in said
    assert directories(three, TOPIC) == {1: ["orders-0"], 2: [], 3: ["orders-0"]}
    assert "Traceback" not in three.log()
