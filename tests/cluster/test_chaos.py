"""Transactions and their copies stay exactly once while brokers are killed and suspended, and partitions move.

`make chaos` takes twenty steps, `make long` one: partitions move, and a broker is killed meanwhile.
KBROKER_STEPS and KBROKER_SEED set number and choice.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trio

from compat_tests.process import running
from kbroker.names import CONSUMER_OFFSETS, TRANSACTION_STATE
from tests.cluster.conftest import TIMEOUT_SECONDS, RunningCluster, running_cluster
from tests.cluster.stock_clients import NumberedRecords, TransactionalRecords, goes_on, read_all
from tests.cluster.test_reassignment import reassign
from tests.cluster.test_replication import is_without
from tests.cluster.test_transactions import (
    GROUP,
    OPTIONS,
    PARTITIONS,
    SOURCE,
    TARGET,
    both_go_on,
    create_topics,
    read,
    until_written,
)

pytestmark = [pytest.mark.jvm, pytest.mark.slow]

STEPS = int(os.environ.get("KBROKER_STEPS", "1"))
BROKERS = [1, 2, 3, 4]
REPLICAS = 3
NUMBERED = "numbers"
TOPICS = (SOURCE, TARGET, NUMBERED, TRANSACTION_STATE, CONSUMER_OFFSETS)
ACTIONS = ("kill", "suspend", "move")


@pytest.fixture
async def four(zookeeper: str, tmp_path: Path) -> AsyncIterator[RunningCluster]:
    async with running_cluster(zookeeper, tmp_path, len(BROKERS)) as cluster:
        yield cluster


class Chaos:
    """Does one thing after another, and waits after each until the cluster is whole."""

    def __init__(self, cluster: RunningCluster, choose: random.Random, go_on: Callable[[], Awaitable[None]]) -> None:
        self._cluster = cluster
        self._choose = choose
        self._go_on = go_on
        self._wanted: dict[tuple[str, int], list[int]] = {}
        """Replicas of the partitions that have moved."""

    async def until_whole(self) -> None:
        await self._cluster.until_agreed(
            lambda _controller, brokers, topics: (
                brokers == BROKERS
                and set(TOPICS) <= topics.keys()
                and all(
                    isr == sorted(self._wanted.get((name, index), isr)) and len(isr) == REPLICAS
                    for name, partitions in topics.items()
                    for index, (_leader, isr) in partitions.items()
                )
            )
        )

    async def step(self, action: str) -> None:
        victim = self._choose.choice(BROKERS)
        print(f"{action}, broker {victim}")
        if action == "suspend":
            await self._suspend(victim)
            return
        if action == "move":
            await self._begin_moves()
        await self._cluster.brokers[victim].kill()
        await is_without(self._cluster, victim)
        await self._go_on()
        await self._cluster.start(victim)

    async def _suspend(self, victim: int) -> None:
        """Suspends a broker for longer than its session: when it resumes, others lead its partitions."""
        sleeper = self._cluster.brokers.pop(victim)
        sleeper.process.send_signal(signal.SIGSTOP)
        try:
            await is_without(self._cluster, victim)
            await self._go_on()
        finally:
            sleeper.process.send_signal(signal.SIGCONT)
            self._cluster.brokers[victim] = sleeper

    async def _begin_moves(self) -> None:
        """Moves a partition of each topic, also of the internal ones. The next fault comes while they move."""
        keys = [(name, self._choose.randrange(PARTITIONS)) for name in TOPICS]
        moves = {key: self._choose.sample(BROKERS, REPLICAS) for key in keys}
        assert set((await reassign(self._cluster, moves)).values()) == {None}
        self._wanted |= moves


@pytest.mark.long
async def test_transactions_and_moves_survive_whatever_happens(
    four: RunningCluster, java: str, judge_classpath: str, tmp_path: Path
) -> None:
    faulthandler.cancel_dump_traceback_later()  # many steps take longer than the limit of other tests
    seed = int(os.environ.get("KBROKER_SEED", random.SystemRandom().randrange(10**6)))
    print(f"KBROKER_SEED={seed}")
    choose = random.Random(seed)
    await create_topics(four, SOURCE, TARGET, NUMBERED)
    records = TransactionalRecords(four.bootstrap, SOURCE, PARTITIONS)
    numbers = NumberedRecords(four.bootstrap, NUMBERED, PARTITIONS)
    source, log = str(Path(__file__).with_name("Copier.java")), tmp_path / "copier.txt"
    arguments = (four.bootstrap, SOURCE, TARGET, str(PARTITIONS), GROUP)

    async def go_on() -> None:
        await both_go_on(records, four, log.read_text)
        await goes_on(numbers, four)

    with running([java, *OPTIONS, "-cp", judge_classpath, source, *arguments], log):
        with records.running(), numbers.running():
            await go_on()
            chaos = Chaos(four, choose, go_on)
            for action in ["move", *choose.choices(ACTIONS, k=STEPS - 1)]:
                await chaos.step(action)
                await chaos.until_whole()
                await go_on()
        written = await until_written(records, four)
        with trio.move_on_after(TIMEOUT_SECONDS):
            while [len(copies) for copies in await read(four, TARGET)] != [len(written)] * PARTITIONS:
                pass
    assert await read(four, SOURCE) == [written] * PARTITIONS
    assert written == sorted(set(written), key=int)
    assert set(records.committed) <= set(written) <= {*records.committed, *records.unknown}
    assert await read(four, TARGET) == [written] * PARTITIONS, log.read_text()
    assert numbers.failures == []
    assert numbers.acknowledged == numbers.sent
    for index in range(PARTITIONS):
        assert await trio.to_thread.run_sync(read_all, four.bootstrap, NUMBERED, index) == numbers.sent[index]
    assert "Traceback" not in four.log()
