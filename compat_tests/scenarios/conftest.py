"""Fixtures of the scenarios: admin clients, the `kbroker` command, a group member, a JVM for Java's tools, Spark."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import confluent_kafka
import kafka
import pytest
from confluent_kafka import KafkaException
from confluent_kafka import admin as confluent_admin

from compat_tests.apache_kafka import JavaTools
from compat_tests.scenarios.groups import DEADLINE_S
from compat_tests.scenarios.spark_kafka import SESSION_SETTINGS, SparkKafka
from compat_tests.tool_server import ToolServer, running_tool_server

if TYPE_CHECKING:
    from compat_tests.scenarios.secured import SecuredBroker

confluent: Any = confluent_admin


class Outcome(NamedTuple):
    """Exit code and output of a `kbroker` command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        assert self.code == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]


Call = Callable[..., Outcome]


@pytest.fixture
def call(bootstrap: str) -> Call:
    """Returns a function that runs a command against the broker under test: `call("topics", "list")`."""

    def run(*arguments: str, stdin: bytes = b"") -> Outcome:
        command = [sys.executable, "-m", "kbroker", *arguments, "--bootstrap", bootstrap]
        result = subprocess.run(command, input=stdin, capture_output=True, timeout=90, check=False)
        return Outcome(result.returncode, result.stdout.decode(), result.stderr.decode())

    return run


@pytest.fixture(scope="session")
def tool_server(java_tools: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolServer]:
    """Runs Kafka's tools and the Java scenarios in one JVM."""
    if shutil.which("javac") is None:
        pytest.skip("needs a JDK: javac is not on the PATH")
    with running_tool_server(java_tools, tmp_path_factory.mktemp("tool-server")) as server:
        yield server


@pytest.fixture(scope="session")
def spark_session(shared_spark: Any) -> Any:
    """A session of its own for the scenarios, in the Spark of this process, which takes long to start."""
    session = shared_spark.newSession()
    for name, value in SESSION_SETTINGS.items():
        session.conf.set(name, value)
    return session


@pytest.fixture
def spark(bootstrap: str, spark_session: Any, tmp_path: Path) -> Iterator[SparkKafka]:
    """Returns Spark's source and sink of the broker under test; stops the streams of the test."""
    yield SparkKafka(spark_session, bootstrap, tmp_path)
    for query in spark_session.streams.active:
        query.stop()


@pytest.fixture(scope="module")
def secured(
    broker_name: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredBroker]:
    """Returns a broker of its own with secured listeners."""
    if broker_name not in ("kbroker", "apache-kafka"):
        pytest.skip("the broker of --bootstrap has no listeners of this test")
    from compat_tests.scenarios.secured import run_secured  # not before `secure_clients`

    tools = request.getfixturevalue("java_tools") if broker_name == "apache-kafka" else None
    with run_secured(tmp_path_factory.mktemp("secured"), tools) as found:
        yield found


@pytest.fixture
def admin(bootstrap: str) -> Any:
    """Returns the AdminClient of confluent-kafka."""
    return confluent.AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def python_admin(bootstrap: str) -> Iterator[Any]:
    """Returns the KafkaAdminClient of kafka-python."""
    client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def code_of(future: Any) -> int:
    """Returns the error code of a confluent-kafka future, 0 if it succeeded."""
    try:
        future.result()
    except KafkaException as failure:
        code: int = failure.args[0].code()
        return code
    return 0


@contextmanager
def reading_member(bootstrap: str, topic: str, protocol: str, *, count: int) -> Iterator[str]:
    """Yields the id of a group member that has read and committed `count` records.

    The group has the topic's name. `protocol`: `consumer` (KIP-848) or `classic`.
    """
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "group.protocol": protocol,
            "client.id": "test-client",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + DEADLINE_S
        while (
            sum(partition.offset for partition in consumer.position(consumer.assignment()) if partition.offset > 0)
            < count
        ):
            assert time.monotonic() < deadline, "it has not read everything"
            message = consumer.poll(0.05)
            assert message is None or message.error() is None
        consumer.commit(asynchronous=False)
        yield consumer.memberid()
    finally:
        consumer.close()
