"""Brokers of Apache Kafka 3.9 in a cluster of `RunningCluster`."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import trio

from compat_tests.process import free_ports
from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster

OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
STOP_SECONDS = 60.0
_STOPPED_BY_SIGTERM = 143


class Kafka:
    """An Apache Kafka broker with the interface of a broker of RunningCluster."""

    def __init__(self, process: trio.Process, port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self._log = log

    @property
    def stderr(self) -> str:
        return self._log.read_text()

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()

    async def terminate(self) -> int:
        """Stops the broker with SIGTERM. Returns 0 if it has stopped cleanly."""
        self.process.terminate()
        with trio.fail_after(STOP_SECONDS):
            code = await self.process.wait()
        return 0 if code == _STOPPED_BY_SIGTERM else code


async def start_kafka(
    cluster: RunningCluster,
    broker_id: int,
    settings: Mapping[str, object],
    *,
    classpath: str,
    java: str,
    home: Path,
    options: Sequence[str] = (),
) -> None:
    """Starts an Apache Kafka in `home`, as a broker of the cluster. It keeps the port of its predecessor.

    `options`: further options of Java.
    """
    known = cluster.brokers.get(broker_id)
    port = free_ports(1)[0] if known is None else known.port
    properties = {
        "broker.id": broker_id,
        "listeners": f"{cluster.protocol}://127.0.0.1:{port}",
        "zookeeper.connect": cluster.connect,
        "zookeeper.connection.timeout.ms": int(1000 * TIMEOUT_SECONDS),  # otherwise that of the session
        **settings,
    }
    path = write_properties(home, properties)
    log = home / "log.txt"
    with log.open("ab") as output:
        process = await trio.lowlevel.open_process(
            [java, *OPTIONS, *options, "-cp", classpath, "kafka.Kafka", str(path)],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=home,
        )
    cluster.brokers[broker_id] = Kafka(process, port, log)  # type: ignore[assignment]


def write_properties(home: Path, properties: Mapping[str, object]) -> Path:
    home.mkdir(exist_ok=True)
    path = home / "server.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return path
