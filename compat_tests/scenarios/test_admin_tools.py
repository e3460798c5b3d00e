"""Kafka's tools print the same against kbroker as against Apache Kafka.

Addresses, ids, directories, error texts and features of KRaft may differ. BrokerApiVersions is an exception: kbroker
serves fewer APIs, and fewer versions of some. The ranges must be those of kbroker's registry, and the usable version
must be the highest that both sides know. Each step needs the results of the previous one.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from compat_tests.scenarios.conftest import reading_member
from compat_tests.scenarios.groups import produce_numbers
from compat_tests.tool_server import ToolServer
from kbroker.protocol.registry import APIS

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "kafka.admin.ConfigCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"

DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
GROUPS = "org.apache.kafka.tools.GroupsCommand"
ALL_TOOLS = {
    TOPICS,
    CONFIGS,
    OFFSETS,
    LOG_DIRS,
    ELECTION,
    REASSIGN,
    DELETE_RECORDS,
    API_VERSIONS,
    CONSUMER_GROUPS,
    GROUPS,
}

# A KRaft cluster with KIP-966 sets this config for all brokers itself.
KRAFT_ONLY = re.compile(r"min\.insync\.replicas")


@pytest.fixture(autouse=True)
def only_without_bootstrap(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--bootstrap"):
        pytest.skip("compares two brokers")


class Both:
    """Runs a tool against both brokers and compares the outputs after `normal`."""

    def __init__(self, tools: ToolServer, ours: str, theirs: str, directory: Path) -> None:
        self.brokers = (ours, theirs)
        self.directory = directory
        self.member_ids: tuple[str, ...] = ()
        self.used: set[str] = set()
        self._tools = tools

    def __call__(self, tool: str, *arguments: str, normal: Callable[[str], object] = str.strip) -> None:
        ours, theirs = self.outputs(tool, *arguments)
        assert normal is errors or not theirs.startswith("failed: "), theirs
        assert normal(ours) == normal(theirs)

    def outputs(self, tool: str, *arguments: str) -> tuple[str, str]:
        self.used.add(tool)
        ours, theirs = (self._outcome(broker, tool, arguments) for broker in self.brokers)
        return ours, theirs

    def _outcome(self, bootstrap: str, tool: str, arguments: tuple[str, ...]) -> str:
        try:
            output = self._tools.run(tool, "--bootstrap-server", bootstrap, *arguments)
        except AssertionError as failure:
            output = f"failed: {failure}"
        for member_id in self.member_ids:
            output = output.replace(member_id, "MEMBER")
        return output.replace(bootstrap, "BROKER")


@pytest.fixture
def run(tool_server: ToolServer, kbroker_address: str, apache_kafka: str, tmp_path: Path) -> Both:
    return Both(tool_server, kbroker_address, apache_kafka, tmp_path)


def without_ids(output: str) -> str:
    output = re.sub(r"TopicId: \S+", "TopicId: ID", output)
    return re.sub(r"min\.insync\.replicas=1,?", "", output).strip()


def entries(output: str) -> dict[str, str]:
    """Returns each config's line from `ConfigCommand --describe`."""
    found = dict(re.findall(r"^  ([\w.-]+)=(.*)$", output, re.MULTILINE))
    return {name: text for name, text in found.items() if not KRAFT_ONLY.search(name)}


def without_directories(output: str) -> object:
    document = json.loads(output[output.index('{"') :])
    for broker in document["brokers"]:
        for directory in broker["logDirs"]:
            directory["logDir"] = "DIR"
            directory["partitions"].sort(key=lambda row: row["partition"])
    return document


def errors(output: str) -> list[str]:
    """Returns the exception types that a tool printed; their messages may differ."""
    return sorted(set(re.findall(r"\w+(?=Exception)", output)))


def topics_are_created_described_listed_and_grown(run: Both, name: str) -> None:
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


def configs_of_a_topic_are_described_and_altered(run: Both, name: str) -> None:
    of_topic = ("--entity-type", "topics", "--entity-name", name)
    run(CONFIGS, *of_topic, "--describe")
    run(CONFIGS, *of_topic, "--describe", "--all", normal=entries)
    run(CONFIGS, *of_topic, "--alter", "--add-config", "segment.ms=7000,cleanup.policy=[compact,delete]")
    run(CONFIGS, *of_topic, "--describe", normal=entries)
    run(CONFIGS, *of_topic, "--alter", "--delete-config", "segment.ms")
    run(CONFIGS, *of_topic, "--describe", normal=entries)
    run(CONFIGS, *of_topic, "--alter", "--add-config", "retention.ms=soon", normal=errors)
    run(CONFIGS, *of_topic, "--alter", "--add-config", "no.such.config=1", normal=errors)


def configs_of_a_broker_are_described_and_altered(run: Both, _name: str) -> None:
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


def quotas_and_group_configs_are_described_and_altered(run: Both, name: str) -> None:
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


def offsets_directories_and_leaders(run: Both, name: str) -> None:
    run(OFFSETS, "--topic", name)
    run(LOG_DIRS, "--describe", "--topic-list", name, normal=without_directories)
    run(ELECTION, "--election-type", "preferred", "--topic", name, "--partition", "0")
    run(ELECTION, "--election-type", "unclean", "--topic", f"{name}-none", "--partition", "0", normal=errors)
    run(REASSIGN, "--list")


def records_are_deleted(run: Both, name: str) -> None:
    run(TOPICS, "--create", "--topic", name, "--partitions", "3")
    for broker in run.brokers:
        produce_numbers(broker, name, range(30), 3)
    assert "".join(run.outputs(OFFSETS, "--topic", name)).count(":10\n") == 6
    run(OFFSETS, "--topic", name)
    partitions = [{"topic": name, "partition": number, "offset": offset} for number, offset in ((0, 4), (1, -1))]
    run(DELETE_RECORDS, "--offset-json-file", offset_file(run, partitions), normal=sorted_lines)
    run(OFFSETS, "--topic", name, "--time", "earliest")
    beyond = [{"topic": name, "partition": 0, "offset": 99}]
    run(DELETE_RECORDS, "--offset-json-file", offset_file(run, beyond), normal=errors)
    run(OFFSETS, "--topic-partitions", f"{name}:0-2", "--time", "-1")


def offset_file(run: Both, partitions: list[dict[str, object]]) -> str:
    file = run.directory / "offsets.json"
    file.write_text(json.dumps({"partitions": partitions, "version": 1}))
    return str(file)


class Served(NamedTuple):
    """Line of BrokerApiVersionsCommand for one API."""

    key: int
    first: int
    last: int
    usable: int


def served(output: str) -> dict[str, Served]:
    rows = re.findall(r"(\w+)\((\d+)\): (\d+)(?: to (\d+))? \[usable: (\d+)\]", output)
    return {name: Served(*(int(number or numbers[1]) for number in numbers)) for name, *numbers in rows}


def versions_are_those_of_our_registry_and_the_best_of_them_is_used(run: Both, _name: str) -> None:
    ours, theirs = run.outputs(API_VERSIONS)
    assert ours.splitlines()[0] == theirs.splitlines()[0]
    advertised, reference = served(ours), served(theirs)
    registered = {api.key: api.serves for api in APIS if api.is_served()}
    assert {api.key for api in advertised.values()} == registered.keys()
    assert advertised.keys() <= reference.keys()
    for name, api in advertised.items():
        assert (api.first, api.last) == registered[api.key], name
        assert api.usable == min(api.last, reference[name].usable), name
    # The tool lists APIs that kbroker does not serve as unsupported.
    missing = reference.keys() - advertised.keys()
    assert all(re.search(rf"{name}\(\d+\): UNSUPPORTED", ours) for name in missing)


def groups_are_described_moved_and_deleted(run: Both, name: str, protocol: str, records: int) -> None:
    of_group = ("--group", name)
    with members(run, name, protocol, records):
        run(CONSUMER_GROUPS, "--describe", *of_group, normal=table)
        run(CONSUMER_GROUPS, "--describe", *of_group, "--members", "--verbose", normal=table)
        run(CONSUMER_GROUPS, "--describe", *of_group, "--state", normal=table)
        run(CONSUMER_GROUPS, "--list", "--state", "Stable", normal=lambda output: rows_with(name, output))
        run(CONSUMER_GROUPS, "--list", "--type", protocol, normal=lambda output: rows_with(name, output))
        run(GROUPS, "--list", normal=lambda output: rows_with(name, output))
        run(CONSUMER_GROUPS, "--reset-offsets", *of_group, "--to-earliest", "--topic", name, "--execute")
        run(CONSUMER_GROUPS, "--delete", *of_group, normal=errors)
        run(CONSUMER_GROUPS, "--delete-offsets", *of_group, "--topic", name, normal=table)
    run(CONSUMER_GROUPS, "--describe", *of_group, normal=table)
    for options in (
        ("--to-earliest", "--topic", f"{name}:0", "--dry-run"),
        ("--shift-by", "-3", "--all-topics", "--execute"),
        ("--to-offset", "99", "--topic", name, "--execute"),
        ("--to-datetime", "2026-01-01T00:00:00.000", "--all-topics", "--export", "--dry-run"),
        ("--to-current", "--all-topics", "--execute"),
    ):
        run(CONSUMER_GROUPS, "--reset-offsets", *of_group, *options, normal=table)
    run(CONSUMER_GROUPS, "--delete-offsets", *of_group, "--topic", f"{name}:1", normal=table)
    run(CONSUMER_GROUPS, "--describe", *of_group, "--offsets", normal=table)
    run(CONSUMER_GROUPS, "--validate-regex", ".*", normal=errors)
    run(CONSUMER_GROUPS, "--delete", *of_group)
    run(CONSUMER_GROUPS, "--delete", *of_group, normal=errors)
    run(CONSUMER_GROUPS, "--describe", *of_group, normal=errors)
    run(CONSUMER_GROUPS, "--list", normal=lambda output: rows_with(name, output))


@contextmanager
def members(run: Both, name: str, protocol: str, records: int) -> Iterator[None]:
    """Yields a member at each broker that has read and committed all records."""
    ours, theirs = run.brokers
    with (
        reading_member(ours, name, protocol, count=records) as first,
        reading_member(theirs, name, protocol, count=records) as second,
    ):
        run.member_ids = (first, second)
        yield


def table(output: str) -> list[list[str]]:
    """Splits lines into words and sorts them: column widths depend on member ids, and the order is undefined."""
    return sorted(line.split() for line in output.splitlines() if line.strip())


def rows_with(name: str, output: str) -> list[list[str]]:
    return [line for line in table(output) if name in line]


def sorted_lines(output: str) -> list[str]:
    return sorted(output.splitlines())


def the_topic_goes(run: Both, name: str) -> None:
    run(TOPICS, "--delete", "--topic", name)
    run(TOPICS, "--list", "--exclude-internal", "--topic", name)


def test_kafkas_tools_print_the_same_against_both_brokers(run: Both) -> None:
    """Runs all steps in one test: each step needs the results of the previous one."""
    name = f"tools-{uuid.uuid4().hex[:8]}"
    topics_are_created_described_listed_and_grown(run, name)
    configs_of_a_topic_are_described_and_altered(run, name)
    configs_of_a_broker_are_described_and_altered(run, name)
    quotas_and_group_configs_are_described_and_altered(run, name)
    offsets_directories_and_leaders(run, name)
    the_topic_goes(run, name)
    records_are_deleted(run, f"{name}-records")
    versions_are_those_of_our_registry_and_the_best_of_them_is_used(run, name)
    for protocol, records in (("classic", 33), ("consumer", 36)):
        for broker in run.brokers:
            produce_numbers(broker, f"{name}-records", range(3), 3)
        groups_are_described_moved_and_deleted(run, f"{name}-records", protocol, records)
    the_topic_goes(run, f"{name}-records")
    assert run.used == ALL_TOOLS
