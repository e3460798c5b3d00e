"""The session of the controller expires at each call to the tree in turn, while topics come, move and go.

Whatever was done by then, the brokers agree in the end, and on what the tree has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio

from kbroker.controller.changes import TopicAdded
from kbroker.controller.controller import Controller
from kbroker.controller.metadata_loader import read_topics
from kbroker.controller.rules.topic_rules import NewTopic
from kbroker.controller.trees.tree import ConnectionLost, SessionLost
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode
from tests.controller.cluster.test_cluster_chaos import Chaos, is_healthy, is_settled
from tests.controller.conftest import Sessions
from tests.controller.members import TIMEOUT_SECONDS, Members, open_members
from tests.controller.unreliable_tree import UnreliableTree, open_unreliable

STRIDE = 4
DONE = (ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PARTITIONS)


@pytest.fixture
def zookeeper_address() -> None:
    """Runs these tests on the embedded tree only: its session expires where the test says."""


async def as_controller(members: Members, call: Callable[[Controller], Awaitable[Any]]) -> None:
    """Lets the controller do something. Tries again until it is done, as clients do."""
    with trio.fail_after(TIMEOUT_SECONDS):
        while True:
            for one in list(members.all.values()):
                if one.member.is_controller:
                    try:
                        await call(one.controller)
                    except Refusal as refusal:
                        if refusal.code in DONE:  # an attempt whose answer was lost
                            return
                    else:
                        return
            await trio.sleep(0.001)


@asynccontextmanager
async def three(sessions: Sessions) -> AsyncIterator[tuple[Members, UnreliableTree]]:
    """Runs three members. The controller has the unreliable tree."""
    async with open_members(sessions) as members:
        tree = await open_unreliable(sessions)
        await members.start(1, tree=tree)
        for broker_id in (2, 3):
            await members.start(broker_id)
        await members.until_agreed(lambda image: len(image.brokers) == 3)
        yield members, tree
        for broker_id in list(members.all):
            await members.kill(broker_id)  # the next run has the same tree: nobody is registered there


async def change_everything(members: Members) -> None:
    moving, deleted = (NewTopic(name, assignment={0: (3, 1)}) for name in ("moving", "deleted"))
    await as_controller(members, lambda found: found.create_topic(moving))
    await as_controller(members, lambda found: found.create_topic(deleted))
    await as_controller(members, lambda found: found.create_partitions("moving", 2))
    await as_controller(members, lambda found: found.reassign({("moving", 0): [2, 1]}))
    await members.kill(3)
    await as_controller(members, lambda found: found.delete_topic(name="deleted"))
    await members.start(3)
    await Chaos(members, 0).finish_moves()


async def check(members: Members) -> None:
    with trio.fail_after(TIMEOUT_SECONDS):
        while True:
            image = await members.until_agreed(lambda image: is_healthy(image) and is_settled(members))
            with suppress(ConnectionLost, SessionLost):
                loaded = await read_topics(members.controller.tree, bytes)
                if {change.topic.name: change.topic for change in loaded.changes if isinstance(change, TopicAdded)} == (
                    image.topics
                ):
                    break
    assert list(image.topics) == ["moving"]
    assert image.topics["moving"].partitions[0].replicas == (2, 1)
    assert len(image.topics["moving"].partitions) == 2


@pytest.mark.slow
@pytest.mark.parametrize("first", range(STRIDE))
async def test_the_session_of_the_controller_may_expire_at_any_call(sessions: Sessions, first: int) -> None:
    calls, has_expired = first, True
    while has_expired:
        async with three(sessions) as (members, tree):
            tree.expire_after(calls)
            await change_everything(members)
            await check(members)
            has_expired = not tree.is_to_expire
            await as_controller(members, lambda found: found.delete_topic(name="moving"))
        calls += STRIDE
    assert calls > 10 * STRIDE, "the steps take fewer calls than they did"
