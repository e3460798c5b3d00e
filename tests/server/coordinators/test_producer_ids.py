"""Producer ids: each one once, blocks fetched only when one is used up, and then once for all who wait."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from kbroker.controller.trees.tree import ConnectionLost
from kbroker.controller.trees.znodes import ProducerIdBlock
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.server.coordinators.producer_ids import ProducerIds


class Blocks:
    """Gives blocks of three ids, after a switch of tasks; the first `failures` attempts fail."""

    def __init__(self, failures: int = 0) -> None:
        self.given = 0
        self.failures = failures

    async def allocate(self) -> ProducerIdBlock:
        await trio.lowlevel.checkpoint()
        if self.failures:
            self.failures -= 1
            raise OSError("no answer")
        first = 3 * self.given
        self.given += 1
        return ProducerIdBlock(first, first + 2)


async def test_ids_follow_each_other_over_the_ends_of_blocks() -> None:
    blocks = Blocks()
    ids = ProducerIds(blocks.allocate)
    assert [await ids.wait_next() for _ in range(7)] == list(range(7))
    assert blocks.given == 3


async def test_nothing_is_taken_at_once_from_a_used_up_block() -> None:
    ids = ProducerIds(Blocks().allocate)
    assert ids.next_or_none() is None
    assert await ids.wait_next() == 0
    assert [ids.next_or_none() for _ in range(3)] == [1, 2, None]


async def test_those_who_wait_together_share_a_block() -> None:
    blocks = Blocks()
    ids = ProducerIds(blocks.allocate)
    taken: list[int] = []

    async def take() -> None:
        taken.append(await ids.wait_next())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(take)
    assert sorted(taken) == [0, 1, 2]
    assert blocks.given == 1


async def test_more_who_wait_than_a_block_holds_get_the_next_one() -> None:
    blocks = Blocks()
    ids = ProducerIds(blocks.allocate)
    taken: list[int] = []

    async def take() -> None:
        taken.append(await ids.wait_next())

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(take)
    assert sorted(taken) == list(range(8))
    assert blocks.given == 3


async def test_a_failed_attempt_leaves_the_next_one_free() -> None:
    ids = ProducerIds(Blocks(failures=1).allocate)
    with pytest.raises(OSError, match="no answer"):
        await ids.wait_next()
    assert await ids.wait_next() == 0


class Outage:
    """Gives blocks of three ids. Between `begin` and `end` calls wait, as kazoo's do while ZooKeeper is away."""

    def __init__(self) -> None:
        self.blocks = Blocks()
        self._back = trio.Event()
        self._back.set()

    def begin(self) -> None:
        self._back = trio.Event()

    def end(self) -> None:
        self._back.set()

    async def allocate(self) -> ProducerIdBlock:
        await self._back.wait()
        return await self.blocks.allocate()


async def test_a_reserve_lasts_while_no_block_can_be_allocated(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    outage = Outage()
    ids = ProducerIds(outage.allocate)
    nursery.start_soon(ids.keep_reserve)
    await trio.testing.wait_all_tasks_blocked()
    assert ids.next_or_none() == 0  # without a wait: the block was allocated in advance
    await trio.testing.wait_all_tasks_blocked()
    outage.begin()
    assert [ids.next_or_none() for _ in range(6)] == [1, 2, 3, 4, 5, None]
    with pytest.raises(Refusal) as refused:
        await ids.wait_next()
    assert refused.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    outage.end()
    assert await ids.wait_next() == 6


async def test_a_producer_waits_no_longer_than_a_second_for_a_block(autojump_clock: MockClock) -> None:
    outage = Outage()
    outage.begin()
    ids = ProducerIds(outage.allocate)
    with pytest.raises(Refusal) as refused:
        await ids.wait_next()
    assert refused.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    outage.end()
    assert await ids.wait_next() == 0


async def test_a_lost_connection_is_an_error_that_producers_retry() -> None:
    async def allocate() -> ProducerIdBlock:
        raise ConnectionLost("/latest_producer_id_block")

    with pytest.raises(Refusal) as refused:
        await ProducerIds(allocate).wait_next()
    assert refused.value.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
