"""A controlled shutdown is tried again, as long as replicas that are not in sync may still take over."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from kbroker.controller.image import PartitionState
from kbroker.controller.rules.isr_rules import IsrProposal
from kbroker.controller.rules.topic_rules import NewTopic
from tests.controller.conftest import Sessions
from tests.controller.members import TIMEOUT_SECONDS, Members, open_members
from tests.replication.cluster import eventually

NOBODY_ELSE = "no other replica can lead 1 partitions"
WAITING = "waiting for replicas of 1 partitions"


@pytest.fixture
async def members(sessions: Sessions) -> AsyncIterator[Members]:
    async with open_members(sessions) as opened:
        yield opened


async def propose(members: Members, isr: tuple[int, ...]) -> None:
    """Lets broker 1, which leads partition 0, propose an ISR."""
    state = members.all[1].image.partition("t", 0)
    assert state is not None
    proposal = IsrProposal("t", 0, state.leader_epoch, state.partition_epoch, isr)
    (outcome,) = await members.controller.controller.alter_partitions(
        1, broker_epoch=members.all[1].member.broker_epoch, proposals=[proposal]
    )
    assert isinstance(outcome, PartitionState)
    await members.until_agreed(lambda image: (found := image.partition("t", 0)) is not None and found.isr == isr)


async def start(members: Members, *, retries: int, backoff_ms: int) -> None:
    """Starts broker 1, which leads a partition alone, and broker 2, whose replica is not in sync."""
    for broker_id in (2, 1):
        await members.start(
            broker_id,
            controlled_shutdown_max_retries=str(retries),
            controlled_shutdown_retry_backoff_ms=str(backoff_ms),
        )
    await members.until_agreed(lambda image: len(image.brokers) == 2)
    await members.controller.controller.create_topic(NewTopic("t", assignment={0: (1, 2)}))
    await members.until_agreed(lambda image: "t" in image.topics)
    await propose(members, (1,))


async def test_a_leader_waits_until_a_replica_that_lags_is_in_sync(
    members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await start(members, retries=3, backoff_ms=1000 * TIMEOUT_SECONDS)
    with trio.fail_after(TIMEOUT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(members.all[1].member.shut_down)
            await eventually(lambda: WAITING in caplog.text)
            await propose(members, (1, 2))
    state = members.all[1].image.partition("t", 0)
    assert state is not None
    assert (state.leader, state.isr) == (2, (2,))
    assert NOBODY_ELSE not in caplog.text


async def test_a_shutdown_gives_up_after_its_retries(members: Members, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    await start(members, retries=3, backoff_ms=1)
    await members.all[1].member.shut_down()
    assert caplog.text.count(WAITING) == 2
    assert NOBODY_ELSE in caplog.text


async def test_nobody_waits_for_replicas_of_brokers_that_have_gone(
    members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await start(members, retries=3, backoff_ms=1000 * TIMEOUT_SECONDS)
    with trio.fail_after(TIMEOUT_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(members.all[1].member.shut_down)
            await eventually(lambda: WAITING in caplog.text)
            await members.kill(2)
    assert NOBODY_ELSE in caplog.text
