"""Reassignments in a cluster: their nodes, failures in the middle, and the requests that older tools write."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

from kbroker.controller.image import PartitionState
from kbroker.controller.rules.isr_rules import IsrProposal
from kbroker.controller.rules.topic_rules import NewTopic
from kbroker.controller.trees import znodes
from kbroker.protocol.error_codes import ErrorCode
from tests.controller.conftest import Sessions
from tests.controller.members import TIMEOUT_SECONDS, Members, OneMember, open_members
from tests.controller.test_controller import refusal_of


@pytest.fixture
async def four(sessions: Sessions) -> AsyncIterator[Members]:
    async with open_members(sessions) as members:
        for broker_id in (1, 2, 3, 4):
            await members.start(broker_id)
        await members.until_agreed(lambda image: len(image.brokers) == 4)
        await members.controller.controller.create_topic(NewTopic("t", assignment={0: (1, 2), 1: (2, 3)}))
        await members.until_agreed(lambda image: "t" in image.topics)
        yield members


def state_at(one: OneMember, index: int = 0) -> PartitionState:
    found = one.image.partition("t", index)
    assert found is not None
    return found


async def until_everywhere(members: Members, replicas: tuple[int, ...], index: int = 0) -> None:
    """Waits until every member knows these replicas."""
    await members.until(lambda: all(state_at(one, index).replicas == replicas for one in members.all.values()))


async def reassign(members: Members, replicas: list[int] | None, index: int = 0) -> int:
    outcomes = await members.controller.controller.reassign({("t", index): replicas})
    outcome = outcomes["t", index]
    return 0 if outcome is None else outcome.code


async def join_isr(members: Members, *joined: int, index: int = 0) -> None:
    """Lets the leader propose brokers for the ISR, as it does when they have caught up."""
    controller = members.controller
    state = state_at(controller, index)
    proposal = IsrProposal("t", index, state.leader_epoch, state.partition_epoch, (*state.isr, *joined))
    epoch = members.all[state.leader].member.broker_epoch
    (outcome,) = await controller.controller.alter_partitions(state.leader, broker_epoch=epoch, proposals=[proposal])
    assert isinstance(outcome, PartitionState)


async def topic_node(members: Members) -> Any:
    return json.loads((await members.controller.tree.get(znodes.topic_path("t"))).data)


async def state_node(members: Members, index: int = 0) -> Any:
    return json.loads((await members.controller.tree.get(znodes.state_path("t", index))).data)


async def test_the_nodes_of_a_move_are_those_of_kafka(four: Members) -> None:
    before = await topic_node(four)
    assert await reassign(four, [3, 4]) == 0
    await until_everywhere(four, (3, 4, 1, 2))
    assert await topic_node(four) == before | {
        "version": 3,
        "partitions": {"0": [3, 4, 1, 2], "1": [2, 3]},
        "adding_replicas": {"0": [3, 4]},
        "removing_replicas": {"0": [1, 2]},
    }
    assert await state_node(four) == {
        "version": 1,
        "leader": 1,
        "leader_epoch": 1,
        "controller_epoch": 1,
        "isr": [1, 2],
    }

    await join_isr(four, 3)
    await join_isr(four, 4)
    await until_everywhere(four, (3, 4))
    assert await topic_node(four) == before | {"partitions": {"0": [3, 4], "1": [2, 3]}}
    assert await state_node(four) == {
        "version": 1,
        "leader": 3,
        "leader_epoch": 2,
        "controller_epoch": 1,
        "isr": [3, 4],
    }
    assert all(state_at(one).leader == 3 for one in four.all.values())


async def test_a_move_can_be_cancelled(four: Members) -> None:
    assert await reassign(four, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert await reassign(four, [3, 4]) == 0
    await join_isr(four, 3)
    assert await reassign(four, None) == 0
    await until_everywhere(four, (1, 2))
    assert (await topic_node(four))["adding_replicas"] == {}
    assert (await state_node(four))["isr"] == [1, 2]
    assert await reassign(four, None) == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


async def test_a_smaller_replication_factor_is_cancelled_for_every_holder(four: Members) -> None:
    await reassign(four, [1, 2, 3])
    await join_isr(four, 3)
    await until_everywhere(four, (1, 2, 3))
    await four.kill(3)
    await four.until(lambda: state_at(four.controller).isr == (1, 2))
    assert await reassign(four, [1, 3]) == 0
    await four.until(lambda: state_at(four.all[2]).removing_replicas == (2,))
    assert await reassign(four, None) == 0
    await four.until(lambda: not any(state_at(four.all[broker_id]).removing_replicas for broker_id in (1, 2)))


async def test_a_new_controller_goes_on_with_a_move(four: Members) -> None:
    assert four.controller.id == 1
    assert await reassign(four, [3, 4], index=1) == 0
    await until_everywhere(four, (3, 4, 2), index=1)
    epoch = state_at(four.all[2], 1).leader_epoch
    await four.kill(1)
    await four.until(lambda: any(one.member.is_controller for one in four.all.values()))
    await four.until(lambda: all(state_at(one, 1).leader_epoch > epoch for one in four.all.values()))
    assert state_at(four.controller, 1).adding_replicas == (4,)
    await join_isr(four, 4, index=1)
    await until_everywhere(four, (3, 4), index=1)
    assert (await topic_node(four))["removing_replicas"] == {}


async def test_a_new_controller_finishes_a_move_that_was_due(four: Members) -> None:
    """The previous controller died after the ISR was written, before it could finish."""
    assert await reassign(four, [2, 3]) == 0
    await until_everywhere(four, (2, 3, 1))
    tree = four.all[4].tree
    path = znodes.state_path("t", 0)
    state = json.loads((await tree.get(path)).data)
    await four.kill(1)
    await tree.set(path, json.dumps(state | {"leader": 2, "isr": [2, 3]}).encode())
    await until_everywhere(four, (2, 3))
    assert state_at(four.controller).leader == 2


async def test_a_move_waits_for_a_broker_that_died(four: Members) -> None:
    assert await reassign(four, [1, 4]) == 0
    await until_everywhere(four, (1, 4, 2))
    await four.kill(4)
    await four.until(lambda: 4 not in four.controller.image.brokers)
    assert state_at(four.controller).adding_replicas == (4,)
    assert await reassign(four, [1, 4]) == ErrorCode.INVALID_REPLICA_ASSIGNMENT, "as in Kafka, 4 is down"
    await four.start(4)
    await four.until(lambda: 4 in four.controller.image.brokers)
    await join_isr(four, 4)
    await until_everywhere(four, (1, 4))


async def test_partitions_are_not_added_to_a_topic_that_moves(four: Members) -> None:
    await reassign(four, [3, 4])
    code = await refusal_of(four.controller.controller.create_partitions("t", 3))
    assert code == ErrorCode.REASSIGNMENT_IN_PROGRESS


async def test_only_the_controller_reassigns(four: Members) -> None:
    assert await refusal_of(four.all[2].controller.reassign({("t", 0): [3]})) == ErrorCode.NOT_CONTROLLER


# Requests of older tools


def moves_json(**replicas: list[int]) -> bytes:
    partitions = [
        {"topic": name.split("_")[0], "partition": int(name.split("_")[1]), "replicas": brokers}
        for name, brokers in replicas.items()
    ]
    return json.dumps({"version": 1, "partitions": partitions}).encode()


async def until_node(members: Members, path: str, data: bytes | None) -> None:
    with trio.fail_after(TIMEOUT_SECONDS):
        while True:
            (node,) = await members.controller.tree.get_many([path])
            found = None if node is None else json.loads(node.data)
            if found == (None if data is None else json.loads(data)):
                return
            await trio.sleep(0.01)


async def test_moves_of_old_tools_stay_in_their_node_until_they_end(four: Members) -> None:
    tree = four.all[4].tree
    requested = moves_json(t_0=[1, 3], t_1=[3, 2], t_7=[1], x_0=[1])
    await tree.create(znodes.REASSIGN_PARTITIONS, requested)
    # The order of t-1 changes at once, the unknown partitions are refused.
    await until_node(four, znodes.REASSIGN_PARTITIONS, moves_json(t_0=[1, 3]))
    await until_everywhere(four, (3, 2), index=1)
    await join_isr(four, 3)
    await until_node(four, znodes.REASSIGN_PARTITIONS, None)
    await until_everywhere(four, (1, 3))
    await tree.create(znodes.REASSIGN_PARTITIONS, moves_json(t_0=[4]))
    await until_everywhere(four, (4, 1, 3))


async def test_a_newer_request_replaces_the_move_of_an_old_tool(four: Members) -> None:
    await four.all[4].tree.create(znodes.REASSIGN_PARTITIONS, moves_json(t_0=[3, 4]))
    await until_everywhere(four, (3, 4, 1, 2))
    assert await reassign(four, None) == 0
    await until_node(four, znodes.REASSIGN_PARTITIONS, None)
    await until_everywhere(four, (1, 2))


async def test_the_controller_skips_a_bad_node(four: Members, caplog: pytest.LogCaptureFixture) -> None:
    tree = four.all[4].tree
    await tree.create(znodes.REASSIGN_PARTITIONS, b'{"version":1,"partitions":[{"topic":"t"}]}')
    # Processed after it: the first node stays, and the controller goes on.
    await tree.create(znodes.PREFERRED_REPLICA_ELECTION, b"nonsense")
    with trio.fail_after(TIMEOUT_SECONDS):
        while await tree.exists(znodes.PREFERRED_REPLICA_ELECTION) is not None:  # noqa: ASYNC110
            await trio.sleep(0.01)
    assert caplog.text.count(f"Ignored {znodes.PREFERRED_REPLICA_ELECTION}") == 1
    assert f"Ignored {znodes.REASSIGN_PARTITIONS}" in caplog.text
    await tree.set(znodes.REASSIGN_PARTITIONS, moves_json(t_0=[2, 1]))
    await until_everywhere(four, (2, 1))
    await until_node(four, znodes.REASSIGN_PARTITIONS, None)


async def test_old_tools_elect_preferred_leaders(four: Members) -> None:
    assert await reassign(four, [2, 1]) == 0
    assert state_at(four.controller).leader == 1
    partitions = [{"topic": "t", "partition": 0}, {"topic": "x", "partition": 0}]
    data = json.dumps({"version": 1, "partitions": partitions}).encode()
    await four.all[4].tree.create(znodes.PREFERRED_REPLICA_ELECTION, data)
    await four.until(lambda: all(state_at(one).leader == 2 for one in four.all.values()))
    await until_node(four, znodes.PREFERRED_REPLICA_ELECTION, None)
