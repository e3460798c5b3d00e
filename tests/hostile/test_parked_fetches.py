"""Very many fetches that wait: dropped, woken by one Produce, or due at the same time."""

from __future__ import annotations

import itertools

import pytest
import trio
import trio.testing

from kbroker.server.context import Context
from kbroker.server.wire.connection_limits import ConnectionLimits
from kbroker.server.wire.deadlines import Deadlines
from kbroker.testing.running_broker import RunningBroker
from tests.broker.batches import make_batch
from tests.broker.conftest import Connect, broker, client, connect_to, data_dir, start_broker
from tests.broker.wire import Client, fetch_members

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
