"""A broker of a cluster loses one of its two data directories: other replicas lead within seconds, nothing is lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import trio
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster, running_cluster
from tests.cluster.stock_clients import NumberedRecords, goes_on, read_all
from tests.cluster.test_beside_kafka import KAFKA_ID, kafka_beside

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

TOPIC = "orders"


async def create(cluster: RunningCluster, *replicas: list[int]) -> None:
    """Creates a topic whose segments roll often: a roll notices that the directory is gone."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    topic = NewTopic(TOPIC, len(replicas), replica_assignment=list(replicas), config={"segment.bytes": "20000"})
    futures = admin.create_topics([topic])
    await trio.to_thread.run_sync(lambda: futures[TOPIC].result(TIMEOUT_SECONDS))


def remove_partition(directories: list[Path], index: int) -> None:
    (found,) = [path for directory in directories for path in directory.glob(f"{TOPIC}-{index}")]
    shutil.rmtree(found)


async def replace_disks(cluster: RunningCluster, broker_id: int) -> None:
    """Restarts the broker with an empty directory in place of the one that has failed."""
    (failed,) = [
        path
        for path in (cluster.directory / str(broker_id), cluster.directory / f"{broker_id}-more")
        if str(path) in cluster.brokers[broker_id].stderr and not list(path.glob(f"{TOPIC}-1"))
    ]
    assert await cluster.brokers[broker_id].terminate() == 0
    await trio.to_thread.run_sync(shutil.rmtree, failed)
    await cluster.start(broker_id, more_dirs=[cluster.directory / f"{broker_id}-more"])


def leads_all(topics: dict[str, Any], *leaders: int) -> bool:
    return [leader for leader, _isr in topics.get(TOPIC, {}).values()] == list(leaders)


@pytest.mark.parametrize("broker_id", [1, 2])
async def test_another_replica_leads_when_the_disk_of_the_leader_fails(
    zookeeper: str, tmp_path: Path, broker_id: int
) -> None:
    """Broker 1 is the controller."""
    async with running_cluster(zookeeper, tmp_path, 0) as cluster:
        for started in (1, 2, 3):
            await cluster.start(started, more_dirs=[tmp_path / f"{started}-more"])
        await cluster.until_agreed(lambda _c, brokers, _t: brokers == [1, 2, 3])
        await create(cluster, [broker_id, 3], [3, broker_id])
        await cluster.until_agreed(lambda _c, _b, topics: leads_all(topics, broker_id, 3))
        records = NumberedRecords(cluster.bootstrap, TOPIC, 2)
        with records.running():
            await goes_on(records, cluster)
            remove_partition([tmp_path / str(broker_id), tmp_path / f"{broker_id}-more"], 0)
            await cluster.until_agreed(lambda _c, _b, topics: leads_all(topics, 3, 3))
            await goes_on(records, cluster)
        assert records.failures == []
        for index in range(2):
            read = await trio.to_thread.run_sync(read_all, cluster.bootstrap, TOPIC, index)
            assert set(records.acknowledged[index]) <= set(read)
        assert "Traceback" not in cluster.log()
        assert broker_id in cluster.alive
        metadata = await cluster.metadata(3)
        assert metadata.topics[TOPIC].partitions[0].isrs == [3]
        await replace_disks(cluster, broker_id)
        await cluster.until_agreed(lambda _c, _b, topics: topics[TOPIC][0] == (3, sorted([broker_id, 3])))
        await cluster.brokers[3].kill()  # the healed replica has all records
        await cluster.until_agreed(lambda _c, brokers, topics: 3 not in brokers and leads_all(topics, *2 * [broker_id]))
        for index in range(2):
            read = await trio.to_thread.run_sync(read_all, cluster.bootstrap, TOPIC, index)
            assert set(records.acknowledged[index]) <= set(read)


async def test_an_apache_kafka_as_controller_replaces_a_leader_whose_disk_fails(
    zookeeper: str, java: str, judge39_classpath: str, tmp_path: Path
) -> None:
    async with (
        running_cluster(zookeeper, tmp_path, 0) as cluster,
        kafka_beside(cluster, judge39_classpath, java, tmp_path / "kafka"),
    ):
        await cluster.until_agreed(lambda controller, _b, _t: controller == KAFKA_ID)
        await cluster.start(1, more_dirs=[tmp_path / "1-more"])
        await cluster.until_agreed(lambda controller, brokers, _t: (controller, brokers) == (KAFKA_ID, [1, KAFKA_ID]))
        await create(cluster, [1, KAFKA_ID], [1, KAFKA_ID])
        await cluster.until_agreed(lambda _c, _b, topics: leads_all(topics, 1, 1))
        records = NumberedRecords(cluster.bootstrap, TOPIC, 2, in_flight=1)
        with records.running():
            await goes_on(records, cluster)
            remove_partition([tmp_path / "1", tmp_path / "1-more"], 0)
            await cluster.until_agreed(lambda _c, _b, topics: leads_all(topics, KAFKA_ID, 1))
            await goes_on(records, cluster)
        assert records.failures == []
        assert 1 in cluster.alive
