"""Consumer groups with Kafka's tools."""

from __future__ import annotations

import pytest

from compat_tests.apache_kafka import JavaTools
from compat_tests.scenarios.groups import Member, create_topic, poll_until, produce_numbers

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
ASSIGNORS = ["RangeAssignor", "RoundRobinAssignor", "StickyAssignor", "CooperativeStickyAssignor"]


def rows(output: str) -> list[dict[str, str]]:
    """Parses a table of the tool into rows by column heading."""
    lines = [line.split() for line in output.splitlines() if line.strip()]
    start = next(index for index, line in enumerate(lines) if line[0] == "GROUP")
    return [dict(zip(lines[start], line, strict=False)) for line in lines[start + 1 :]]


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_the_console_consumer_reads_in_a_group_and_continues(
    bootstrap: str, topic: str, java_tools: JavaTools, assignor: str
) -> None:
    create_topic(bootstrap, topic, 2)
    produce_numbers(bootstrap, topic, range(20), 2)
    strategy = f"partition.assignment.strategy=org.apache.kafka.clients.consumer.{assignor}"
    options = ["--group", topic, "--from-beginning", "--consumer-property", strategy]
    output = java_tools.console_consumer(bootstrap, topic, *options, "--max-messages", "20")
    assert sorted(map(int, output.split())) == list(range(20))
    produce_numbers(bootstrap, topic, range(20, 24), 2)
    output = java_tools.console_consumer(bootstrap, topic, *options, "--max-messages", "4")
    assert sorted(map(int, output.split())) == list(range(20, 24))


def test_the_group_tool_describes_resets_and_deletes(bootstrap: str, topic: str, java_tools: JavaTools) -> None:
    create_topic(bootstrap, topic, 2)
    produce_numbers(bootstrap, topic, range(20), 2)
    common = ["--bootstrap-server", bootstrap]
    member = Member(bootstrap, topic, topic, client_id="test-client")
    poll_until([member], lambda: len(member.seen) >= 20, "it reads everything")
    member.consumer.commit(asynchronous=False)
    produce_numbers(bootstrap, topic, range(2), 2)
    found = rows(java_tools.run(GROUPS, *common, "--describe", "--group", topic))
    lags = {row["PARTITION"]: (row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) for row in found}
    assert lags == {"0": ("10", "11", "1"), "1": ("10", "11", "1")}
    assert {row["CLIENT-ID"] for row in found} == {"test-client"}
    assert {row["HOST"] for row in found} == {"/127.0.0.1"}
    state = rows(java_tools.run(GROUPS, *common, "--describe", "--group", topic, "--state"))
    assert "Stable" in state[0].values()
    member.close()
    reset = ["--reset-offsets", "--to-earliest", "--topic", topic, "--group", topic, "--execute"]
    moved = rows(java_tools.run(GROUPS, *common, *reset))
    assert {row["NEW-OFFSET"] for row in moved} == {"0"}
    assert topic in java_tools.run(GROUPS, *common, "--list").split()
    deleted = ["--delete-offsets", "--group", topic, "--topic", f"{topic}:0"]
    java_tools.run(GROUPS, *common, *deleted)
    found = rows(java_tools.run(GROUPS, *common, "--describe", "--group", topic))
    assert [row["PARTITION"] for row in found if row["CURRENT-OFFSET"] == "0"] == ["1"]
    java_tools.run(GROUPS, *common, "--delete", "--group", topic)
    assert topic not in java_tools.run(GROUPS, *common, "--list").split()
