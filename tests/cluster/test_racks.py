"""Three kbrokers in three racks: stock consumers read from the follower in their rack, and from leaders without it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.request import urlopen

import pytest
import trio
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from compat_tests.apache_kafka import JavaTools
from compat_tests.process import free_ports
from kbroker.config.broker import RACK_AWARE_SELECTOR
from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster, running_cluster
from tests.cluster.stock_clients import NumberedRecords, RackConsumer, TransactionalRecords, eventually, goes_on
from tests.cluster.test_replication import PARTITIONS, TOPIC, all_in_sync, is_without

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

VICTIM = 2
LEADERS = [1, 2, 3]
SESSION = "zookeeper.session.timeout.ms=6000"  # long for a busy machine: two of the tests expect no other leaders


def in_rack(broker_id: int) -> list[str]:
    return [f"broker.rack=rack{broker_id}", f"replica.selector.class={RACK_AWARE_SELECTOR}", SESSION]


@pytest.fixture
def metrics_ports() -> dict[int, int]:
    return dict(zip(LEADERS, free_ports(3), strict=True))


@pytest.fixture
async def racks(zookeeper: str, tmp_path: Path, metrics_ports: dict[int, int]) -> AsyncIterator[RunningCluster]:
    """Returns a cluster with a topic whose partitions are led by brokers 1, 2 and 3."""

    def settings(broker_id: int) -> list[str]:
        return [*in_rack(broker_id), f"kbroker.metrics.listeners=127.0.0.1:{metrics_ports[broker_id]}"]

    async with running_cluster(zookeeper, tmp_path, 3, settings) as cluster:
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


def metrics_of(metrics_port: int) -> list[str]:
    with urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=TIMEOUT_SECONDS) as page:
        lines: list[str] = page.read().decode().splitlines()
    return lines


def consumer_fetches(metrics_port: int) -> int:
    """Returns the number of fetches by consumers that a broker has counted."""
    lines = metrics_of(metrics_port)
    counter = 'kafka_network_requestmetrics_requests_total{request="FetchConsumer"'
    return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(counter))


async def test_the_java_consumer_asks_leaders_once_and_reads_from_its_rack(
    racks: RunningCluster, metrics_ports: dict[int, int], java: str, judge39_classpath: str, tmp_path: Path
) -> None:
    records = NumberedRecords(racks.bootstrap, TOPIC, PARTITIONS)
    with records.running():
        await goes_on(records, racks, by=300)
    sent = {value.decode() for values in records.sent for value in values}
    options = ["--from-beginning", "--max-messages", str(len(sent))]
    for setting in (f"client.rack=rack{VICTIM}", "max.partition.fetch.bytes=300"):
        options += ["--consumer-property", setting]
    tools = JavaTools(java, judge39_classpath, tmp_path)
    read = await trio.to_thread.run_sync(lambda: tools.console_consumer(racks.bootstrap, TOPIC, *options))
    assert sorted(read.split(), key=int) == sorted(sent, key=int)
    fetches = {broker_id: consumer_fetches(port) for broker_id, port in metrics_ports.items()}
    assert max(fetches[1], fetches[3]) < 5 < fetches[VICTIM], fetches  # leaders: one, and one that ends the session
    for port in metrics_ports.values():
        lines = metrics_of(port)
        assert 'kafka_server_sessionexpirelistener_sessionstate{state="CONNECTED"} 1' in lines
        times = "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms_count "
        assert any(line.startswith(times) and int(line.removeprefix(times)) > 5 for line in lines)
