"""Three kbrokers in three racks: stock consumers read from the follower in their rack, and from leaders without it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from kbroker.config.broker import RACK_AWARE_SELECTOR
from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster, running_cluster
from tests.cluster.stock_clients import NumberedRecords, RackConsumer, TransactionalRecords, eventually, goes_on
from tests.cluster.test_replication import PARTITIONS, TOPIC, all_in_sync, is_without

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

VICTIM = 2
LEADERS = [1, 2, 3]


def in_rack(broker_id: int) -> list[str]:
    return [f"broker.rack=rack{broker_id}", f"replica.selector.class={RACK_AWARE_SELECTOR}"]


@pytest.fixture
async def racks(zookeeper: str, tmp_path: Path) -> AsyncIterator[RunningCluster]:
    """Returns a cluster with a topic whose partitions are led by brokers 1, 2 and 3."""
    async with running_cluster(zookeeper, tmp_path, 3, in_rack) as cluster:
        await cluster.until_agreed(lambda _c, brokers, _t: brokers == LEADERS)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        assignment = [[1, 2, 3], [2, 3, 1], [3, 1, 2]]
        new = NewTopic(TOPIC, PARTITIONS, replica_assignment=assignment, config={"min.insync.replicas": "2"})
        futures = admin.create_topics([new])
        await trio.to_thread.run_sync(lambda: futures[TOPIC].result(TIMEOUT_SECONDS))
        await all_in_sync(cluster)
        yield cluster


async def reads_from(consumer: RackConsumer, cluster: RunningCluster, *brokers: int) -> None:
    """Waits until every partition is fetched from one of these brokers."""
    await eventually(
        lambda: bool(consumer.brokers) and set(consumer.brokers) <= set(brokers),
        lambda: (consumer.brokers, consumer.failures, cluster.log()),
    )


async def test_a_consumer_reads_everything_once_from_its_rack_and_from_the_leaders_without_it(
    racks: RunningCluster,
) -> None:
    records = NumberedRecords(racks.bootstrap, TOPIC, PARTITIONS)
    consumer = RackConsumer(racks.bootstrap, TOPIC, PARTITIONS, f"rack{VICTIM}")
    elsewhere = RackConsumer(racks.bootstrap, TOPIC, PARTITIONS, "rack9")
    with consumer.running(), elsewhere.running():
        with records.running():
            await goes_on(records, racks)
            await reads_from(consumer, racks, VICTIM)
            await eventually(lambda: elsewhere.brokers == LEADERS, lambda: elsewhere.brokers)
            await racks.brokers[VICTIM].kill()
            await is_without(racks, VICTIM)
            await goes_on(records, racks)
            await reads_from(consumer, racks, 1, 3)
            await racks.start(VICTIM, *in_rack(VICTIM))
            await all_in_sync(racks)
            await reads_from(consumer, racks, VICTIM)
            await goes_on(records, racks)
        for reader in (consumer, elsewhere):
            counts = [len(values) for values in records.sent]
            await eventually(
                lambda: [len(values) for values in reader.read] == counts,  # noqa: B023
                lambda: ([len(values) for values in reader.read], counts, reader.failures, racks.log()),  # noqa: B023
            )
    assert records.failures == []
    assert records.acknowledged == records.sent
    assert consumer.read == elsewhere.read == records.sent
    assert "Traceback" not in racks.log()


async def test_a_reader_of_committed_records_reads_them_from_its_rack(racks: RunningCluster) -> None:
    records = TransactionalRecords(racks.bootstrap, TOPIC, PARTITIONS)
    consumer = RackConsumer(racks.bootstrap, TOPIC, PARTITIONS, f"rack{VICTIM}", isolation_level="read_committed")
    with consumer.running():
        with records.running():
            await eventually(lambda: len(records.aborted) > 5, lambda: (records.errors, racks.log()))
            await reads_from(consumer, racks, VICTIM)
            enough = len(records.aborted) + 10
            await eventually(lambda: len(records.aborted) > enough, lambda: (records.errors, racks.log()))
        await eventually(
            lambda: consumer.read == [records.committed] * PARTITIONS,
            lambda: ([len(values) for values in consumer.read], len(records.committed), racks.log()),
        )
    assert set(consumer.brokers) == {VICTIM}
    assert (records.errors, records.unknown, consumer.failures) == ([], [], [])
