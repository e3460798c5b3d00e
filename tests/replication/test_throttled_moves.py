"""A throttled copy runs at the rate of its throttle: leader and follower hold it together, over real sockets.

The clock of trio and of the throttles is fake. It jumps to the next deadline when every task waits, so the load of the
machine does not count.
"""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from tests.log.batches import make_batch
from tests.replication.cluster import Cluster

RATE = 2_000_000
SECONDS = 15
BATCH_BYTES = 100_000
# Real seconds in which no task runs before the clock jumps: what is sent over loopback has arrived by then.
JUMP_AFTER = 0.003

LEADER = {"leader.replication.throttled.rate": str(RATE)}
FOLLOWER = {"follower.replication.throttled.rate": str(RATE)}


class TrioTime:
    """The time of trio's clock."""

    def __init__(self) -> None:
        self.monotonic = trio.current_time

    def now_ms(self) -> int:
        return int(1000 * trio.current_time())


async def write(cluster: Cluster, topic: str, size: int) -> None:
    async with cluster.client(1) as client:
        for _ in range(size // BATCH_BYTES):
            assert (await client.produce(topic, make_batch(bytes(BATCH_BYTES)))).error_code == 0


async def seconds_to_copy(cluster: Cluster, topics: list[str]) -> float:
    """Starts broker 2, and returns the seconds until it has everything."""
    began = trio.current_time()
    await cluster.start(2)
    cluster.nodes[2].config.set_dynamic(own=FOLLOWER, defaults={})
    for topic in topics:
        end = cluster.nodes[1].replica(topic).log.log_end_offset
        while cluster.nodes[2].replica(topic).log.log_end_offset < end:  # noqa: ASYNC110
            await trio.sleep(0.25)
    return trio.current_time() - began


@pytest.mark.slow
@pytest.mark.parametrize(("side", "partitions"), [("leader", 1), ("follower", 1), ("both", 1), ("both", 3)])
async def test_a_throttled_copy_runs_at_its_rate(
    cluster: Cluster, mock_clock: MockClock, side: str, partitions: int
) -> None:
    mock_clock.autojump_threshold = JUMP_AFTER
    cluster.clock = TrioTime()
    await cluster.start(1)
    cluster.nodes[1].config.set_dynamic(own=LEADER, defaults={})
    topics = [f"orders{number}" for number in range(partitions)]
    throttled = {
        f"{role}_replication_throttled_replicas": "*" for role in ("leader", "follower") if side in (role, "both")
    }
    for topic in topics:
        cluster.add_topic(1, (1, 2), name=topic, isr=(1,), **throttled)
        await write(cluster, topic, RATE * SECONDS // partitions)
    seconds = await seconds_to_copy(cluster, topics)
    # Both may send what the first second allows at once, and a fetch more.
    assert 0.85 * SECONDS < seconds < 1.15 * SECONDS
