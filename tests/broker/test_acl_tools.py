"""kafka-acls of Apache Kafka 3.9 and 4.1 adds, lists and removes ACLs of kbroker."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from compat_tests.apache_kafka import JavaTools
from kbroker.testing import Broker

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

TOOLS = {"judge_classpath": "org.apache.kafka.tools.AclCommand", "judge39_classpath": "kafka.admin.AclCommand"}


@pytest.mark.parametrize("version", list(TOOLS))
def test_kafka_acls_adds_lists_and_removes(
    version: str, java: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    tools = JavaTools(java, request.getfixturevalue(version), tmp_path)
    with Broker(acls=[], super_users="User:ANONYMOUS") as broker:

        def acls(*arguments: str) -> str:
            return tools.run(TOOLS[version], "--bootstrap-server", broker.bootstrap, *arguments)

        added = acls("--add", "--allow-principal", "User:alice", "--producer", "--topic", "orders")
        for operation in ("WRITE", "DESCRIBE", "CREATE"):
            assert f"(principal=User:alice, host=*, operation={operation}, permissionType=ALLOW)" in added
        prefix = ("--topic", "pay", "--resource-pattern-type", "prefixed")
        acls("--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--operation", "Read", *prefix)
        listed = acls("--list", "--topic", "payments", "--resource-pattern-type", "match")
        assert "resourceType=TOPIC, name=pay, patternType=PREFIXED" in listed
        assert "(principal=User:bob, host=10.0.0.1, operation=READ, permissionType=DENY)" in listed
        assert "name=orders" not in listed
        assert "name=orders" in acls("--list")
        removal = ("--remove", "--allow-principal", "User:alice", "--producer", "--topic", "orders", "--force")
        assert "alice" not in acls(*removal)
        assert "alice" not in acls("--list")
        assert "User:bob" in acls("--list")


def test_the_console_producer_of_java_is_refused_as_by_apache_kafka(
    java: str, judge_classpath: str, tmp_path: Path
) -> None:
    tools = JavaTools(java, judge_classpath, tmp_path)
    with Broker(topics=["orders", "salaries"], acls=["allow User:ANONYMOUS WRITE topic orders"]) as broker:
        tools.console_producer(broker.bootstrap, "orders", b"one\n")
        errors = tools.command(
            "org.apache.kafka.tools.ConsoleProducer", ("--bootstrap-server", broker.bootstrap, "--topic", "salaries")
        )
        assert "TopicAuthorizationException" in run_for_errors(errors, b"two\n")


def run_for_errors(command: list[str], stdin: bytes) -> str:
    result = subprocess.run(command, input=stdin, capture_output=True, timeout=90, check=False)
    return (result.stdout + result.stderr).decode()
