"""Kafka Streams counts words exactly once, with groups, transactions, changelogs and repartition topics."""

from __future__ import annotations

import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import Any

import confluent_kafka
import pytest

from compat_tests.apache_kafka import JavaTools
from compat_tests.scenarios.groups import DEADLINE_S, create_topic
from compat_tests.scenarios.transactions import committed_offset, read
from compat_tests.tool_server import ToolServer

RESETTER = "org.apache.kafka.tools.StreamsResetter"
LINES = ["in the beginning there was a log", "and the log was partitioned", "and the log had a leader"] * 40
INTERNAL = {f"{store}-{kind}" for store in ("total", "daily") for kind in ("repartition", "changelog")}

Counting = Callable[[], Any]


@pytest.fixture
def counting(bootstrap: str, topic: str, java_tools: JavaTools, streams_jar: Path, tmp_path: Path) -> Counting:
    """Runs the word count from `topic` to `topic`-counts; stops it at the end, unless the test has killed it."""
    create_topic(bootstrap, topic, 2)
    create_topic(bootstrap, f"{topic}-counts", 2)
    source = str(Path(__file__).with_name("WordCount.java"))
    arguments = [bootstrap, topic, f"{topic}-counts", topic, str(tmp_path / "state")]
    command = java_tools.with_classes(streams_jar).command(source, arguments)

    @contextmanager
    def run() -> Iterator[subprocess.Popen[bytes]]:
        with open(tmp_path / "word-count.log", "ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        with process:
            try:
                yield process
                process.communicate(timeout=DEADLINE_S)
                assert process.returncode in (0, -SIGKILL), (tmp_path / "word-count.log").read_text()
            finally:
                process.kill()

    return run


def write(bootstrap: str, topic: str, lines: list[str]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number, line in enumerate(lines):
        producer.produce(topic, line.encode(), partition=number % 2)
    assert producer.flush(DEADLINE_S) == 0


def wait_for_counts(bootstrap: str, topic: str, wanted: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while (found := len(read(bootstrap, f"{topic}-counts", 2))) < wanted:
        assert time.monotonic() < deadline, f"{found} counts of {wanted}"


def counts(bootstrap: str, topic: str) -> dict[str, list[int]]:
    """Returns all written counts of each word, in order."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for value in read(bootstrap, f"{topic}-counts", 2):
        name, _, count = value.rpartition(" ")
        found[name].append(int(count))
    return dict(found)


def expected(lines: list[str]) -> dict[str, list[int]]:
    words = Counter(word for line in lines for word in line.split())
    return {f"{span} {word}": list(range(1, n + 1)) for span in ("total", "daily") for word, n in words.items()}


def test_words_are_counted_exactly_once_through_a_crash_and_a_reset(
    bootstrap: str, topic: str, counting: Counting, tool_server: ToolServer, admin: Any
) -> None:
    write(bootstrap, topic, LINES)
    with counting() as process:
        wait_for_counts(bootstrap, topic, 1)
        process.kill()
    write(bootstrap, topic, LINES)
    wanted = expected(LINES * 2)
    with counting():
        wait_for_counts(bootstrap, topic, sum(map(len, wanted.values())))
    assert counts(bootstrap, topic) == wanted
    assert committed_offset(bootstrap, topic, topic) == len(LINES)
    internal = {f"{topic}-{name}" for name in INTERNAL}
    assert internal <= set(admin.list_topics(timeout=DEADLINE_S).topics)
    options = ["--bootstrap-server", bootstrap, "--application-id", topic, "--input-topics", topic, "--force"]
    tool_server.run(RESETTER, *options)
    deadline = time.monotonic() + DEADLINE_S
    while internal & set(admin.list_topics(timeout=DEADLINE_S).topics):
        assert time.monotonic() < deadline, "its topics are still there"
    assert committed_offset(bootstrap, topic, topic) == 0
