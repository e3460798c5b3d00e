"""Topics are deleted and replicas moved away while a broker is down; a directory of another cluster is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.broker.child import spawn
from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster, running_cluster
from tests.cluster.stock_clients import eventually
from tests.cluster.test_beside_kafka import KAFKA_ID, kafka_beside
from tests.cluster.test_reassignment import reassign, until_moved

pytestmark = [pytest.mark.jvm, pytest.mark.slow]


async def create(cluster: RunningCluster, topic: str, replicas: list[int]) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    futures = admin.create_topics([NewTopic(topic, 1, replica_assignment=[replicas])])
    await trio.to_thread.run_sync(lambda: futures[topic].result(TIMEOUT_SECONDS))
    await cluster.until_agreed(lambda _c, _b, topics: topic in topics and topics[topic][0][1] == sorted(replicas))


async def delete(cluster: RunningCluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    futures = admin.delete_topics([topic])
    await trio.to_thread.run_sync(lambda: futures[topic].result(TIMEOUT_SECONDS))


def names(directory: Path) -> list[str]:
    """Returns the names of the partition directories, without the unique part of renamed ones."""
    parts = [path.name.split(".") for path in directory.iterdir() if path.is_dir()]
    return sorted(part[0] + (f".{part[1].rpartition('-')[2]}" if len(part) > 1 else "") for part in parts)


async def until_names(directory: Path, expected: list[str], cluster: RunningCluster) -> None:
    await eventually(lambda: names(directory) == expected, lambda: (names(directory), cluster.log()))


async def test_replicas_that_left_while_the_broker_was_down_are_renamed(three: RunningCluster, tmp_path: Path) -> None:
    for topic in ("deleted", "kept", "moved"):
        await create(three, topic, [1, 2, 3])
    await three.brokers[3].kill()
    await three.until_agreed(lambda _c, brokers, _t: brokers == [1, 2])
    await delete(three, "deleted")
    await reassign(three, {("moved", 0): [1, 2]})
    await until_moved(three, {("moved", 0): [1, 2]})
    assert names(tmp_path / "3") == ["deleted-0", "kept-0", "moved-0"]
    await three.start(3)
    await until_names(tmp_path / "3", ["deleted-0.stray", "kept-0", "moved-0.stray"], three)
    await three.until_agreed(lambda _c, _b, topics: topics["kept"][0][1] == [1, 2, 3])
    assert "Traceback" not in three.log()


async def test_apache_kafka_deletes_a_topic_when_a_kbroker_with_a_replica_is_back(
    zookeeper: str, java: str, judge39_classpath: str, tmp_path: Path
) -> None:
    async with (
        running_cluster(zookeeper, tmp_path, 0) as cluster,
        kafka_beside(cluster, judge39_classpath, java, tmp_path / "kafka"),
    ):
        await cluster.until_agreed(lambda controller, _b, _t: controller == KAFKA_ID)
        await cluster.start(1)
        await cluster.until_agreed(lambda controller, brokers, _t: (controller, brokers) == (KAFKA_ID, [1, KAFKA_ID]))
        for topic in ("deleted", "kept"):
            await create(cluster, topic, [1, KAFKA_ID])
        assert await cluster.brokers[1].terminate() == 0
        await cluster.until_agreed(lambda _c, brokers, _t: brokers == [KAFKA_ID])
        await delete(cluster, "deleted")
        await cluster.start(1)
        await until_names(tmp_path / "1", ["kept-0"], cluster)
        # The deletion is complete: a new topic of the same name can be created.
        await cluster.until_agreed(lambda _c, _b, topics: "deleted" not in topics)
        await create(cluster, "deleted", [1, KAFKA_ID])
        assert "Traceback" not in cluster.brokers[1].stderr


async def test_a_directory_of_another_cluster_is_refused_in_one_line_and_stays_as_it_is(
    zookeeper: str, tmp_path: Path
) -> None:
    """The other cluster has a topic of the same name, with another id."""
    async with (
        running_cluster(zookeeper, tmp_path / "here", 1) as here,
        running_cluster(zookeeper, tmp_path / "there", 1) as there,
    ):
        for cluster in (here, there):
            await create(cluster, "orders", [1])
            assert await cluster.brokers[1].terminate() == 0
        before = sorted(str(path) for path in (tmp_path / "here/1").rglob("*"))
        child = await spawn(tmp_path / "here/1", "--set", "broker.id=1", "--set", f"zookeeper.connect={there.connect}")
        with trio.fail_after(TIMEOUT_SECONDS):
            assert await child.process.wait() != 0
        assert "belongs to cluster.id=" in child.stderr.splitlines()[-1]
        assert "Traceback" not in child.stderr
        after = sorted(str(path) for path in (tmp_path / "here/1").rglob("*"))
        assert [path for path in after if "orders" in path] == [path for path in before if "orders" in path]
