"""`kbroker cluster` and `kbroker topics replicas` move the replicas of three Apache Kafka 4.1 brokers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from compat_tests.apache_kafka import CLUSTER_ID, JavaTools
from compat_tests.process import free_ports, running, wait_until
from tests.cluster.conftest import TIMEOUT_SECONDS

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

TOPIC = "orders"
MB = 1 << 20
PROPERTIES = """\
process.roles={roles}
node.id={node_id}
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listeners={listeners}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={directory}/data
broker.rack={rack}
auto.leader.rebalance.enable=false
"""
OPTIONS = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@contextmanager
def three_kafkas(tools: JavaTools, directory: Path) -> Iterator[str]:
    """Runs broker 1, which is also the controller, and the brokers 2 and 3. Yields their addresses."""
    controller_port, *ports = free_ports(4)
    with ExitStack() as stack:
        for node_id, port in enumerate(ports, 1):
            own = directory / str(node_id)
            own.mkdir()
            listeners = f"PLAINTEXT://127.0.0.1:{port}"
            if node_id == 1:
                listeners += f",CONTROLLER://127.0.0.1:{controller_port}"
            properties = own / "server.properties"
            properties.write_text(
                PROPERTIES.format(
                    roles="broker,controller" if node_id == 1 else "broker",
                    node_id=node_id,
                    controller_port=controller_port,
                    listeners=listeners,
                    port=port,
                    directory=own,
                    rack="a" if node_id == 1 else "b",
                )
            )
            tools.run("kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config", str(properties))
            log = own / "kafka.log"
            process = stack.enter_context(running(tools.command("kafka.Kafka", [str(properties)], OPTIONS), log))
            address = f"127.0.0.1:{port}"
            wait_until(lambda a=address, n=node_id: _brokers(a) >= n, process, log, name="Kafka")  # type: ignore[misc]
        yield ",".join(f"127.0.0.1:{port}" for port in ports)


def _brokers(address: str) -> int:
    ended = _call(address, "cluster", "describe", "--json")
    return len(json.loads(ended.stdout)["brokers"]) if ended.returncode == 0 else 0


def _call(bootstrap: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kbroker", *arguments, "--bootstrap", bootstrap],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * TIMEOUT_SECONDS,
        cwd=Path(__file__).parents[2],
    )


def call(bootstrap: str, *arguments: str) -> str:
    ended = _call(bootstrap, *arguments)
    assert ended.returncode == 0, (arguments, ended)
    return ended.stdout


def replicas(bootstrap: str) -> list[tuple[int, ...]]:
    partitions = AdminClient({"bootstrap.servers": bootstrap}).list_topics(TOPIC, TIMEOUT_SECONDS).topics[TOPIC]
    return [tuple(partition.replicas) for _, partition in sorted(partitions.partitions.items())]


def counts(bootstrap: str) -> list[int]:
    found = replicas(bootstrap)
    return [sum(broker_id in of for of in found) for broker_id in (1, 2, 3)]


@pytest.mark.long
def test_the_replicas_of_apache_kafka_move(java: str, judge_classpath: str, tmp_path: Path) -> None:
    with three_kafkas(JavaTools(java, judge_classpath, tmp_path), tmp_path) as bootstrap:
        call(bootstrap, "topics", "create", TOPIC, "--partitions", "6", "--replication-factor", "1")
        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
        for number in range(60):
            producer.produce(TOPIC, bytes(MB // 10), partition=number % 6)
        assert producer.flush(TIMEOUT_SECONDS) == 0

        call(bootstrap, "cluster", "drain", "3", "--yes")
        assert counts(bootstrap)[2] == 0
        assert sum(counts(bootstrap)) == 6
        call(bootstrap, "cluster", "balance", "--yes", "--throttle", str(100 * MB))
        assert counts(bootstrap) == [2, 2, 2]
        assert call(bootstrap, "cluster", "balance") == "Nothing to move.\n"
        configs = call(bootstrap, "configs", "describe", "broker", "1") + call(bootstrap, "topics", "describe", TOPIC)
        assert "throttled" not in configs

        call(bootstrap, "topics", "replicas", TOPIC, "2", "--yes")
        assert all(1 in of for of in replicas(bootstrap))  # alone in its rack
        assert call(bootstrap, "cluster", "replace", "2", "3", "--yes")
        assert counts(bootstrap) == [6, 0, 6]
        call(bootstrap, "topics", "replicas", TOPIC, "1", "--yes")
        assert sum(counts(bootstrap)) == 6
        records = call(bootstrap, "consume", TOPIC, "--json").count("\n")
        assert records == 60
