"""Moves of replicas between data directories of a broker, with Kafka's tool and kafka-python, on both brokers."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kafka import KafkaAdminClient
from kafka.errors import NoError

from compat_tests.apache_kafka import JavaTools, run_apache_kafka
from compat_tests.process import run_kbroker
from compat_tests.scenarios.groups import create_topic
from compat_tests.scenarios.test_groups_wire import Wire
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.messages import alter_replica_log_dirs as messages

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
ALTER, DESCRIBE = 34, 35


class TwoDirectories(NamedTuple):
    bootstrap: str
    directory: Path

    @property
    def paths(self) -> tuple[str, str]:
        return str(self.directory / "first"), str(self.directory / "second")


@pytest.fixture(scope="module")
def kbroker_with_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoDirectories]:
    given = TwoDirectories("", tmp_path_factory.mktemp("kbroker-two"))
    with run_kbroker(given.directory, "--set", f"log.dirs={','.join(given.paths)}") as (bootstrap, _):
        yield given._replace(bootstrap=bootstrap)


@pytest.fixture(scope="module")
def judge_with_two(java_tools: JavaTools, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoDirectories]:
    given = TwoDirectories("", tmp_path_factory.mktemp("apache-kafka-two"))
    more = f"log.dirs={','.join(given.paths)}\n"
    with ExitStack() as stack:
        yield given._replace(bootstrap=stack.enter_context(run_apache_kafka(java_tools, given.directory, more)))


@pytest.fixture
def broker(broker_name: str, request: pytest.FixtureRequest) -> TwoDirectories:
    fixtures = {"kbroker": "kbroker_with_two", "apache-kafka": "judge_with_two"}
    if broker_name not in fixtures:
        pytest.skip("needs a broker with two data directories")
    found: TwoDirectories = request.getfixturevalue(fixtures[broker_name])
    return found


def places(broker: TwoDirectories, topic: str) -> dict[int, list[tuple[str, bool]]]:
    """Returns partition -> its directories, each with a flag for a future replica."""
    wire = Wire(broker.bootstrap)
    found: dict[int, list[tuple[str, bool]]] = {}
    for result in wire.ask(DESCRIBE, 2, topics=None).results:
        assert result.error_code == 0
        for described in result.topics:
            for partition in described.partitions if described.name == topic else ():
                found.setdefault(partition.partition_index, []).append((result.log_dir, partition.is_future_key))
    wire.close()
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "the condition was not reached"
        time.sleep(0.05)


def alter(broker: TwoDirectories, path: str, topic: str, *partitions: int, version: int = 2) -> list[int]:
    wire = Wire(broker.bootstrap)
    asked = messages.AlterReplicaLogDir(
        path=path, topics=[messages.AlterReplicaLogDirTopic(name=topic, partitions=list(partitions))]
    )
    response = wire.ask(ALTER, version, dirs=[asked])
    wire.close()
    return [partition.error_code for found in response.results for partition in found.partitions]


def test_new_partitions_are_spread_over_the_directories(broker: TwoDirectories, topic: str) -> None:
    create_topic(broker.bootstrap, topic, 4)
    wait_for(lambda: len(places(broker, topic)) == 4)
    found = [directory for place in places(broker, topic).values() for directory, _ in place]
    assert {found.count(path) for path in broker.paths} <= {1, 2, 3}
    assert set(found) == set(broker.paths)


@pytest.mark.parametrize("version", [1, 2])
def test_replicas_move_and_keep_their_records(
    broker: TwoDirectories, topic: str, java_tools: JavaTools, version: int
) -> None:
    create_topic(broker.bootstrap, topic, 2)
    lines = b"".join(b"%d\n" % number for number in range(200))
    java_tools.console_producer(broker.bootstrap, topic, lines)
    for path in (*broker.paths, broker.paths[0]):
        assert alter(broker, path, topic, 0, 1, version=version) == [0, 0]
        wait_for(lambda path=path: places(broker, topic) == {0: [(path, False)], 1: [(path, False)]})  # type: ignore[misc]
    offsets = java_tools.get_offsets(broker.bootstrap, topic)
    assert sum(offsets.values()) == 200
    read = []
    for partition, count in offsets.items():
        options = ("--partition", str(partition), "--offset", "earliest", "--max-messages", str(count))
        read += java_tools.console_consumer(broker.bootstrap, topic, *options).split() if count else []
    assert sorted(map(int, read)) == list(range(200))


def test_errors_are_the_same(broker: TwoDirectories, topic: str) -> None:
    create_topic(broker.bootstrap, topic, 1)
    first, second = broker.paths
    assert alter(broker, str(broker.directory / "nowhere"), topic, 0) == [ErrorCode.LOG_DIR_NOT_FOUND]
    unknown = f"{topic}-later"
    assert alter(broker, second, unknown, 0, 1) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
    assert alter(broker, first, topic, 5) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    create_topic(broker.bootstrap, unknown, 2)
    wait_for(lambda: places(broker, unknown) == {0: [(second, False)], 1: [(second, False)]})


def test_kafka_python_moves_a_replica(broker: TwoDirectories, topic: str) -> None:
    create_topic(broker.bootstrap, topic, 1)
    wait_for(lambda: bool(places(broker, topic)))
    ((here, _),) = places(broker, topic)[0]
    (there,) = [path for path in broker.paths if path != here]
    admin: Any = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    try:
        results = admin.alter_replica_log_dirs({(topic, 0, 1): there})
    finally:
        admin.close()
    assert list(results.values()) == [NoError]
    wait_for(lambda: places(broker, topic) == {0: [(there, False)]})


def test_kafkas_tool_reports_the_same_for_a_move(
    request: pytest.FixtureRequest,
    java_tools: JavaTools,
    kbroker_with_two: TwoDirectories,
    judge_with_two: TwoDirectories,
    tmp_path: Path,
) -> None:
    if request.config.getoption("--bootstrap"):
        pytest.skip("compares two brokers")
    topic = f"moved-{uuid.uuid4().hex[:8]}"
    outputs = []
    for number, broker in enumerate((kbroker_with_two, judge_with_two)):
        create_topic(broker.bootstrap, topic, 1)
        wait_for(lambda broker=broker: bool(places(broker, topic)))  # type: ignore[misc]
        ((here, _),) = places(broker, topic)[0]
        (there,) = [path for path in broker.paths if path != here]
        plan = tmp_path / f"plan-{number}.json"
        partition = {"topic": topic, "partition": 0, "replicas": [1], "log_dirs": [there]}
        plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
        run = [REASSIGN, "--bootstrap-server", broker.bootstrap, "--reassignment-json-file", str(plan)]
        said = [java_tools.run(*run, "--execute", "--replica-alter-log-dirs-throttle", "10000000")]
        wait_for(lambda b=broker, t=there: places(b, topic) == {0: [(t, False)]})  # type: ignore[misc]
        said.append(java_tools.run(*run, "--verify"))
        for path, name in zip((here, there), ("HERE", "THERE"), strict=True):
            said = [line.replace(path, name) for line in said]
        outputs.append([re.sub(r"\d+\.\d+\.\d+\.\d+:\d+", "BROKER", line) for line in said])
    assert outputs[0] == outputs[1]
