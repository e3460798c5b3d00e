"""After random failures of brokers and sessions, all members have the image that the tree describes."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
import trio

from kbroker.controller.changes import TopicAdded
from kbroker.controller.image import Image, PartitionState
from kbroker.controller.metadata_loader import read_topics
from kbroker.controller.rules.isr_rules import IsrProposal
from kbroker.controller.rules.reassignment import is_reassigning
from kbroker.controller.rules.topic_rules import NewTopic
from kbroker.controller.trees import znodes
from kbroker.controller.trees.tree import ConnectionLost, SessionLost
from kbroker.errors import Refusal
from tests.controller.conftest import Sessions
from tests.controller.members import TIMEOUT_SECONDS, Members, OneMember, open_members

STEPS = 40


class Chaos:
    def __init__(self, members: Members, seed: int, *, has_moves: bool = False) -> None:
        self.members = members
        self.has_moves = has_moves
        self.random = random.Random(seed)
        self.topics = 0
        self.log: list[str] = []

    async def step(self) -> None:
        steps = [self.start, self.kill, self.expire, self.create, self.create, self.delete, self.configure, self.shrink]
        if self.has_moves:
            steps += [self.move, self.move, self.cancel, self.join_isrs]
        step = self.random.choice(steps)
        self.log.append(step.__name__)
        with suppress(Refusal):  # NOT_CONTROLLER after a change of the controller, or an existing name
            await step()
        for _turn in range(self.random.randrange(30)):
            await trio.lowlevel.checkpoint()

    def anyone(self) -> OneMember:
        return self.random.choice(list(self.members.all.values()))

    async def start(self) -> None:
        absent = [broker_id for broker_id in (1, 2, 3) if broker_id not in self.members.all]
        if absent:
            await self.members.start(self.random.choice(absent))

    async def kill(self) -> None:
        if len(self.members.all) > 1:
            await self.members.kill(self.anyone().id)

    async def expire(self) -> None:
        await self.members.expire(self.anyone().id)

    async def create(self) -> None:
        self.topics += 1
        await self.anyone().controller.create_topic(NewTopic(f"t{self.topics % 7}", self.random.randrange(1, 4), 1))
        one = self.anyone()
        assignment = dict.fromkeys(range(2), tuple(one.image.brokers))
        await one.controller.create_topic(NewTopic(f"r{self.topics % 7}", assignment=assignment))

    async def delete(self) -> None:
        one = self.anyone()
        if one.image.topics:
            await one.controller.delete_topic(name=self.random.choice(list(one.image.topics)))

    async def configure(self) -> None:
        one = self.anyone()
        if one.image.topics:
            topic = self.random.choice(list(one.image.topics))
            await one.controller.alter_topic_configs(topic, {"retention.ms": str(self.random.randrange(100))})

    async def shrink(self) -> None:
        one = self.anyone()
        led = [
            IsrProposal(name, index, partition.leader_epoch, partition.partition_epoch, (one.id,))
            for name, topic in one.image.topics.items()
            for index, partition in enumerate(topic.partitions)
            if partition.leader == one.id
        ]
        for asked in self.members.all.values():
            if asked.member.is_controller and led:
                await asked.controller.alter_partitions(one.id, broker_epoch=one.member.broker_epoch, proposals=led)

    async def move(self) -> None:
        one = self.anyone()
        if one.image.topics and one.image.brokers:  # a member whose session has just expired may know no broker
            name = self.random.choice(list(one.image.topics))
            brokers = self.random.sample(
                sorted(one.image.brokers), self.random.randrange(1, len(one.image.brokers) + 1)
            )
            for asked in list(self.members.all.values()):
                if asked.member.is_controller:
                    await asked.controller.reassign({(name, index): brokers for index in range(2)})

    async def cancel(self) -> None:
        for asked in list(self.members.all.values()):
            if asked.member.is_controller:
                await asked.controller.reassign({(name, index): None for name, index, _ in moving(asked.image)[::2]})

    async def join_isrs(self) -> None:
        """Lets the leaders of moving partitions propose all their replicas, as if all had caught up."""
        for asked in list(self.members.all.values()):
            if asked.member.is_controller:
                for name, index, state in moving(asked.image):
                    leader = self.members.all.get(state.leader)
                    proposal = IsrProposal(name, index, state.leader_epoch, state.partition_epoch, state.replicas)
                    if leader is not None:
                        await asked.controller.alter_partitions(
                            leader.id, broker_epoch=leader.member.broker_epoch, proposals=[proposal]
                        )

    async def finish_moves(self) -> None:
        members = self.members
        with trio.fail_after(TIMEOUT_SECONDS):
            while True:
                await members.until(lambda: is_settled(members) and is_healthy(members.controller.image))
                if not moving(members.controller.image):
                    return
                with suppress(Refusal):
                    await self.join_isrs()
                await trio.lowlevel.checkpoint()

    async def heal(self) -> None:
        for broker_id in (1, 2, 3):
            if broker_id not in self.members.all:
                await self.members.start(broker_id)


def moving(image: Image) -> list[tuple[str, int, PartitionState]]:
    return [
        (name, index, partition)
        for name, topic in image.topics.items()
        for index, partition in enumerate(topic.partitions)
        if is_reassigning(partition)
    ]


def is_healthy(image: Image) -> bool:
    return len(image.brokers) == 3 and all(
        partition.leader in partition.isr and set(partition.isr) <= set(partition.replicas)
        for topic in image.topics.values()
        for partition in topic.partitions
    )


def is_settled(members: Members) -> bool:
    """Whether there is one controller, and it knows all registrations."""
    active = [member for member in members.all.values() if member.member.is_controller]
    epochs = {member.id: member.member.broker_epoch for member in members.all.values()}
    if len(active) != 1 or active[0].image.controller_id != active[0].id:
        return False
    return epochs == {broker.id: broker.epoch for broker in active[0].image.brokers.values()}


@pytest.mark.parametrize("has_moves", [False, True])
@pytest.mark.parametrize("seed", range(6))
async def test_all_members_end_with_the_image_of_the_tree(sessions: Sessions, seed: int, has_moves: bool) -> None:
    async with open_members(sessions) as members:
        await members.start(1)
        chaos = Chaos(members, seed, has_moves=has_moves)
        for _step in range(STEPS):
            await chaos.step()
        await chaos.heal()
        await chaos.finish_moves()
        # More than once: the controller may still be electing leaders after all have agreed for a moment, and on a slow
        # machine its session may expire while the tree is read.
        with trio.fail_after(TIMEOUT_SECONDS):
            while True:
                image = await members.until_agreed(lambda image: is_healthy(image) and is_settled(members))
                controller = members.controller
                with suppress(ConnectionLost, SessionLost):
                    loaded = await read_topics(controller.tree, bytes)
                    node = await controller.tree.get(znodes.CONTROLLER_EPOCH)
                    topics = {
                        change.topic.name: change.topic for change in loaded.changes if isinstance(change, TopicAdded)
                    }
                    if topics == image.topics and controller.member.is_controller:
                        break
        assert controller.id == image.controller_id
        assert loaded.pending_deletions == []
        assert znodes.decode_epoch(node.data) == image.controller_epoch
