"""/metrics, /healthz and /readyz of a whole broker while it starts, runs, fails and stops."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.lowlevel
import trio.testing
from prometheus_client.parser import text_string_to_metric_families

from kbroker.config.broker import BrokerConfig
from kbroker.controller.changes import PartitionsChanged, apply
from kbroker.errors import StorageFailure, UserError
from kbroker.protocol.messages import alter_client_quotas, offset_commit
from kbroker.server.status import BrokerState, BrokerStatus
from kbroker.testing.running_broker import running_broker
from kbroker.web.metrics_table import METRICS
from kbroker.web.monitor import run_monitored_broker
from tests.broker.batches import make_batch
from tests.broker.wire import Client, connect
from tests.web.http_client import exchange

MONITORED = {"kbroker.metrics.listeners": "127.0.0.1:0", "offsets.topic.num.partitions": "2"}

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
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        assert family.type in ("counter", "gauge", "histogram"), family
        assert family.documentation, family
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            key = f"{sample.name}{{{labels}}}" if labels else sample.name
            assert key not in found
            found[key] = sample.value
    assert len(found) == sum(not line.startswith("#") for line in page.splitlines())
    return found


def of_request(name: str, request: str, **labels: str) -> str:
    shown = "".join(f',{label}="{value}"' for label, value in labels.items())
    return f'kafka_network_requestmetrics_{name}{{request="{request}"{shown}}}'


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
    assert seen[of_request("requests_total", "Produce", version="9")] == 1
    assert seen["kafka_server_brokertopicmetrics_totalproducerequests_total"] == 1
    assert seen['kafka_server_socketservermetrics_connection_count{listener="PLAINTEXT"}'] == 1
    assert seen["kafka_server_replicamanager_partitioncount"] == seen["kafka_server_replicamanager_leadercount"] == 2
    assert seen["kafka_controller_kafkacontroller_activecontrollercount"] == 1
    assert seen["kafka_server_kafkaserver_brokerstate"] == BrokerState.RUNNING
    assert seen["kbroker_bugs_total"] == 0
    assert seen["process_resident_memory_bytes"] > 1_000_000


OF_ZOOKEEPER = {
    "kafka_server_sessionexpirelistener_sessionstate",
    "kafka_server_sessionexpirelistener_zookeeperdisconnects_total",
    "kafka_server_sessionexpirelistener_zookeeperexpires_total",
    "kafka_server_sessionexpirelistener_zookeepersyncconnects_total",
    "kafka_server_zookeeperclientmetrics_zookeeperrequestlatencyms",
}
OF_SECURED_LISTENERS = {
    "kafka_server_socketservermetrics_expired_connections_killed_total",
    "kafka_server_socketservermetrics_failed_authentication_total",
    "kafka_server_socketservermetrics_successful_authentication_total",
    "kafka_server_socketservermetrics_successful_reauthentication_total",
    "kbroker_tls_certificate_not_after_seconds",
    "kbroker_tls_failed_handshakes_total",
    "kbroker_tls_handshakes_total",
}


async def test_logins_show_for_listeners_with_sasl(tmp_path: Path, port: Port) -> None:
    jaas = "org.apache.kafka.common.security.plain.PlainLoginModule required user_alice=pa55word;"
    properties = {
        **MONITORED,
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
        "connection.failed.authentication.delay.ms": "0",
    }
    async with running_broker(tmp_path, properties) as broker:
        for password in (b"pa55word", b"wrong", b"wrong"):
            async with connect(broker.port) as client:
                await client.ask("SaslHandshake", 1, mechanism="PLAIN")
                await client.ask("SaslAuthenticate", 1, auth_bytes=b"\0alice\0" + password)
        seen = await samples(port())
    name = 'kafka_server_socketservermetrics_{}_authentication_total{{listener="SASL_PLAINTEXT"}}'
    assert (seen[name.format("successful")], seen[name.format("failed")]) == (1, 2)
    assert not any("pa55word" in name for name in seen)


async def test_every_metric_of_the_table_shows(tmp_path: Path, port: Port) -> None:
    async with running_broker(tmp_path, MONITORED) as broker, connect(broker.port) as client:
        await client.create_topic("orders")
        await client.ask("FindCoordinator", 3, key="billing")
        await commit(client, "billing", "orders")
        seen = {name.partition("{")[0] for name in await samples(port())}
    shown = {metric.name for metric in METRICS if {metric.name, f"{metric.name}_bucket"} & seen}
    assert {metric.name for metric in METRICS} - shown == {
        "kbroker_log_unparsable_batches",
        # Quotas, errors and the partitions of a follower appear when there are any.
        "kafka_network_requestmetrics_errors_total",
        "kafka_network_requestmetrics_throttletimems",
        "kafka_server_fetcherlagmetrics_consumerlag",
        "kafka_server_fetcherstats_bytes_total",
        "kafka_server_fetcherstats_requests_total",
        "kbroker_fetcher_fetch_ms",
        "kbroker_quota",
        "kbroker_replication_throttled_rate_bytes",
        *OF_SECURED_LISTENERS,
        *OF_ZOOKEEPER,
    }


async def test_requests_show_with_their_times(tmp_path: Path, port: Port) -> None:
    async with running_broker(tmp_path, MONITORED) as broker, connect(broker.port) as client:
        await client.create_topic("orders")
        for _ in range(3):
            await client.produce("orders", make_batch(b"tea"))
        seen = await samples(port())
    for name in ("totaltimems", "localtimems", "remotetimems"):
        buckets = [value for key, value in seen.items() if key.startswith(of_request(f"{name}_bucket", "Produce")[:-1])]
        assert buckets == sorted(buckets)
        assert buckets[-1] == seen[of_request(f"{name}_count", "Produce")] == 3
    assert seen[of_request("totaltimems_sum", "Produce")] > 0
    assert seen[of_request("remotetimems_sum", "Produce")] == 0
    assert seen["kbroker_requests_seconds_total"] > 0
    assert 0 <= seen["kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent"] <= 1


async def test_a_fetch_shows_as_waiting_and_as_a_fetch_of_a_consumer(tmp_path: Path, port: Port) -> None:
    async with running_broker(tmp_path, MONITORED) as broker, connect(broker.port) as client:
        await client.create_topic("orders")
        await client.fetch("orders", 0, min_bytes=1, max_wait_ms=20)
        seen = await samples(port())
    for request in ("Fetch", "FetchConsumer"):
        assert seen[of_request("remotetimems_count", request)] == 1
        assert seen[of_request("totaltimems_sum", request)] == seen[of_request("remotetimems_sum", request)] >= 20
        assert sum(seen.get(of_request("requests_total", request, version=str(v)), 0) for v in range(20)) == 1
    assert of_request("totaltimems_count", "FetchFollower") not in seen


async def test_failed_requests_show_by_their_error(tmp_path: Path, port: Port) -> None:
    async with running_broker(tmp_path, MONITORED) as broker, connect(broker.port) as client:
        await client.create_topic("orders")
        for _ in range(2):
            assert (await client.produce("missing", make_batch(b"tea"))).error_code
        await client.fetch("orders", 7)
        await client.ask("Heartbeat", 3, group_id="", member_id="m")
        seen = await samples(port())
    assert seen[of_request("errors_total", "Produce", error="UNKNOWN_TOPIC_OR_PARTITION")] == 2
    assert seen["kafka_server_brokertopicmetrics_failedproducerequests_total"] == 2
    assert seen[of_request("errors_total", "FetchConsumer", error="OFFSET_OUT_OF_RANGE")] == 1
    assert seen["kafka_server_brokertopicmetrics_failedfetchrequests_total"] == 1
    assert seen[of_request("errors_total", "Heartbeat", error="INVALID_GROUP_ID")] == 1


async def test_batches_that_are_too_large_show_by_topic(tmp_path: Path, port: Port) -> None:
    properties = {**MONITORED, "message.max.bytes": "1000"}
    async with running_broker(tmp_path, properties) as broker, connect(broker.port) as client:
        await client.create_topic("orders")
        large = make_batch(b"v" * 2000)
        for batch in (large, large, make_batch(b"tea")):
            await client.produce("orders", batch)
        seen = await samples(port())
    name = "kafka_server_brokertopicmetrics_bytesrejected_total"
    assert seen[name] == seen[f'{name}{{topic="orders"}}'] == 2 * len(large)
    assert seen["kafka_server_brokertopicmetrics_messagesin_total"] == 1


async def test_each_fsync_shows(tmp_path: Path, port: Port) -> None:
    properties = {**MONITORED, "log.flush.interval.messages": "1"}
    async with running_broker(tmp_path, properties) as broker, connect(broker.port) as client:
        await client.create_topic("orders")
        name = "kafka_log_logflushstats_logflushrateandtimems"
        before = await samples(port())
        for _ in range(3):
            await client.produce("orders", make_batch(b"tea"))
        after = await samples(port())
    assert after[f"{name}_count"] - before[f"{name}_count"] == 3


async def test_quotas_and_throttling_show(tmp_path: Path, port: Port) -> None:
    async with running_broker(tmp_path, MONITORED) as broker, connect(broker.port) as client:
        await client.create_topic("orders")
        value = alter_client_quotas.OpData(key="producer_byte_rate", value=10.0)
        names = [
            alter_client_quotas.EntityData(entity_type="user", entity_name=None),
            alter_client_quotas.EntityData(entity_type="client-id", entity_name='a"b'),
        ]
        entry = alter_client_quotas.EntryData(entity=names, ops=[value])
        await client.ask("AlterClientQuotas", 1, entries=[entry])
        value = alter_client_quotas.OpData(key="request_percentage", value=0.0001)
        names = [alter_client_quotas.EntityData(entity_type="user", entity_name=None)]
        await client.ask("AlterClientQuotas", 1, entries=[alter_client_quotas.EntryData(entity=names, ops=[value])])
        await client.ask("Metadata", 12, topics=None)
        seen = await samples(port())
    assert seen["kbroker_quotas"] == 2
    quotas = {key: value for key, value in seen.items() if key.startswith("kbroker_quota{")}
    assert quotas == {
        'kbroker_quota{user="<default>",client_id="a"b",ip="",quota="producer_byte_rate"}': 10,
        'kbroker_quota{user="<default>",client_id="",ip="",quota="request_percentage"}': 0.0001,
    }
    assert seen[of_request("throttletimems_count", "Metadata")] == 1
    assert seen[of_request("throttletimems_sum", "Metadata")] > 0


async def test_led_partitions_that_are_reassigned_show(tmp_path: Path, port: Port) -> None:
    async with running_broker(tmp_path, MONITORED) as broker, connect(broker.port) as client:
        await client.create_topic("orders", 4)
        store = broker._running().controller.store
        states = store.image.topics["orders"].partitions
        moving = {
            0: states[0]._replace(adding_replicas=(2,)),
            1: states[1]._replace(removing_replicas=(1,)),
            2: states[2]._replace(leader=2, adding_replicas=(3,)),
        }
        store.image = apply(store.image, [PartitionsChanged("orders", moving)])
        seen = await samples(port())
    assert seen["kafka_server_replicamanager_reassigningpartitions"] == 2


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
    assert after["kafka_server_brokertopicmetrics_messagesin_total"] == 0  # written before the restart


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
