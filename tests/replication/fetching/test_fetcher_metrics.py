"""Metrics of a follower: its lag, and the traffic from its leader."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from kbroker.clock import SystemClock
from kbroker.server.status import BrokerStatus
from kbroker.time_slice import TimeSlice
from kbroker.web.exposition import Samples
from kbroker.web.metrics_table import METRICS
from kbroker.web.replication_metrics import read_replication
from tests.log.batches import make_batch
from tests.replication.cluster import Cluster, Node, eventually

FETCHER = {"clientId": "ReplicaFetcherThread-0-1"}


async def page_of(node: Node) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    status = BrokerStatus()
    status.peers, status.fetchers = node.peers, node.fetchers
    samples = Samples(METRICS)
    await read_replication(samples, status, TimeSlice(SystemClock()))
    families = text_string_to_metric_families(samples.encode().decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


async def test_a_follower_shows_its_lag_and_what_it_fetched(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    async with cluster.client(1) as client:
        for value in (b"tea", b"milk"):
            assert (await client.produce("orders", make_batch(value), acks=-1)).error_code == 0
    size = cluster.nodes[1].replica().log.size_bytes
    (fetcher,) = cluster.nodes[2].fetchers
    await eventually(lambda: fetcher.lags() == [(cluster.nodes[2].replica(), 0)])
    seen = await page_of(cluster.nodes[2])
    of_partition = FETCHER | {"topic": "orders", "partition": "0"}
    assert seen["kafka_server_fetcherlagmetrics_consumerlag", frozenset(of_partition.items())] == 0
    assert seen["kafka_server_fetcherstats_bytes_total", frozenset(FETCHER.items())] == size
    assert seen["kafka_server_fetcherstats_requests_total", frozenset(FETCHER.items())] >= 2
    assert seen["kbroker_fetcher_fetch_ms_count", frozenset(FETCHER.items())] >= 2
    assert seen["kbroker_fetcher_fetch_ms_sum", frozenset(FETCHER.items())] > 0
    assert seen["kafka_server_replicafetchermanager_maxlag", frozenset({("clientId", "Replica")})] == 0
    leader = await page_of(cluster.nodes[1])
    assert not any(name.startswith("kafka_server_fetcher") for name, _ in leader)


async def test_the_counters_of_a_leader_survive_the_end_of_its_fetcher(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    cluster.add_topic(1, (1, 2))
    async with cluster.client(1) as client:
        assert (await client.produce("orders", make_batch(b"tea"), acks=-1)).error_code == 0
    (fetcher,) = cluster.nodes[2].fetchers
    fetched = fetcher.stats.bytes
    cluster.change(leader=2, isr=(1, 2))
    await eventually(lambda: not list(cluster.nodes[2].fetchers))
    cluster.change(leader=1, isr=(1, 2))
    await eventually(lambda: bool(list(cluster.nodes[2].fetchers)))
    (again,) = cluster.nodes[2].fetchers
    assert again is not fetcher
    assert again.stats.bytes >= fetched > 0


async def test_a_throttle_shows_its_rate_and_what_it_held_back(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    follower = frozenset({("role", "follower")})
    node = cluster.nodes[2]
    before = await page_of(node)
    assert before["kbroker_replication_throttled_bytes_total", follower] == 0
    assert before["kbroker_replication_throttled_seconds_total", follower] == 0
    assert ("kbroker_replication_throttled_rate_bytes", follower) not in before
    node.config.set_dynamic(own={"follower.replication.throttled.rate": "20000"}, defaults={})
    node.fetchers.quota.record(1_000_300)
    assert node.fetchers.quota.excess_seconds() > 0
    seen = await page_of(node)
    assert seen["kbroker_replication_throttled_bytes_total", follower] == 1_000_300
    assert seen["kbroker_replication_throttled_seconds_total", follower] > 0
    assert seen["kbroker_replication_throttled_rate_bytes", follower] == 20_000
