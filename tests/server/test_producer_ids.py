"""Producer ids: each one once, blocks fetched only when one is used up, and then once for all who wait."""

from __future__ import annotations

import pytest
import trio

from kbroker.controller.znodes import ProducerIdBlock
from kbroker.server.producer_ids import ProducerIds


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
    assert ids.take() is None
    assert await ids.wait_next() == 0
    assert [ids.take() for _ in range(3)] == [1, 2, None]


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
