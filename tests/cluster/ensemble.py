"""A ZooKeeper ensemble of three processes, whose servers a test kills and starts again."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from compat_tests.process import free_ports
from kbroker.client.address import Address
from kbroker.client.admin.zookeeper import parse_srvr

START_SECONDS = 60.0
SERVERS = (1, 2, 3)
# Small and quick to start, as the single ZooKeeper of other tests.
OPTIONS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no")
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
SERVING = ("leader", "follower")


class Ensemble:
    def __init__(self, java: str, classpath: str, directory: Path) -> None:
        self.ports = dict(zip(SERVERS, free_ports(len(SERVERS)), strict=True))
        self.processes: dict[int, trio.Process] = {}
        self._command = [java, *OPTIONS, "-cp", classpath, MAIN]
        self._directory = directory
        quorum_ports = iter(free_ports(2 * len(SERVERS)))
        peers = "".join(f"server.{id_}=127.0.0.1:{next(quorum_ports)}:{next(quorum_ports)}\n" for id_ in SERVERS)
        for server_id, port in self.ports.items():
            data = directory / str(server_id)
            data.mkdir(parents=True)
            (data / "myid").write_text(str(server_id))
            (directory / f"zoo{server_id}.cfg").write_text(
                f"dataDir={data}\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
                f"tickTime=500\ninitLimit=40\nsyncLimit=20\nmaxClientCnxns=0\n{peers}"
            )

    @property
    def connect(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    async def start(self, *server_ids: int) -> None:
        """Starts servers, and waits until they serve requests."""
        for server_id in server_ids:
            with (self._directory / f"log{server_id}.txt").open("ab") as log:
                self.processes[server_id] = await trio.lowlevel.open_process(
                    [*self._command, str(self._directory / f"zoo{server_id}.cfg")],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self._directory,
                )
        for server_id in server_ids:
            await self.until(server_id, *SERVING)

    async def kill(self, server_id: int) -> None:
        process = self.processes.pop(server_id)
        process.kill()
        await process.wait()

    async def state(self, server_id: int) -> str:
        """Returns what the server says: leader, follower, or a state in which it serves nobody."""
        answer = b""
        try:
            async with await trio.open_tcp_stream("127.0.0.1", self.ports[server_id]) as stream:
                await stream.send_all(b"srvr")
                while data := await stream.receive_some():
                    answer += data
        except (OSError, trio.BrokenResourceError):
            return "down"
        return parse_srvr(Address("127.0.0.1", self.ports[server_id]), answer.decode()).state

    async def until(self, server_id: int, *states: str) -> None:
        found = ""
        with trio.move_on_after(START_SECONDS):
            while (found := await self.state(server_id)) not in states:  # noqa: ASYNC110
                await trio.sleep(0.05)
            return
        pytest.fail(f"server {server_id} is {found}:\n{(self._directory / f'log{server_id}.txt').read_text()[-2000:]}")

    async def leader(self) -> int:
        """Returns the server that leads. Waits until there is one."""
        with trio.fail_after(START_SECONDS):
            while True:
                for server_id in self.processes:
                    if await self.state(server_id) == "leader":
                        return server_id
                await trio.sleep(0.05)


@asynccontextmanager
async def running_ensemble(java: str, directory: Path) -> AsyncIterator[Ensemble]:
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        pytest.skip("needs pyspark, whose jars hold a ZooKeeper")
    ensemble = Ensemble(java, str(Path(spark.origin).parent / "jars" / "*"), directory)
    try:
        await ensemble.start(*SERVERS)
        yield ensemble
    finally:
        with trio.CancelScope(shield=True):
            for server_id in list(ensemble.processes):
                await ensemble.kill(server_id)
