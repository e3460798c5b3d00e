"""A broker whose connection to ZooKeeper is lost for a while: it registers, and applies every control request."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from kbroker.controller.image import PartitionState
from kbroker.controller.registration import generate_broker_id
from kbroker.controller.rules.topic_rules import NewTopic
from kbroker.controller.trees import znodes
from kbroker.protocol.messages import update_metadata
from tests.controller.cluster.test_control_request_handler import request
from tests.controller.conftest import Sessions
from tests.controller.members import Members, open_members
from tests.controller.unreliable_tree import UnreliableTree, open_unreliable


@pytest.fixture
def zookeeper_address() -> None:
    """Runs these tests on the embedded tree only: its connection is lost where the test says."""


@pytest.fixture
async def members(sessions: Sessions) -> AsyncIterator[Members]:
    async with open_members(sessions) as opened:
        yield opened


@pytest.mark.parametrize(
    "call",
    [
        "get /consumers",
        "get /cluster/id",
        "children /config/brokers",
        "children /brokers/topics",
        "write /brokers/ids/2",
        "get /brokers/ids/2",
        "get /brokers/ids/1",
        "children /config/changes",
        "exists /controller",
        "get /controller",
    ],
)
async def test_a_connection_lost_at_the_start_does_not_end_the_broker(
    members: Members, sessions: Sessions, call: str
) -> None:
    await members.start(1)
    tree = await open_unreliable(sessions)
    tree.lose(call, times=2)
    one = await members.start(2, tree=tree)
    await members.until_agreed(lambda image: sorted(image.brokers) == [1, 2])
    assert call in tree.lost
    assert one.member.broker_epoch == (await tree.get(znodes.broker_path(2))).stat.czxid
    await members.controller.controller.create_topic(NewTopic("t", assignment={0: (2,)}))
    await members.until(lambda: "t" in one.image.topics)


@pytest.mark.parametrize("call", ["write /controller", "get /controller_epoch", "children /admin/delete_topics"])
async def test_a_connection_lost_during_the_first_election_does_not_end_the_broker(
    members: Members, sessions: Sessions, call: str
) -> None:
    tree = await open_unreliable(sessions)
    tree.lose(call, times=2)
    one = await members.start(1, tree=tree)
    await members.until(lambda: one.member.is_controller)
    assert call in tree.lost


async def test_a_generated_id_survives_a_lost_connection(sessions: Sessions) -> None:
    tree = await open_unreliable(sessions)
    tree.lose("write /brokers/seqid")
    assert await generate_broker_id(tree, reserved_max_id=1000) > 1000


async def test_a_control_request_waits_until_the_tree_answers(members: Members, sessions: Sessions) -> None:
    """The controller sends each request once: one that is refused here is lost."""
    await members.start(1)
    tree = await open_unreliable(sessions)
    one = await members.start(2, tree=tree)
    await members.until_agreed(lambda image: len(image.brokers) == 2)
    tree.suspend()
    await members.controller.controller.create_topic(NewTopic("t", assignment={0: (2, 1)}))
    async with trio.open_nursery() as nursery:
        tree.calls.clear()
        nursery.start_soon(_resume_after_calls, tree, 3)
        await members.until(lambda: "t" in one.image.topics)
    assert one.image.partition("t", 0) == PartitionState(2, 0, (2, 1), (2, 1), 0, controller_epoch=1)


async def test_the_first_request_of_a_controller_waits_until_the_tree_answers(
    members: Members, sessions: Sessions
) -> None:
    await members.start(1)
    tree = await open_unreliable(sessions)
    one = await members.start(2, tree=tree)
    await members.until_agreed(lambda image: len(image.brokers) == 2)
    tree.suspend()
    tree.calls.clear()
    body = request(one, update_metadata.REQUEST, controller_epoch=7)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.member.control_requests.update_metadata, body)
        await _resume_after_calls(tree, 3)
    assert one.image.controller_epoch == 7


async def _resume_after_calls(tree: UnreliableTree, count: int) -> None:
    while len(tree.calls) < count:
        await trio.lowlevel.checkpoint()
    tree.resume()
