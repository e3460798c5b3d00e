"""docs/three-machines.md, with three processes instead of three machines: its properties, and every console block."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from kbroker.config.broker import BrokerConfig
from kbroker.config.properties import parse_properties
from tests.cluster.conftest import RunningCluster, running_cluster
from tests.docs.pages import blocks_of, commands_in
from tests.docs.screen import matches

PAGE = "docs/three-machines.md"
EXPORT = "export KBROKER_BOOTSTRAP="
# Each process has an address and a ZooKeeper path of its own, and tests wait for shorter sessions.
OF_A_MACHINE = ("broker.id", "listeners", "advertised.listeners", "zookeeper.connect", "zookeeper.session.timeout.ms")


def properties() -> dict[str, str]:
    zoo_cfg, server = [block.text for block in blocks_of(PAGE) if block.kind == "properties"]
    assert "tickTime" in zoo_cfg
    return parse_properties(server)


def test_the_properties_are_valid() -> None:
    config = BrokerConfig.from_properties(properties())
    assert config.warnings == ()
    assert config.min_insync_replicas == config.default_replication_factor - 1
    assert [endpoint.host for endpoint in config.advertised_endpoints] == ["broker1.example.com"]


@pytest.fixture
async def cluster(zookeeper: str, tmp_path: Path) -> AsyncIterator[RunningCluster]:
    async with running_cluster(zookeeper, tmp_path, 0) as empty:
        for broker_id in (1, 2, 3):
            await start(empty, broker_id)
        yield empty


async def start(cluster: RunningCluster, broker_id: int) -> None:
    settings = [f"{name}={value}" for name, value in properties().items() if name not in OF_A_MACHINE]
    await cluster.start(broker_id, *settings)


async def until_in_sync(cluster: RunningCluster, count: int) -> None:
    await cluster.until_agreed(
        lambda _controller, brokers, topics: (
            len(brokers) == count and all(len(isr) == count for topic in topics.values() for _, isr in topic.values())
        )
    )


async def prepare(cluster: RunningCluster, remark: str) -> None:
    if remark == "broker 3 is killed":
        await cluster.brokers[3].kill()
        await until_in_sync(cluster, 2)
    elif remark == "broker 3 is started":
        await start(cluster, 3)
        await until_in_sync(cluster, 3)
    elif remark == "broker 3 is replaced":
        await cluster.brokers[3].kill()
        await until_in_sync(cluster, 2)
        shutil.rmtree(cluster.directory / "3")
        await start(cluster, 3)
        await until_in_sync(cluster, 3)
    else:
        assert remark == ""


def as_on_the_page(printed: str) -> str:
    """Replaces addresses by those of the page. Any broker may be the controller."""
    printed = re.sub(r"^( *)(\d)( +)127\.0\.0\.1", r"\1\2\3broker\2.example.com", printed, flags=re.MULTILINE)
    return re.sub(r" +yes$", "", printed, flags=re.MULTILINE)


@pytest.mark.jvm
async def test_the_commands_do_what_the_page_says(cluster: RunningCluster) -> None:
    await until_in_sync(cluster, 3)
    directories = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    for block in [block for block in blocks_of(PAGE) if block.kind == "console"]:
        await prepare(cluster, block.remark)
        environment = {**os.environ, "PATH": directories, "KBROKER_BOOTSTRAP": cluster.bootstrap}
        for command in commands_in(block):
            if command.line.startswith(EXPORT):
                continue
            result = await trio.run_process(
                ["bash", "-c", command.line],
                env=environment,
                capture_stdout=True,
                stderr=subprocess.STDOUT,
                check=False,
            )
            printed = as_on_the_page(result.stdout.decode())
            shown = [as_on_the_page(line) for line in command.shown]
            assert result.returncode == 0, printed
            assert matches(shown, printed), f"$ {command.line}\n{printed}\n{cluster.log()}"
