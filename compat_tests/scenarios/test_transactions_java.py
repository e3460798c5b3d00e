"""Transactions of the Java client, whose epoch grows with each transaction (KIP-890), and Kafka's transactions tool."""

from __future__ import annotations

import pytest

from compat_tests.scenarios.groups import create_topic, produce_numbers
from compat_tests.scenarios.transactions import committed_offset, read, transactional_producer
from compat_tests.tool_server import ToolServer

SCENARIO = "TransactionScenario"
TOOL = "org.apache.kafka.tools.TransactionsCommand"


def rows(output: str) -> list[dict[str, str]]:
    lines = [[cell.strip() for cell in line.split("\t")] for line in output.splitlines() if "\t" in line]
    return [dict(zip(lines[0], line, strict=False)) for line in lines[1:]]


def test_committed_records_are_read_and_aborted_ones_are_not(
    bootstrap: str, topic: str, tool_server: ToolServer
) -> None:
    create_topic(bootstrap, topic, 2)
    tool_server.run(SCENARIO, "write", bootstrap, topic, topic, "commit:3", "abort:2", "commit:4", "abort:0", "open:1")
    assert sorted(read(bootstrap, topic, 2)) == sorted(f"commit{number}" for number in (0, 1, 2, 5, 6, 7, 8))


def test_a_zombie_is_fenced(bootstrap: str, topic: str, tool_server: ToolServer) -> None:
    create_topic(bootstrap, topic, 1)
    assert tool_server.run(SCENARIO, "fence", bootstrap, topic, topic).split() == ["fenced"]
    assert read(bootstrap, topic) == ["second"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_every_number_is_copied_once(bootstrap: str, topic: str, tool_server: ToolServer, protocol: str) -> None:
    source, target = f"{topic}-in", f"{topic}-out"
    create_topic(bootstrap, source, 2)
    create_topic(bootstrap, target, 2)
    produce_numbers(bootstrap, source, range(23), 2)
    output = tool_server.run(SCENARIO, "copy", bootstrap, source, target, topic, protocol, "23")
    assert output.split() == ["23"]
    assert sorted(map(int, read(bootstrap, target, 2))) == list(range(23))
    assert committed_offset(bootstrap, topic, source) == 12


def test_the_tool_lists_describes_and_aborts(bootstrap: str, topic: str, tool_server: ToolServer) -> None:
    create_topic(bootstrap, topic, 1)
    producer = transactional_producer(bootstrap, topic)
    producer.begin_transaction()
    producer.produce(topic, b"hangs")
    assert producer.flush(30) == 0
    command = ["--bootstrap-server", bootstrap]
    listed = rows(tool_server.run(TOOL, *command, "list"))
    assert [row["TransactionState"] for row in listed if row["TransactionalId"] == topic] == ["Ongoing"]
    [described] = rows(tool_server.run(TOOL, *command, "describe", "--transactional-id", topic))
    assert (described["ProducerEpoch"], described["TopicPartitions"]) == ("0", f"{topic}-0")
    of_partition = ["--topic", topic, "--partition", "0"]
    [found] = rows(tool_server.run(TOOL, *command, "describe-producers", *of_partition))
    assert (found["ProducerId"], found["CurrentTransactionStartOffset"]) == (described["ProducerId"], "0")
    tool_server.run(TOOL, *command, "abort", *of_partition, "--start-offset", "0")
    [found] = rows(tool_server.run(TOOL, *command, "describe-producers", *of_partition))
    assert found["CurrentTransactionStartOffset"] == "None"
    assert read(bootstrap, topic) == []
    producer.abort_transaction(30)
