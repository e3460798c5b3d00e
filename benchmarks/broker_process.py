"""Brokers of a run: started in new directories, or already running and named by `HOST:PORT=PID`.

Also reads CPU time and memory of processes from /proc. Never stops a broker that it did not start.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.certificates import Certificates
from benchmarks.connection import Address, Connection
from benchmarks.frames import init_producer_frame
from compat_tests.apache_kafka import CLUSTER_ID, PROPERTIES, JavaTools
from compat_tests.process import StartFailed, free_ports, running, wait_until
from tools.jars import fetch_jars

__all__ = [
    "Broker",
    "JavaMissing",
    "StopFailed",
    "cpu_seconds",
    "fresh_kbroker",
    "java_tools",
    "named_broker",
    "resident_mb",
    "running_apache_kafka",
    "running_kbroker",
]

STOP_SECONDS = 120.0
READY = b"kbroker is ready on "
# JVM options of Apache Kafka's start script. The tests give Apache Kafka less memory; a fair comparison must not.
STOCK_JVM = (
    "-server",
    "-Xms1G",
    "-Xmx1G",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)

# As many offsets partitions as by default and as in kbroker; commits do not wait to be batched.
GROUP_PROPERTIES = """\
offsets.topic.num.partitions=50
group.coordinator.append.linger.ms=0
"""

# Later lines of a properties file win.
TLS_PROPERTIES = """\
listeners=SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=SSL://127.0.0.1:{port}
listener.security.protocol.map=SSL:SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=SSL
"""


class StopFailed(Exception):
    """kbroker crashed while it stopped, or had to be killed."""


class JavaMissing(Exception):
    """Apache Kafka cannot be started here."""


@dataclass(frozen=True, slots=True)
class Broker:
    """Address of a broker, and its process id, None if unknown."""

    address: Address
    pid: int | None
    ready_seconds: float = 0.0
    peers: tuple[int, ...] = ()
    """Processes of the other brokers of its cluster: they copy what it is sent, so their CPU and memory count too."""

    @property
    def pids(self) -> tuple[int | None, ...]:
        return (self.pid, *self.peers)

    @property
    def bootstrap(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"


def named_broker(text: str) -> Broker:
    """Parses `HOST:PORT` or `HOST:PORT=PID`. Raises ValueError if HOST is not loopback."""
    address, _, pid = text.partition("=")
    host, _, port = address.rpartition(":")
    if host not in ("127.0.0.1", "localhost"):
        raise ValueError(f"{text}: HOST must be 127.0.0.1 or localhost")
    return Broker((host, int(port)), int(pid) if pid else None)


@contextmanager
def running_kbroker(
    data_dir: Path, *options: str, collector_pauses: Path | None = None, certificates: Certificates | None = None
) -> Iterator[Broker]:
    """Runs `kbroker serve` on a free port, with more options, and stops it cleanly at the end.

    `collector_pauses`: file for the pauses of the garbage collector. `certificates`: its only listener uses TLS.
    """
    module = ["kbroker"] if collector_pauses is None else ["benchmarks.watched_kbroker", str(collector_pauses)]
    command = [sys.executable, "-m", *module, "serve", "--data-dir", str(data_dir), *options]
    if certificates is None:
        command += ["--listen", "127.0.0.1:0"]
    else:
        configs = {"listeners": "SSL://127.0.0.1:0", **certificates.properties}
        command += [word for name, text in configs.items() for word in ("--set", f"{name}={text}")]
    log = data_dir.with_name(data_dir.name + ".log")
    with open(log, "wb") as errors:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        seconds = time.perf_counter() - start
        if not line.startswith(READY):
            tail = log.read_text(errors="replace")[-2000:]
            raise StartFailed(f"kbroker printed {line.decode()!r} instead of its ready line:\n{tail}")
        host, _, port = line.removeprefix(READY).decode().strip().rpartition(":")
        yield Broker(_address_of(host, int(port), certificates), process.pid, seconds)
    finally:
        _stop(process)
        process.stdout.close()
    if process.returncode:
        tail = log.read_text(errors="replace")[-2000:]
        raise StopFailed(f"kbroker stopped with exit code {process.returncode}:\n{tail}")


@contextmanager
def fresh_kbroker(*options: str) -> Iterator[tuple[Broker, Path]]:
    """Runs `kbroker serve` in a temporary directory, and yields the broker and the directory."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kbroker-bench-")))
        yield stack.enter_context(running_kbroker(directory / "data", *options)), directory


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def java_tools(directory: Path) -> JavaTools:
    """Returns Apache Kafka 4.1 and its tools, from the jars that the tests use. Raises JavaMissing without Java."""
    java = shutil.which("java")
    if java is None:
        raise JavaMissing("java is not on the PATH")
    jars = fetch_jars("judge41")
    return JavaTools(java, os.pathsep.join(str(jar) for jar in jars.values()), directory)


@contextmanager
def running_apache_kafka(
    tools: JavaTools, directory: Path, certificates: Certificates | None = None
) -> Iterator[Broker]:
    """Runs one KRaft node with the properties of the tests and the JVM options of Kafka's start script.

    `certificates`: the listener of its clients uses TLS.
    """
    port, controller_port = free_ports(2)
    properties = directory / "server.properties"
    text = PROPERTIES.format(port=port, controller_port=controller_port, directory=directory) + GROUP_PROPERTIES
    if certificates is not None:
        text += TLS_PROPERTIES.format(port=port, controller_port=controller_port)
        text += "".join(f"{name}={value}\n" for name, value in certificates.properties.items())
    properties.write_text(text)
    tools.run("kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER_ID, "--config", str(properties))
    log = directory / "apache-kafka.log"
    start = time.perf_counter()
    with running(tools.command("kafka.Kafka", [str(properties)], STOCK_JVM), log) as process:
        address = _address_of("127.0.0.1", port, certificates)
        wait_until(_serves(address), process, log, name="Apache Kafka")
        yield Broker(address, process.pid, time.perf_counter() - start)


def _address_of(host: str, port: int, certificates: Certificates | None) -> Address:
    return (host, port) if certificates is None else certificates.address((host, port))


def _serves(address: Address) -> Callable[[], bool]:
    def serves() -> bool:
        try:
            with Connection(address) as connection:
                connection.send(init_producer_frame())
                return len(connection.answer()) > 0
        except (OSError, EOFError):
            return False

    return serves


def cpu_seconds(*pids: int | None) -> float:
    """Returns the CPU time of the processes and their running children; None counts as 0."""
    ticks = 0
    for member in _families(pids):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rsplit(")", 1)[1].split()
        except FileNotFoundError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mb(*pids: int | None) -> float:
    kilobytes = 0
    for member in _families(pids):
        for line in Path(f"/proc/{member}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                kilobytes += int(line.split()[1])
    return kilobytes / 1024


def _families(pids: Iterable[int | None]) -> list[int]:
    return [member for pid in pids for member in _family(pid)]


def _family(pid: int | None) -> list[int]:
    if pid is None:
        return []
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        children = []
    return [pid, *(descendant for child in children for descendant in _family(int(child)))]
