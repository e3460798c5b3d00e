"""The shards of very many new partitions are loaded in slices: opening their logs takes long."""

from __future__ import annotations

import trio

from kbroker.names import CONSUMER_OFFSETS
from tests.hostile.canary import QUARTER_OF_A_SLICE, turns_beside
from tests.server.conftest import StartBroker, start_broker
from tests.server.handlers.group_harness import GroupBroker
from tests.server.handlers.harness import StillClock

__all__ = ["start_broker"]  # a fixture

NEW = 400


async def test_the_shards_of_added_partitions_are_loaded_in_slices(
    start_broker: StartBroker, nursery: trio.Nursery
) -> None:
    groups = GroupBroker(await start_broker(offsets_topic_num_partitions=50))
    groups.start(nursery)
    await trio.testing.wait_all_tasks_blocked()
    shards = groups.coordinator.shards
    await shards.ensure_topic()
    assert not shards.is_loading, "a topic of the default size is ready at once"
    clock = shards._clock
    assert isinstance(clock, StillClock)
    clock.ticks = QUARTER_OF_A_SLICE
    loaded: list[int] = []

    def count_loaded(*_: object) -> None:
        """Called in the turn that adds the partitions, after the shards were told."""
        loaded.append(sum(driver.is_loaded for driver in shards.drivers.values()))

    groups.broker.controller.add_listener(count_loaded)

    async def add() -> None:
        await groups.broker.controller.create_partitions(CONSUMER_OFFSETS, 50 + NEW)
        await groups.wait_loaded()

    turns = await turns_beside(groups.broker, add)
    assert len(shards.drivers) == 50 + NEW
    assert loaded == [50 + 64]
    assert turns > (NEW - 100) / 5
