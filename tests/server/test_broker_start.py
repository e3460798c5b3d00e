"""A broker that cannot start says why, in one line that tells the operator what to do."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from kbroker.config.broker import BrokerConfig
from kbroker.errors import UserError
from kbroker.server.broker import run_broker

LOOPBACK = {"listeners": "PLAINTEXT://127.0.0.1:0"}


async def refusal(tmp_path: Path, properties: dict[str, str], topics: list[tuple[str, int]]) -> str:
    config = BrokerConfig.from_properties(LOOPBACK | properties)
    with pytest.RaisesGroup(UserError, allow_unwrapped=True, flatten_subgroups=True) as refused:
        await run_broker(config, data_dir=str(tmp_path / "data"), topics=topics, stop=trio.Event())
    error: BaseException = refused.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error)


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
async def test_a_listener_with_encryption_or_authentication_is_refused(tmp_path: Path, protocol: str) -> None:
    message = await refusal(tmp_path, {"listeners": f"{protocol}://127.0.0.1:0"}, [])
    assert message == f"Unsupported security protocol {protocol}; only PLAINTEXT is supported."


async def test_a_broker_of_a_cluster_does_not_start_without_its_zookeeper(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        properties = {"zookeeper.connect": address, "zookeeper.connection.timeout.ms": "100"}
        message = await refusal(tmp_path, properties, [])
    assert message.startswith(f"Could not connect to ZooKeeper at {address} within 100 ms")


async def test_a_topic_that_cannot_be_created_stops_the_start(tmp_path: Path) -> None:
    message = await refusal(tmp_path, {}, [("a.b", 1), ("a_b", 1)])
    assert message.startswith("Could not create topic a_b: ")
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_single_node_imports_no_module_for_clusters() -> None:
    code = (
        "import sys, kbroker.server.broker\n"
        "names = ('kazoo', 'kbroker.client', 'kbroker.controller.cluster.cluster_member')\n"
        "sys.exit(', '.join(name for name in names if name in sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert found.stderr.strip() == ""
