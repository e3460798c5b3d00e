"""Kafka's own tools print against kbroker what they print against Apache Kafka.

Only addresses, ids, directories, the wording of errors, and what only a KRaft cluster has may differ. The steps
build on each other: starting a JVM for everything twice would take long.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable

import pytest

from compat_tests.judge import JavaTools

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"

Run = Callable[..., None]

# A KRaft cluster with KIP-966 sets this one for all brokers by itself.
KRAFT_ONLY = re.compile(r"min\.insync\.replicas")


@pytest.fixture(autouse=True)
def only_without_bootstrap(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--bootstrap"):
        pytest.skip("compares two brokers")


def outcome(tools: JavaTools, bootstrap: str, tool: str, arguments: tuple[str, ...]) -> str:
    try:
        output = tools.run(tool, "--bootstrap-server", bootstrap, *arguments)
    except AssertionError as failure:
        output = f"failed: {failure}"
    return output.replace(bootstrap, "BROKER")


@pytest.fixture
def run(java_tools: JavaTools, kbroker_address: str, judge: str) -> Run:
    """Runs a tool against both, and compares what it prints after `normal`."""

    def run_both(tool: str, *arguments: str, normal: Callable[[str], object] = str.strip) -> None:
        ours, theirs = (outcome(java_tools, each, tool, arguments) for each in (kbroker_address, judge))
        assert normal is errors or not theirs.startswith("failed: "), theirs
        assert normal(ours) == normal(theirs)

    return run_both


def without_ids(output: str) -> str:
    output = re.sub(r"TopicId: \S+", "TopicId: ID", output)
    return re.sub(r"min\.insync\.replicas=1,?", "", output).strip()


def entries(output: str) -> dict[str, str]:
    """What `ConfigCommand --describe` says of each config."""
    found = dict(re.findall(r"^  ([\w.-]+)=(.*)$", output, re.MULTILINE))
    return {name: text for name, text in found.items() if not KRAFT_ONLY.search(name)}


def without_directories(output: str) -> object:
    document = json.loads(output[output.index('{"') :])
    for broker in document["brokers"]:
        for directory in broker["logDirs"]:
            directory["logDir"] = "DIR"
            directory["partitions"].sort(key=lambda each: each["partition"])
    return document


def errors(output: str) -> list[str]:
    """The exceptions that a tool ended with; the wording is each broker's own."""
    return sorted(set(re.findall(r"\w+(?=Exception)", output)))


def topics_are_created_described_listed_and_grown(run: Run, name: str) -> None:
    run(TOPICS, "--create", "--topic", name, "--partitions", "2", "--config", "retention.ms=5000")
    run(TOPICS, "--create", "--topic", name, "--if-not-exists")
    run(TOPICS, "--describe", "--topic", name, normal=without_ids)
    run(TOPICS, "--list", "--topic", name)
    run(TOPICS, "--alter", "--topic", name, "--partitions", "3")
    run(TOPICS, "--describe", "--topic", name, normal=without_ids)
    run(TOPICS, "--alter", "--topic", name, "--partitions", "1", normal=errors)
    run(TOPICS, "--create", "--topic", name, normal=errors)
    run(TOPICS, "--describe", "--topic", f"{name}-none", normal=errors)
    run(TOPICS, "--create", "--topic", f"{name}-2", "--replication-factor", "2", normal=errors)
    run(TOPICS, "--describe", "--unavailable-partitions")


def configs_of_a_topic_are_described_and_altered(run: Run, name: str) -> None:
    of_topic = ("--entity-type", "topics", "--entity-name", name)
    run(CONFIGS, *of_topic, "--describe")
    run(CONFIGS, *of_topic, "--describe", "--all", normal=entries)
    run(CONFIGS, *of_topic, "--alter", "--add-config", "segment.ms=7000,cleanup.policy=[compact,delete]")
    run(CONFIGS, *of_topic, "--describe", normal=entries)
    run(CONFIGS, *of_topic, "--alter", "--delete-config", "segment.ms")
    run(CONFIGS, *of_topic, "--describe", normal=entries)
    run(CONFIGS, *of_topic, "--alter", "--add-config", "retention.ms=soon", normal=errors)
    run(CONFIGS, *of_topic, "--alter", "--add-config", "no.such.config=1", normal=errors)


def configs_of_a_broker_are_described_and_altered(run: Run, _name: str) -> None:
    broker, brokers = (
        ("--entity-type", "brokers", "--entity-name", "1"),
        ("--entity-type", "brokers", "--entity-default"),
    )
    run(CONFIGS, *broker, "--alter", "--add-config", "log.cleaner.threads=2")
    run(CONFIGS, *brokers, "--alter", "--add-config", "log.retention.ms=700000")
    run(CONFIGS, *broker, "--describe", normal=entries)
    run(CONFIGS, *brokers, "--describe", normal=entries)
    run(CONFIGS, *broker, "--alter", "--delete-config", "log.cleaner.threads")
    run(CONFIGS, *brokers, "--alter", "--delete-config", "log.retention.ms")
    run(CONFIGS, *broker, "--alter", "--add-config", "num.partitions=7", normal=errors)


def quotas_and_group_configs_are_described_and_altered(run: Run, name: str) -> None:
    user = ("--entity-type", "users", "--entity-name", "alice")
    run(CONFIGS, *user, "--alter", "--add-config", "producer_byte_rate=1024,consumer_byte_rate=2048")
    run(CONFIGS, *user, "--describe")
    run(
        CONFIGS,
        *user,
        "--entity-type",
        "clients",
        "--entity-default",
        "--alter",
        "--add-config",
        "request_percentage=50",
    )
    run(CONFIGS, *user, "--entity-type", "clients", "--entity-default", "--describe")
    run(CONFIGS, *user, "--alter", "--delete-config", "producer_byte_rate,consumer_byte_rate")
    run(
        CONFIGS,
        *user,
        "--entity-type",
        "clients",
        "--entity-default",
        "--alter",
        "--delete-config",
        "request_percentage",
    )
    run(CONFIGS, *user, "--describe")
    group = ("--entity-type", "groups", "--entity-name", name)
    run(CONFIGS, *group, "--alter", "--add-config", "consumer.session.timeout.ms=50000")
    run(CONFIGS, *group, "--describe", normal=entries)


def offsets_directories_and_leaders(run: Run, name: str) -> None:
    run(OFFSETS, "--topic", name)
    run(LOG_DIRS, "--describe", "--topic-list", name, normal=without_directories)
    run(ELECTION, "--election-type", "preferred", "--topic", name, "--partition", "0")
    run(ELECTION, "--election-type", "unclean", "--topic", f"{name}-none", "--partition", "0", normal=errors)
    run(REASSIGN, "--list")


def the_topic_goes(run: Run, name: str) -> None:
    run(TOPICS, "--delete", "--topic", name)
    run(TOPICS, "--list", "--exclude-internal", "--topic", name)


def test_kafkas_tools_print_against_both_brokers_the_same(run: Run) -> None:
    """One test, because each step needs what the one before it left."""
    name = f"tools-{uuid.uuid4().hex[:8]}"
    topics_are_created_described_listed_and_grown(run, name)
    configs_of_a_topic_are_described_and_altered(run, name)
    configs_of_a_broker_are_described_and_altered(run, name)
    quotas_and_group_configs_are_described_and_altered(run, name)
    offsets_directories_and_leaders(run, name)
    the_topic_goes(run, name)
