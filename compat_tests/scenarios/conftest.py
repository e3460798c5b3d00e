"""What many scenarios share: two admin clients, the `kbroker` command, a member of a group, a JVM for Java's tools."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import confluent_kafka
import pytest
from confluent_kafka import KafkaException
from confluent_kafka import admin as confluent_admin
from kafka import KafkaAdminClient

from compat_tests.judge import JavaTools
from compat_tests.scenarios.groups import DEADLINE_S
from compat_tests.tool_server import ToolServer, running_tool_server

confluent: Any = confluent_admin


class Outcome(NamedTuple):
    """Of a call of the `kbroker` command."""

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
    """`call("topics", "list")` against the broker under test."""

    def run(*arguments: str, stdin: bytes = b"") -> Outcome:
        command = [sys.executable, "-m", "kbroker", *arguments, "--bootstrap", bootstrap]
        result = subprocess.run(command, input=stdin, capture_output=True, timeout=90, check=False)
        return Outcome(result.returncode, result.stdout.decode(), result.stderr.decode())

    return run


@pytest.fixture(scope="session")
def tool_server(java_tools: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolServer]:
    """Kafka's own tools and our Java scenarios, all in one JVM."""
    if shutil.which("javac") is None:
        pytest.skip("needs a JDK: javac is not on the PATH")
    with running_tool_server(java_tools, tmp_path_factory.mktemp("tool-server")) as server:
        yield server


@pytest.fixture
def admin(bootstrap: str) -> Any:
    """The AdminClient of confluent-kafka."""
    return confluent.AdminClient({"bootstrap.servers": bootstrap})


@pytest.fixture
def python_admin(bootstrap: str) -> Iterator[Any]:
    """The KafkaAdminClient of kafka-python."""
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def code_of(future: Any) -> int:
    """The error code that a future of confluent-kafka ends with, 0 if it ends well."""
    try:
        future.result()
    except KafkaException as failure:
        code: int = failure.args[0].code()
        return code
    return 0


@contextmanager
def reading_member(bootstrap: str, topic: str, protocol: str, *, count: int) -> Iterator[str]:
    """Somebody in the group of the topic's name who has read so far and committed; yields the member's id.

    `protocol` is that of KIP-848, `consumer`, or the classic one.
    """
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "group.protocol": protocol,
            "client.id": "somebody",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + DEADLINE_S
        while sum(each.offset for each in consumer.position(consumer.assignment()) if each.offset > 0) < count:
            assert time.monotonic() < deadline, "it has not read everything"
            message = consumer.poll(0.05)
            assert message is None or message.error() is None
        consumer.commit(asynchronous=False)
        yield consumer.memberid()
    finally:
        consumer.close()
