"""Partitions move between a kbroker and an Apache Kafka 3.9, with either as controller."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from tests.cluster.conftest import running_cluster
from tests.cluster.stock_clients import NumberedRecords, eventually, goes_on, read_all
from tests.cluster.test_beside_kafka import KAFKA_ID, kafka_beside, replicas
from tests.cluster.test_reassignment import TOPIC, create, reassign, until_moved

pytestmark = [pytest.mark.jvm, pytest.mark.slow]


async def test_partitions_move_between_kbroker_and_kafka(
    zookeeper: str, java: str, judge39_classpath: str, tmp_path: Path
) -> None:
    async with (
        running_cluster(zookeeper, tmp_path, 1) as cluster,
        kafka_beside(cluster, judge39_classpath, java, tmp_path / "kafka"),
    ):
        await cluster.until_agreed(lambda controller, brokers, _t: controller == 1 and brokers == [1, KAFKA_ID])
        await create(cluster, [[1], [KAFKA_ID]])
        records = NumberedRecords(cluster.bootstrap, TOPIC, 2, in_flight=1)

        async def move_both_ways() -> None:
            for first, second in ((KAFKA_ID, 1), (1, KAFKA_ID)):
                moves = {(TOPIC, 0): [first], (TOPIC, 1): [second]}
                assert set((await reassign(cluster, moves)).values()) == {None}
                await until_moved(cluster, moves)
                await goes_on(records, cluster)
                here, there = (["orders-0"], ["orders-1"]) if first == 1 else (["orders-1"], ["orders-0"])
                await eventually(
                    lambda h=here, t=there: (  # type: ignore[misc]
                        replicas(tmp_path / "1", TOPIC) == h and replicas(tmp_path / "kafka/data", TOPIC) == t
                    ),
                    lambda: (replicas(tmp_path / "1", TOPIC), replicas(tmp_path / "kafka/data", TOPIC), cluster.log()),
                )

        with records.running():
            await goes_on(records, cluster)
            await move_both_ways()
            both = {(TOPIC, 0): [1, KAFKA_ID], (TOPIC, 1): [KAFKA_ID, 1]}
            await reassign(cluster, both)
            await until_moved(cluster, both)
            assert await cluster.brokers[1].terminate() == 0
            await cluster.until_agreed(lambda controller, brokers, _t: controller == KAFKA_ID and brokers == [KAFKA_ID])
            await cluster.start(1)
            await until_moved(cluster, both)
            await move_both_ways()
        assert records.failures == []
        assert records.acknowledged == records.sent
        found = await trio.to_thread.run_sync(lambda: [read_all(cluster.bootstrap, TOPIC, index) for index in range(2)])
        assert found == records.sent
        assert "Traceback" not in cluster.brokers[1].stderr
