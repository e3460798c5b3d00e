"""/metrics, /healthz and /readyz of a whole broker while it starts, runs, fails and stops."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trio.testing

from kbroker.config.broker import BrokerConfig
from kbroker.errors import StorageFailure, UserError
from kbroker.protocol.messages import offset_commit
from kbroker.server.status import BrokerState, BrokerStatus
from kbroker.testing.running_broker import running_broker
from kbroker.web.metrics_table import METRICS
from kbroker.web.monitor import run_monitored_broker
from tests.broker.batches import make_batch
from tests.broker.wire import Client, connect
from tests.web.http_client import exchange

MONITORED = {"kbroker.metrics.listeners": "127.0.0.1:0", "offsets.topic.num.partitions": "2"}
SAMPLE = re.compile(r'([a-z0-9_]+)(\{(?:[a-zA-Z_]+="(?:[^"\\\n]|\\.)*",?)+\})? (-?[0-9.]+(?:e[+-]?\d+)?)')

Port = Callable[[], int]


@pytest.fixture
def port(caplog: pytest.LogCaptureFixture) -> Port:
    """Returns the port of the HTTP endpoints from the last log line with it."""
    caplog.set_level("INFO", logger="kbroker")

    def find() -> int:
        addresses = [vars(record)["monitor"][0] for record in caplog.records if "monitor" in vars(record)]
        return int(addresses[-1].rpartition(":")[2])

    return find


async def get(port: int, path: str) -> tuple[int, str]:
    answer = await exchange(port, f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body.decode()


async def samples(port: int) -> dict[str, float]:
    status, page = await get(port, "/metrics")
    assert status == 200
    found = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            found[match[1] + (match[2] or "")] = float(match[3])
    return found


async def test_client_traffic_shows_in_metrics(tmp_path: Path, port: Port) -> None:
    async with running_broker(tmp_path, MONITORED) as broker, connect(broker.port) as client:
        await client.create_topic("orders", 2)
        await client.produce("orders", make_batch(b"tea", b"milk"), partition=1)
        await client.read_all("orders", partition=1)
        seen = await samples(port())
    assert seen['kafka_server_brokertopicmetrics_messagesin_total{topic="orders"}'] == 2
    assert seen["kafka_server_brokertopicmetrics_messagesin_total"] == 2
    size = seen['kafka_log_log_size{topic="orders",partition="1"}']
    assert size > 61
    assert seen['kafka_server_brokertopicmetrics_bytesin_total{topic="orders"}'] == size
    assert seen['kafka_server_brokertopicmetrics_bytesout_total{topic="orders"}'] == size
    assert seen['kafka_log_log_logendoffset{topic="orders",partition="1"}'] == 2
    assert seen['kafka_log_log_logstartoffset{topic="orders",partition="0"}'] == 0
    assert sum(value for name, value in seen.items() if 'request="Produce"' in name) == 1
    assert seen['kafka_server_socketservermetrics_connection_count{listener="PLAINTEXT"}'] == 1
    assert seen["kafka_server_replicamanager_partitioncount"] == seen["kafka_server_replicamanager_leadercount"] == 2
    assert seen["kafka_controller_kafkacontroller_activecontrollercount"] == 1
    assert seen["kafka_server_kafkaserver_brokerstate"] == BrokerState.RUNNING
    assert seen["kbroker_bugs_total"] == 0
    assert seen["process_resident_memory_bytes"] > 1_000_000


async def test_every_metric_of_the_table_shows(tmp_path: Path, port: Port) -> None:
    async with running_broker(tmp_path, MONITORED) as broker, connect(broker.port) as client:
        await client.create_topic("orders")
        await client.ask("FindCoordinator", 3, key="billing")
        await commit(client, "billing", "orders")
        seen = {name.partition("{")[0] for name in await samples(port())}
    assert {metric.name for metric in METRICS} - seen == {"kbroker_log_unparsable_batches"}


async def commit(client: Client, group: str, topic: str) -> None:
    partition = offset_commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    topics = [offset_commit.OffsetCommitRequestTopic(name=topic, partitions=[partition])]
    answer = await client.ask("OffsetCommit", 8, group_id=group, topics=topics)
    assert answer.topics[0].partitions[0].error_code == 0


async def test_a_fetch_that_waits_counts_its_bytes_once(tmp_path: Path, port: Port) -> None:
    async with running_broker(tmp_path, MONITORED) as broker, connect(broker.port) as client:
        await client.create_topic("orders")
        await client.produce("orders", make_batch(b"tea"))
        size = (await samples(port()))['kafka_log_log_size{topic="orders",partition="0"}']
        answer = await client.fetch("orders", 0, min_bytes=1_000_000, max_wait_ms=1)
        assert len(answer.records) == size
        assert (await samples(port()))['kafka_server_brokertopicmetrics_bytesout_total{topic="orders"}'] == size


async def test_an_unloaded_log_shows_in_metrics_and_stays_unloaded(tmp_path: Path, port: Port) -> None:
    async with running_broker(tmp_path, MONITORED) as broker, connect(broker.port) as client:
        await client.create_topic("orders")
        await client.produce("orders", make_batch(b"tea"))
        before = await samples(port())
    async with running_broker(tmp_path, MONITORED) as broker:
        after = await samples(port())
        (partition,) = broker._running().partitions
        assert partition.log_handle.opened is None
    of_log = [name for name in before if name.startswith("kafka_log_log_")]
    assert len(of_log) == 4
    assert [after[name] for name in of_log] == [before[name] for name in of_log]
    assert after["kafka_server_brokertopicmetrics_messagesin_total"] == 1


async def test_the_sum_over_topics_does_not_fall_when_one_is_deleted(tmp_path: Path, port: Port) -> None:
    total = "kafka_server_brokertopicmetrics_messagesin_total"
    async with running_broker(tmp_path, MONITORED) as broker, connect(broker.port) as client:
        await client.create_topic("orders")
        await client.produce("orders", make_batch(b"tea", b"milk"))
        assert (await samples(port()))[total] == 2
        await client.delete_topic("orders")
        await client.create_topic("orders")
        await client.produce("orders", make_batch(b"tea"))
        seen = await samples(port())
    assert seen[total] == 3
    assert seen[f'{total}{{topic="orders"}}'] == 1


async def test_it_is_healthy_and_ready_while_it_runs(tmp_path: Path, port: Port) -> None:
    async with running_broker(tmp_path, MONITORED):
        assert await get(port(), "/healthz") == (200, "ok\n")
        assert await get(port(), "/readyz") == (200, "ready\n")


async def test_it_is_not_ready_when_every_directory_is_offline(tmp_path: Path, port: Port) -> None:
    async with running_broker(tmp_path, MONITORED) as broker:
        (gate,) = broker._running().log_dirs.gates.values()
        gate.close(StorageFailure("EIO"))
        assert await get(port(), "/readyz") == (503, "not ready: every data directory is offline\n")
        assert await get(port(), "/healthz") == (200, "ok\n")
        seen = await samples(port())
    assert seen["kafka_log_logmanager_offlinelogdirectorycount"] == 1
    assert seen[f'kbroker_log_directory_writable{{logDirectory="{tmp_path}"}}'] == 0


async def test_it_is_not_ready_while_pending_requests_complete(tmp_path: Path, port: Port) -> None:
    async with running_broker(tmp_path, MONITORED) as broker, connect(broker.port) as client:
        await client.create_topic("orders")
        with broker.faults.delay("Metadata", seconds=60) as fault:
            await client.send("Metadata", 12, topics=None)
            while not fault.hits:
                await trio.lowlevel.checkpoint()
            broker._asked_to_stop.set()
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert await get(port(), "/readyz") == (503, "not ready: stopping\n")
            assert (await samples(port()))["kafka_server_kafkaserver_brokerstate"] == BrokerState.SHUTTING_DOWN


@pytest.mark.parametrize("state", [state for state in BrokerState if state is not BrokerState.RUNNING])
def test_no_other_state_is_ready(state: BrokerState) -> None:
    status = BrokerStatus()
    status.state = state
    assert status.why_not_ready() is not None


@pytest.mark.parametrize("text", ["9308", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536"])
async def test_an_invalid_address_is_refused(tmp_path: Path, text: str) -> None:
    config = BrokerConfig.from_properties({"kbroker.metrics.listeners": text})
    with pytest.raises(UserError, match="expected HOST:PORT"):
        await run_monitored_broker(config, data_dir=str(tmp_path), stop=trio.Event())
    assert os.listdir(tmp_path) == []
