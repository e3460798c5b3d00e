"""Transactions over three kbrokers with stock clients, while each broker is killed in turn: exactly once, counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from compat_tests.process import running
from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster
from tests.cluster.stock_clients import TransactionalRecords, committed, eventually, read_committed
from tests.cluster.test_replication import all_in_sync, is_without

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

SOURCE = "orders"
TARGET = "copies"
PARTITIONS = 3
GROUP = "copier"
OPTIONS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


async def create_topics(cluster: RunningCluster, *names: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    new = [NewTopic(name, partitions, 3, config={"min.insync.replicas": "2"}) for name in names]
    for future in admin.create_topics(new).values():
        await trio.to_thread.run_sync(future.result, TIMEOUT_SECONDS)


async def copied(cluster: RunningCluster) -> int:
    """Returns the sum of the offsets up to which the source is copied."""
    offsets = await trio.to_thread.run_sync(committed, cluster.bootstrap, SOURCE, PARTITIONS, GROUP)
    return sum(max(offset, 0) for offset in offsets)


async def both_go_on(records: TransactionalRecords, cluster: RunningCluster, log_of: Callable[[], str]) -> None:
    enough = len(records.committed) + 20
    before = await copied(cluster)
    await eventually(lambda: len(records.committed) > enough, lambda: (records.errors, cluster.log()))
    with trio.move_on_after(TIMEOUT_SECONDS):
        while await copied(cluster) <= before:
            pass
        return
    pytest.fail(f"no more copies: {log_of()} {cluster.log()}")


async def read(cluster: RunningCluster, topic: str) -> list[list[bytes]]:
    return [
        await trio.to_thread.run_sync(read_committed, cluster.bootstrap, topic, index) for index in range(PARTITIONS)
    ]


async def until_written(records: TransactionalRecords, cluster: RunningCluster) -> list[bytes]:
    """Returns the committed records of each partition, once all can be read: markers follow the answer to a commit."""
    with trio.move_on_after(TIMEOUT_SECONDS):
        while True:
            first, *others = await read(cluster, SOURCE)
            if set(records.committed) <= set(first) and all(other == first for other in others):
                return first
    pytest.fail(f"not all transactions can be read: {records.errors} {cluster.log()}")


async def test_transactions_and_copies_are_made_exactly_once_while_each_broker_is_killed(
    three: RunningCluster, java: str, judge_classpath: str, tmp_path: Path
) -> None:
    await create_topics(three, SOURCE, TARGET)
    await all_in_sync(three)
    records = TransactionalRecords(three.bootstrap, SOURCE, PARTITIONS)
    source, log = str(Path(__file__).with_name("Copier.java")), tmp_path / "copier.txt"
    arguments = (three.bootstrap, SOURCE, TARGET, str(PARTITIONS), GROUP)
    with running([java, *OPTIONS, "-cp", judge_classpath, source, *arguments], log):
        with records.running():
            for victim in (1, 2, 3):
                await both_go_on(records, three, log.read_text)
                await three.brokers[victim].kill()
                await is_without(three, victim)
                await both_go_on(records, three, log.read_text)
                await three.start(victim)
                await all_in_sync(three)
        written = await until_written(records, three)
        with trio.move_on_after(TIMEOUT_SECONDS):
            while [len(copies) for copies in await read(three, TARGET)] != [len(written)] * PARTITIONS:
                pass
    assert await read(three, SOURCE) == [written] * PARTITIONS
    assert written == sorted(set(written), key=int)
    assert set(records.committed) <= set(written) <= {*records.committed, *records.unknown}
    assert await read(three, TARGET) == [written] * PARTITIONS, log.read_text()
    assert "Traceback" not in three.log()
