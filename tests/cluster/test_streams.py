"""Kafka Streams counts words exactly once (v2) on three kbrokers, while each broker is killed in turn."""

from __future__ import annotations

import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from confluent_kafka import Producer

from compat_tests.apache_kafka import JavaTools
from compat_tests.scenarios import test_streams as scenario
from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster
from tests.cluster.stock_clients import read_committed
from tests.cluster.test_replication import TOPIC as LINES
from tests.cluster.test_replication import all_in_sync, is_without
from tests.cluster.test_transactions import create_topics

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

COUNTS = f"{LINES}-counts"
PARTITIONS = 2
TEXT = scenario.LINES[:20]


@contextmanager
def word_count(command: Sequence[str], log: Path) -> Iterator[None]:
    """Runs the word count, which stops at the end of its stdin."""
    with open(log, "wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
    with process:
        try:
            yield
            process.communicate(timeout=2 * TIMEOUT_SECONDS)
            assert process.returncode == 0, log.read_text()
        finally:
            process.kill()


def write(cluster: RunningCluster) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "log_level": 0})
    for number, line in enumerate(TEXT):
        producer.produce(LINES, line.encode(), partition=number % PARTITIONS)
    assert producer.flush(TIMEOUT_SECONDS) == 0


def read_counts(bootstrap: str) -> dict[str, list[int]]:
    """Returns all written counts of each word, in order: a word has its counts in one partition."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for index in range(PARTITIONS):
        for value in read_committed(bootstrap, COUNTS, index):
            name, _, count = value.decode().rpartition(" ")
            found[name].append(int(count))
    return found


def expected(times: int) -> dict[str, list[int]]:
    words = Counter(word for line in TEXT for word in line.split())
    return {
        f"{span} {word}": list(range(1, times * count + 1))
        for span in ("total", "daily")
        for word, count in words.items()
    }


async def until_counted(cluster: RunningCluster, total: int, log_of: Callable[[], str]) -> None:
    """Waits until so many counts can be read."""
    found = 0
    with trio.move_on_after(3 * TIMEOUT_SECONDS):
        while found < total:
            found = sum(map(len, (await trio.to_thread.run_sync(read_counts, cluster.bootstrap)).values()))
        return
    pytest.fail(f"{found} counts of {total}:\n{log_of()}\n{cluster.log()}")


async def test_words_are_counted_exactly_once_while_each_broker_is_killed(
    three: RunningCluster, java: str, judge_classpath: str, streams_jar: Path, tmp_path: Path
) -> None:
    await create_topics(three, LINES, COUNTS, partitions=PARTITIONS)
    await all_in_sync(three)
    source = str(Path(scenario.__file__).with_name("WordCount.java"))
    arguments = [three.bootstrap, LINES, COUNTS, "counter", str(tmp_path / "state")]
    command = JavaTools(java, judge_classpath, tmp_path).with_classes(streams_jar).command(source, arguments)
    log = tmp_path / "word-count.txt"
    each = sum(map(len, expected(1).values()))
    with word_count(command, log):
        for number, victim in enumerate((1, 2, 3)):
            await trio.to_thread.run_sync(write, three)
            # Some of the lines are counted, some are not.
            await until_counted(three, 2 * number * each + each // 2, log.read_text)
            await three.brokers[victim].kill()
            await is_without(three, victim)
            await trio.to_thread.run_sync(write, three)
            await until_counted(three, 2 * (number + 1) * each, log.read_text)
            await three.start(victim)
            await all_in_sync(three)
    assert await trio.to_thread.run_sync(read_counts, three.bootstrap) == expected(6), log.read_text()
    assert "Traceback" not in three.log()
