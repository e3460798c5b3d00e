"""Very many fetches that wait: dropped, woken by one Produce, or due at the same time."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import trio
import trio.testing

from kbroker.replication.fetch_waiters import FetchWaiters, FetchWakeups
from kbroker.server.context import Context
from kbroker.server.wire.connection_limits import ConnectionLimits
from kbroker.server.wire.deadlines import Deadlines
from kbroker.testing.running_broker import RunningBroker
from tests.broker.batches import make_batch
from tests.broker.conftest import Connect, broker, client, connect_to, data_dir, start_broker
from tests.broker.wire import Client, fetch_members
from tests.server.handlers.harness import StillClock

__all__ = ["broker", "client", "connect_to", "data_dir", "start_broker"]  # fixtures

PARKED = ConnectionLimits().max_in_flight - 1  # by one connection: with more, it is not read


async def park(consumer: Client, count: int) -> None:
    for _ in range(count):
        await consumer.send("Fetch", 11, **fetch_members({("t", 0): 0}, max_wait_ms=1_000_000))


def context_of(broker: RunningBroker) -> Context:
    assert broker._context is not None
    return broker._context


async def wait_until_parked(broker: RunningBroker, count: int) -> None:
    partition = context_of(broker).partitions.get("t", 0)
    assert partition is not None
    with trio.fail_after(30):
        while len(partition.fetch_waiters) != count:
            await trio.lowlevel.checkpoint()


async def test_dropped_fetches_leave_nothing_in_the_heap(
    broker: RunningBroker, client: Client, connect_to: Connect
) -> None:
    await client.create_topic("t")
    deadlines = context_of(broker).deadlines
    before = len(deadlines)
    for _ in range(3):
        consumer = await connect_to(broker)
        await park(consumer, PARKED)
        await wait_until_parked(broker, PARKED)
        assert len(deadlines) >= PARKED
        await consumer.stream.aclose()
        await wait_until_parked(broker, 0)
        assert len(deadlines) <= before + 200


async def test_a_produce_that_wakes_many_fetches_is_answered_before_most_of_them(
    broker: RunningBroker, client: Client, connect_to: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_topic("t")
    consumer = await connect_to(broker)
    await park(consumer, PARKED)
    await wait_until_parked(broker, PARKED)
    deadlines = context_of(broker).deadlines
    waiting_when_answered = -1
    call_due = Deadlines._call_due

    def note(self: Deadlines) -> None:
        nonlocal waiting_when_answered
        if waiting_when_answered < 0:
            waiting_when_answered = sum(deadline.callback is not None for _, _, deadline in self._heap)
        call_due(self)

    monkeypatch.setattr(Deadlines, "_call_due", note)
    assert (await client.produce("t", make_batch(b"v"))).error_code == 0
    for _ in range(PARKED):
        answer = (await consumer.receive()).responses[0].partitions[0]
        assert (answer.error_code, len(answer.records)) == (0, len(make_batch(b"v")))
    assert waiting_when_answered >= PARKED - 64, "the run of the Produce has completed too many fetches"
    assert len(deadlines) <= 200


async def test_fetches_that_are_due_at_once_are_completed_in_slices(
    nursery: trio.Nursery, mock_clock: trio.testing.MockClock
) -> None:
    deadlines = Deadlines()
    nursery.start_soon(deadlines.run)
    await trio.testing.wait_all_tasks_blocked()
    called: list[int] = []
    in_turn: list[int] = []

    def complete(number: int) -> None:
        mock_clock.jump(0.001)  # what it costs
        called.append(number)

    async def canary() -> None:
        while len(called) < 1000:
            in_turn.append(len(called))
            await trio.lowlevel.checkpoint()

    for number in range(1000):
        deadlines.add(1, lambda number=number: complete(number))  # type: ignore[misc]
    mock_clock.jump(1)
    await canary()
    assert called == list(range(1000))
    assert max(after - before for before, after in itertools.pairwise(in_turn)) <= 8
    nursery.cancel_scope.cancel()


class Waiter:
    """Fetch that waits for `missing` bytes of one partition."""

    def __init__(self, waiters: FetchWaiters, missing: int, done: list[Waiter]) -> None:
        self.missing = missing
        self._waiters = waiters
        self._done = done
        waiters.add(self)

    def on_visible(self, size: int) -> None:
        self.missing -= size
        if self.missing <= 0:
            self.finish()

    def finish(self) -> None:
        self._waiters.discard(self)
        self._done.append(self)


MANY = 5_000


@pytest.fixture
async def waiters(nursery: trio.Nursery) -> FetchWaiters:
    """The clock advances with each reading: four waiters are one slice."""
    clock = StillClock()
    clock.ticks = 0.0005
    wakeups = FetchWakeups(clock)
    nursery.start_soon(wakeups.run)
    return FetchWaiters(wakeups)


async def completed_in_turns(done: list[Waiter], count: int) -> list[int]:
    """Lets the broker run until `count` waiters are done. Returns how many were done in each turn of the loop."""
    turns = [len(done)]
    with trio.fail_after(30):
        while len(done) < count:
            await trio.lowlevel.checkpoint()
            turns.append(len(done))
    return [after - before for before, after in itertools.pairwise(turns)]


@pytest.mark.parametrize(
    "wake", [lambda waiters: waiters.on_visible(1), FetchWaiters.finish_all], ids=["Produce", "end of the role"]
)
async def test_very_many_fetches_of_one_partition_are_handed_over_in_one_step_and_woken_in_slices(
    waiters: FetchWaiters, wake: Callable[[FetchWaiters], None]
) -> None:
    done: list[Waiter] = []
    for _ in range(MANY):
        Waiter(waiters, 1, done)
    wake(waiters)
    assert not done, "the request that wakes them must not pay for them"
    assert len(waiters) == MANY
    assert max(await completed_in_turns(done, MANY)) <= 12  # two slices
    assert len(waiters) == 0


async def test_fetches_that_wait_for_more_bytes_count_those_that_arrive_while_others_are_woken(
    waiters: FetchWaiters,
) -> None:
    done: list[Waiter] = []
    for _ in range(MANY):
        Waiter(waiters, 3, done)
    waiters.on_visible(1)
    await completed_in_turns(done, 0)
    for _ in range(100):  # some have the first byte, the others not
        await trio.lowlevel.checkpoint()
    late = [Waiter(waiters, 2, done) for _ in range(100)]
    waiters.on_visible(1)
    await trio.testing.wait_all_tasks_blocked()
    assert not done
    assert {waiter.missing for waiter in late} == {1}
    waiters.on_visible(1)
    await completed_in_turns(done, MANY + 100)
    assert {waiter.missing for waiter in done} == {0}


async def test_a_fetch_that_is_dropped_before_its_turn_is_not_woken(waiters: FetchWaiters) -> None:
    done: list[Waiter] = []
    parked = [Waiter(waiters, 1, done) for _ in range(MANY)]
    waiters.on_visible(1)
    for waiter in parked[: MANY // 2]:
        waiters.discard(waiter)
    await completed_in_turns(done, MANY // 2)
    await trio.testing.wait_all_tasks_blocked()
    assert set(done) == set(parked[MANY // 2 :])


async def test_cancelled_deadlines_leave_the_heap_when_those_beside_them_were_called(
    nursery: trio.Nursery, mock_clock: trio.testing.MockClock
) -> None:
    deadlines = Deadlines()
    nursery.start_soon(deadlines.run)
    await trio.testing.wait_all_tasks_blocked()
    called: list[int] = []
    late = [deadlines.add(1000, lambda: None) for _ in range(400)]
    for number in range(600):
        deadlines.add(1, lambda number=number: called.append(number))  # type: ignore[misc]
    for deadline in late:
        deadline.cancel()
    assert len(deadlines) == 1000  # less than half of them are cancelled
    mock_clock.jump(1)
    await trio.testing.wait_all_tasks_blocked()
    assert called == list(range(600))
    assert len(deadlines) == 0
    nursery.cancel_scope.cancel()
