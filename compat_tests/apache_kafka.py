"""Apache Kafka 4.1 as the reference broker: one KRaft node on free ports in a new directory, and Kafka's Java tools.

Always stops the processes that it started, and never uses other Kafka installations.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from compat_tests.process import free_ports, running, wait_until
from compat_tests.secured_clients import tool_options

__all__ = ["JavaTools", "answers", "run_apache_kafka"]

CLUSTER_ID = "a2Jyb2tlci1qdWRnZS0wMA"
HEAP = "-Xmx512m"
# A JVM that runs for seconds spends most of them on compilation: with C1 alone it starts fastest.
SHORT_LIVED = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={directory}/data
auto.create.topics.enable=true
num.partitions=1
offsets.topic.num.partitions=4
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
controlled.shutdown.enable=false
log.cleaner.dedupe.buffer.size=16777216
"""

LOG4J = """\
<Configuration status="ERROR">
  <Appenders><Console name="out" target="SYSTEM_ERR"><PatternLayout pattern="%p %c %m%n"/></Console></Appenders>
  <Loggers><Root level="{level}"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""

# ApiVersions v0, correlation id 1, null client id: every ready broker responds to it.
API_VERSIONS_V0 = bytes.fromhex("0000000a 0012 0000 00000001 ffff")


class JavaTools:
    """Kafka's command-line tools, run from their jars. A failed tool raises AssertionError with its output."""

    def __init__(self, java: str, classpath: str, directory: Path) -> None:
        self._java = java
        self._classpath = classpath
        self._log4j = directory / "tools-log4j2.xml"
        self._log4j.write_text(LOG4J.format(level="warn"))

    def run(self, main_class: str, *arguments: str, stdin: bytes = b"", timeout_s: float = 90) -> str:
        """Returns the tool's stdout; if the tool fails, the error has its stdout and stderr."""
        command = self.command(main_class, [*arguments, *tool_options(main_class)])
        result = subprocess.run(command, input=stdin, capture_output=True, timeout=timeout_s, check=False)
        output, errors = result.stdout.decode(), result.stderr.decode()
        if result.returncode != 0:
            raise AssertionError(f"{main_class} ended with {result.returncode}:\n{output}\n{errors}")
        return output

    def command(self, main_class: str, arguments: Sequence[str], options: Sequence[str] = SHORT_LIVED) -> list[str]:
        log4j = f"-Dlog4j2.configurationFile={self._log4j}"
        return [self._java, *options, log4j, "-cp", self._classpath, main_class, *arguments]

    def with_classes(self, directory: Path) -> JavaTools:
        """Returns the same tools with the classes in `directory` on the class path."""
        return JavaTools(self._java, os.pathsep.join([str(directory), self._classpath]), self._log4j.parent)

    def compile(self, sources: Sequence[Path], target: Path) -> None:
        command = ["javac", "-nowarn", "-cp", self._classpath, "-d", str(target), *map(str, sources)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr

    def console_producer(self, bootstrap: str, topic: str, lines: bytes, *options: str) -> str:
        tool = "org.apache.kafka.tools.ConsoleProducer"
        return self.run(tool, "--bootstrap-server", bootstrap, "--topic", topic, *options, stdin=lines)

    def console_consumer(self, bootstrap: str, topic: str, *options: str) -> str:
        """Reads a topic. Pass `--partition` to read without a group, and `--max-messages` so that the tool ends."""
        tool = "org.apache.kafka.tools.consumer.ConsoleConsumer"
        return self.run(tool, "--bootstrap-server", bootstrap, "--topic", topic, *options)

    def get_offsets(self, bootstrap: str, topic: str, *, time: int = -1) -> dict[int, int]:
        """Returns partition -> offset from GetOffsetShell. `time`: -1 latest, -2 earliest, or a timestamp in ms."""
        tool = "org.apache.kafka.tools.GetOffsetShell"
        output = self.run(tool, "--bootstrap-server", bootstrap, "--topic", topic, "--time", str(time))
        rows = [line.rsplit(":", 2) for line in output.splitlines() if line.startswith(f"{topic}:")]
        return {int(partition): int(offset) for _, partition, offset in rows}

    def producer_performance(self, bootstrap: str, topic: str, *, records: int, size: int) -> str:
        tool = "org.apache.kafka.tools.ProducerPerformance"
        load = ["--topic", topic, "--num-records", str(records), "--record-size", str(size), "--throughput", "-1"]
        return self.run(tool, *load, "--producer-props", f"bootstrap.servers={bootstrap}")

    def dump_log(self, *files: Path, options: Sequence[str] = ("--deep-iteration", "--print-data-log")) -> str:
        names = ",".join(str(file) for file in files)
        return self.run("kafka.tools.DumpLogSegments", *options, "--files", names)


@contextmanager
def run_apache_kafka(
    tools: JavaTools, directory: Path, more_properties: str = "", *, port: int | None = None
) -> Iterator[str]:
    """Runs Apache Kafka; yields its HOST:PORT when it is ready, and stops it at the end.

    It continues with the data in `directory`. `port`: of its PLAINTEXT listener; None for a free one. `more_properties`
    may name {port} and {controller_port}.
    """
    free_port, controller_port = free_ports(2)
    port = free_port if port is None else port
    properties = directory / "server.properties"
    text = PROPERTIES.format(port=port, controller_port=controller_port, directory=directory)
    more = more_properties.replace("{port}", str(port)).replace("{controller_port}", str(controller_port))
    properties.write_text(text + more)
    cluster_and_config = ("--cluster-id", CLUSTER_ID, "--config", str(properties))
    tools.run("kafka.tools.StorageTool", "format", "--ignore-formatted", *cluster_and_config)
    log = directory / "apache-kafka.log"
    options = (HEAP, "-XX:+UseSerialGC", "-Xshare:auto")
    with running(tools.command("kafka.Kafka", [str(properties)], options), log) as process:
        wait_until(lambda: answers(port), process, log, name="Apache Kafka")
        yield f"127.0.0.1:{port}"


def answers(port: int) -> bool:
    """Whether a broker responds to ApiVersions on this port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(API_VERSIONS_V0)
            answer = connection.recv(8)
    except OSError:
        return False
    return answer[4:] == API_VERSIONS_V0[8:12]
