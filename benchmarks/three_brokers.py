"""Starts and stops three brokers of one cluster on this machine: with a ZooKeeper, or Apache Kafka 4.1 in KRaft mode.

Each has its own port and directory. Only processes that were started here are stopped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import create_connection

from benchmarks.broker_process import STOCK_JVM, Broker, JavaMissing, java_tools
from compat_tests.apache_kafka import CLUSTER_ID, answers
from compat_tests.process import free_ports, running, wait_until
from tools.jars import fetch_jars

__all__ = [
    "BROKERS",
    "WAIT_SECONDS",
    "Kind",
    "Settings",
    "ThreeBrokers",
    "find_kinds",
    "kraft_settings",
    "running_kraft",
    "running_with_zookeeper",
]

BROKERS = (1, 2, 3)
CONTROLLER = BROKERS[0]
WAIT_SECONDS = 300.0
JVM = ("-Xmx512m", "-XX:+UseSerialGC")

Settings = Mapping[str, object]


class ThreeBrokers:
    """Three brokers of one cluster. `settings_of` returns the properties of the broker with this id and port."""

    def __init__(self, command: Sequence[str], directory: Path, settings_of: Callable[[int, int], Settings]) -> None:
        self.ports = dict(zip(BROKERS, free_ports(len(BROKERS)), strict=True))
        self._command = command
        self._directory = directory
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for broker_id, port in self.ports.items():
            home = self._home(broker_id)
            home.mkdir()
            settings = {"log.dirs": home / "data", **settings_of(broker_id, port)}
            self.config(broker_id).write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    def as_broker(self) -> Broker:
        """Returns the address of a broker, with the processes of all that run."""
        first, *others = [process.pid for process in self._processes.values()]
        return Broker(("127.0.0.1", self.ports[BROKERS[0]]), first, peers=tuple(others))

    def config(self, broker_id: int) -> Path:
        return self._home(broker_id) / "server.properties"

    def start(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            home = self._home(broker_id)
            with open(home / "log.txt", "ab") as log:
                self._processes[broker_id] = subprocess.Popen(
                    [*self._command, str(self.config(broker_id))],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=home,
                )
        for broker_id in broker_ids:
            port, process = self.ports[broker_id], self._processes[broker_id]
            log_file = self._home(broker_id) / "log.txt"
            is_ready = partial(answers, port)
            wait_until(is_ready, process, log_file, timeout_s=WAIT_SECONDS, name=f"broker {broker_id}")

    def kill(self, broker_id: int) -> None:
        process = self._processes.pop(broker_id)
        process.kill()
        process.wait()

    def stop(self, broker_id: int) -> None:
        process = self._processes.pop(broker_id)
        process.terminate()
        process.wait(WAIT_SECONDS)

    def kill_all(self) -> None:
        for broker_id in list(self._processes):
            self.kill(broker_id)

    def _home(self, broker_id: int) -> Path:
        return self._directory / str(broker_id)


@contextmanager
def _started(brokers: ThreeBrokers) -> Iterator[ThreeBrokers]:
    try:
        brokers.start(*BROKERS)
        yield brokers
    finally:
        brokers.kill_all()


# With a ZooKeeper


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of broker, and the command that runs it with a properties file."""

    name: str
    command: tuple[str, ...]
    zookeeper: tuple[str, ...]


def find_kinds() -> tuple[Kind, Kind]:
    """Returns kbroker and Apache Kafka 3.9. Raises JavaMissing without Java."""
    java = shutil.which("java")
    if java is None:
        raise JavaMissing("java is not on the PATH")
    classpath = os.pathsep.join(map(str, fetch_jars("judge39").values()))
    zookeeper = (java, *JVM, "-cp", classpath, "org.apache.zookeeper.server.quorum.QuorumPeerMain")
    return (
        Kind("kbroker", (sys.executable, "-m", "kbroker", "serve", "--config"), zookeeper),
        Kind("Apache Kafka 3.9", (java, *JVM, "-cp", classpath, "kafka.Kafka"), zookeeper),
    )


@contextmanager
def running_with_zookeeper(kind: Kind, settings: Settings) -> Iterator[tuple[ThreeBrokers, str]]:
    """Runs a ZooKeeper and three brokers in a temporary directory; yields them and the address of the ZooKeeper."""
    with tempfile.TemporaryDirectory(prefix="kbroker-bench-") as name:
        directory = Path(name)
        (port,) = free_ports(1)
        config = directory / "zoo.cfg"
        config.write_text(
            f"dataDir={directory / 'zookeeper'}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\ntickTime=500\nmaxClientCnxns=0\n"
        )
        log = directory / "zookeeper.txt"
        zookeeper = f"127.0.0.1:{port}"

        def settings_of(broker_id: int, port: int) -> Settings:
            listener = f"PLAINTEXT://127.0.0.1:{port}"
            return {**settings, "broker.id": broker_id, "listeners": listener, "zookeeper.connect": zookeeper}

        with running([*kind.zookeeper, str(config)], log) as process:
            wait_until(partial(_serves, port), process, log, name="ZooKeeper")
            with _started(ThreeBrokers(kind.command, directory, settings_of)) as brokers:
                yield brokers, zookeeper


def _serves(port: int) -> bool:
    try:
        with create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(b"srvr")
            return b"Mode:" in connection.recv(4096)
    except OSError:
        return False


# Apache Kafka 4.1 in KRaft mode


@contextmanager
def running_kraft(settings: Settings) -> Iterator[ThreeBrokers]:
    """Runs Apache Kafka 4.1 in a temporary directory. Raises JavaMissing without Java."""
    with tempfile.TemporaryDirectory(prefix="kbroker-bench-") as name:
        directory = Path(name)
        tools = java_tools(directory)
        (controller_port,) = free_ports(1)
        brokers = ThreeBrokers(
            tools.command("kafka.Kafka", [], STOCK_JVM), directory, partial(kraft_settings, settings, controller_port)
        )
        for broker_id in BROKERS:
            config = str(brokers.config(broker_id))
            tools.run("kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config", config)
        with _started(brokers):
            yield brokers


def kraft_settings(settings: Settings, controller_port: int, broker_id: int, port: int) -> Settings:
    """Returns the properties of a broker. The first is also the only controller, as there is only one ZooKeeper."""
    listener = f"PLAINTEXT://127.0.0.1:{port}"
    is_controller = broker_id == CONTROLLER
    return {
        **settings,
        "process.roles": "broker,controller" if is_controller else "broker",
        "node.id": broker_id,
        "controller.quorum.voters": f"{CONTROLLER}@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listeners": f"{listener},CONTROLLER://127.0.0.1:{controller_port}" if is_controller else listener,
        "advertised.listeners": listener,
    }
