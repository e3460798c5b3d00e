"""What a broker refuses to start with, in one line that a person can act on."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from kbroker.config import BrokerConfig
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
async def test_who_asks_for_encryption_or_passwords_is_not_served_without(tmp_path: Path, protocol: str) -> None:
    said = await refusal(tmp_path, {"listeners": f"{protocol}://127.0.0.1:0"}, [])
    assert said == f"{protocol}://127.0.0.1:0 asks for {protocol}, and only PLAINTEXT is served yet"


async def test_who_asks_for_a_cluster_is_not_given_a_single_node(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        properties = {"zookeeper.connect": address, "zookeeper.connection.timeout.ms": "100"}
        said = await refusal(tmp_path, properties, [])
    assert said.startswith(f"no ZooKeeper answered at {address} within 100 ms")


async def test_a_topic_that_cannot_be_created_stops_the_start(tmp_path: Path) -> None:
    said = await refusal(tmp_path, {}, [("a.b", 1), ("a_b", 1)])
    assert said.startswith("topic a_b cannot be created: ")
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_cluster_of_one_loads_nothing_of_clusters() -> None:
    code = (
        "import sys, kbroker.server.broker\n"
        "names = ('kazoo', 'kbroker.client', 'kbroker.controller.cluster_member')\n"
        "sys.exit(', '.join(name for name in names if name in sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert found.stderr.strip() == ""
