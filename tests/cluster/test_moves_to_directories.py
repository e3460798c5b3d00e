"""Kafka's tool moves replicas to directories of other brokers, and of their own broker, in one plan under load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from compat_tests.apache_kafka import JavaTools
from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster, running_cluster
from tests.cluster.stock_clients import NumberedRecords, goes_on, read_all
from tests.cluster.test_reassignment import TOOL, TOPIC, create

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

PARTITIONS = 3


def directory(cluster: RunningCluster, name: str) -> Path:
    return cluster.directory / name


def where(cluster: RunningCluster, index: int) -> set[str]:
    """Returns the names of the data directories that hold a replica of the partition."""
    found = cluster.directory.glob(f"*/{TOPIC}-{index}")
    return {path.parent.name for path in found}


async def test_replicas_move_between_directories_and_brokers_at_once(
    zookeeper: str, java: str, judge_classpath: str, tmp_path: Path
) -> None:
    async with running_cluster(zookeeper, tmp_path / "brokers", 0) as cluster:
        for broker_id in (1, 2):
            await cluster.start(broker_id, more_dirs=[directory(cluster, f"{broker_id}-more")])
        await cluster.until_agreed(lambda _c, brokers, _t: brokers == [1, 2])
        await create(cluster, [[1]] * PARTITIONS)
        await cluster.until_agreed(lambda _c, _b, topics: len(topics.get(TOPIC, ())) == PARTITIONS)
        (here,) = where(cluster, 1)
        there = "1" if here == "1-more" else "1-more"
        # To a directory of another broker; to another directory of the same broker; to both, with two replicas.
        moves = {0: {2: "2-more"}, 1: {1: there}, 2: {2: "2", 1: there}}
        partitions = [
            {
                "topic": TOPIC,
                "partition": index,
                "replicas": list(targets),
                "log_dirs": [str(directory(cluster, name)) for name in targets.values()],
            }
            for index, targets in moves.items()
        ]
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
        tools = JavaTools(java, judge_classpath, tmp_path)
        arguments = (TOOL, "--bootstrap-server", cluster.bootstrap, "--reassignment-json-file", str(plan))
        records = NumberedRecords(cluster.bootstrap, TOPIC, PARTITIONS)
        with records.running():
            await goes_on(records, cluster)
            said = await trio.to_thread.run_sync(lambda: tools.run(*arguments, "--execute"))
            assert "Successfully started partition reassignments" in said
            wanted = {index: set(targets.values()) for index, targets in moves.items()}
            with trio.fail_after(TIMEOUT_SECONDS):
                while {index: where(cluster, index) for index in moves} != wanted:  # noqa: ASYNC110
                    await trio.sleep(0.1)
            await goes_on(records, cluster)
        said = await trio.to_thread.run_sync(lambda: tools.run(*arguments, "--verify"))
        assert "is still in progress" not in said, said
        assert records.failures == []
        for index in range(PARTITIONS):
            read = await trio.to_thread.run_sync(read_all, cluster.bootstrap, TOPIC, index)
            assert read == records.acknowledged[index] == records.sent[index]
        assert "Traceback" not in cluster.log()
