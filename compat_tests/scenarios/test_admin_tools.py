"""Kafka's own tools print against kbroker what they print against Apache Kafka.

Only addresses, ids, directories, the wording of errors, and what only a KRaft cluster has may differ. BrokerApiVersions
is the exception: kbroker serves fewer APIs, and some in fewer or older versions. There the ranges must be those that
kbroker's registry has, and what a client would use must be the best that both know. The steps build on each other.
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

# A KRaft cluster with KIP-966 sets this one for all brokers by itself.
KRAFT_ONLY = re.compile(r"min\.insync\.replicas")


@pytest.fixture(autouse=True)
def only_without_bootstrap(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--bootstrap"):
        pytest.skip("compares two brokers")


class Both:
    """Calls run a tool against both brokers, and compare what it prints after `normal`."""

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
        ours, theirs = (self._outcome(each, tool, arguments) for each in self.brokers)
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
def run(tool_server: ToolServer, kbroker_address: str, judge: str, tmp_path: Path) -> Both:
    return Both(tool_server, kbroker_address, judge, tmp_path)


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
    for each in run.brokers:
        produce_numbers(each, name, range(30), 3)
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
    """What BrokerApiVersionsCommand says of an API."""

    key: int
    first: int
    last: int
    usable: int


def served(output: str) -> dict[str, Served]:
    rows = re.findall(r"(\w+)\((\d+)\): (\d+)(?: to (\d+))? \[usable: (\d+)\]", output)
    return {name: Served(*(int(each or numbers[1]) for each in numbers)) for name, *numbers in rows}


def versions_are_those_of_our_registry_and_the_best_of_them_is_used(run: Both, _name: str) -> None:
    ours, theirs = run.outputs(API_VERSIONS)
    assert ours.splitlines()[0] == theirs.splitlines()[0]
    advertised, judged = served(ours), served(theirs)
    registered = {each.key: each.serves for each in APIS if each.is_served()}
    assert {each.key for each in advertised.values()} == registered.keys()
    assert advertised.keys() <= judged.keys()
    for name, each in advertised.items():
        assert (each.first, each.last) == registered[each.key], name
        assert each.usable == min(each.last, judged[name].usable), name
    # Those that Apache Kafka serves and kbroker does not are told as such, not left out.
    missing = judged.keys() - advertised.keys()
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
    """One at each broker, who has read and committed everything."""
    ours, theirs = run.brokers
    with (
        reading_member(ours, name, protocol, count=records) as first,
        reading_member(theirs, name, protocol, count=records) as second,
    ):
        run.member_ids = (first, second)
        yield


def table(output: str) -> list[list[str]]:
    """Words by line, sorted: the width of columns follows the ids of members, and their order is nobody's promise."""
    return sorted(line.split() for line in output.splitlines() if line.strip())


def rows_with(name: str, output: str) -> list[list[str]]:
    return [line for line in table(output) if name in line]


def sorted_lines(output: str) -> list[str]:
    return sorted(output.splitlines())


def the_topic_goes(run: Both, name: str) -> None:
    run(TOPICS, "--delete", "--topic", name)
    run(TOPICS, "--list", "--exclude-internal", "--topic", name)


def test_kafkas_tools_print_against_both_brokers_the_same(run: Both) -> None:
    """One test, because each step needs what the one before it left."""
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
        for each in run.brokers:
            produce_numbers(each, f"{name}-records", range(3), 3)
        groups_are_described_moved_and_deleted(run, f"{name}-records", protocol, records)
    the_topic_goes(run, f"{name}-records")
    assert run.used == ALL_TOOLS
