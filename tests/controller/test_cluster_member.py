"""Brokers of one cluster: registration, who is the controller, and what all of them know, on both trees."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial

import pytest
import trio
import trio.testing

from kbroker.config import Endpoint
from kbroker.controller import znodes
from kbroker.controller.changes import TopicAdded
from kbroker.controller.claims import ControllerSeat, claim_broker_id, claim_controller, read_controller
from kbroker.controller.event_queue import Event
from kbroker.controller.feed import ensure_layout
from kbroker.controller.image import NO_LEADER, Broker, Image, Partition
from kbroker.controller.isr_rules import IsrProposal
from kbroker.controller.topic_rules import NewTopic
from kbroker.controller.tree import Create, Tree
from kbroker.errors import Refusal, UserError
from kbroker.names import random_uuid
from kbroker.protocol.error_codes import ErrorCode
from tests.controller.conftest import Sessions, ZooKeeperSessions
from tests.controller.members import Members, open_members
from tests.controller.test_controller import refusal_of
from tests.controller.test_zookeeper_tree import proxied

HERE = Broker(1, -1, (Endpoint("PLAINTEXT", "here", 9092),))
ELSEWHERE = Broker(1, -1, (Endpoint("PLAINTEXT", "elsewhere", 9092),))


@pytest.fixture
async def members(sessions: Sessions) -> AsyncIterator[Members]:
    async with open_members(sessions) as opened:
        yield opened


@pytest.fixture
async def three(members: Members) -> Members:
    for broker_id in (1, 2, 3):
        await members.start(broker_id)
    await members.until_agreed(lambda image: len(image.brokers) == 3)
    return members


def partition_of(image: Image, topic: str = "t", index: int = 0) -> Partition:
    found = image.partition(topic, index)
    assert found is not None
    return found


def has_topic(name: str, image: Image) -> bool:
    return name in image.topics


async def create(members: Members, replicas: tuple[int, ...] = (1, 2, 3), topic: str = "t") -> Partition:
    await members.controller.controller.create_topic(NewTopic(topic, assignment={0: replicas}))
    return partition_of(await members.until_agreed(lambda image: topic in image.topics), topic)


async def test_the_first_broker_is_the_controller_and_all_know_it(three: Members) -> None:
    image = await three.until_agreed()
    assert (image.controller_id, image.controller_epoch) == (1, 1)
    assert [each.member.is_controller for each in three.all.values()] == [True, False, False]
    for one in three.all.values():
        node = await one.tree.get(znodes.broker_path(one.id))
        assert node.stat.ephemeral_owner == one.tree.session_id
        assert one.member.broker_epoch == node.stat.czxid
    assert len({one.image.cluster_id for one in three.all.values()}) == 1


async def test_a_topic_is_known_to_all_with_the_same_leader(three: Members) -> None:
    topic = await three.controller.controller.create_topic(NewTopic("t", 6, 3, configs={"retention.ms": "5"}))
    image = await three.until_agreed(lambda image: "t" in image.topics)
    assert image.topics["t"] == topic
    assert {each.leader for each in topic.partitions} == {1, 2, 3}


async def test_what_only_the_controller_may_do_is_refused_elsewhere(three: Members) -> None:
    other = three.all[2].controller
    assert await refusal_of(other.create_topic(NewTopic("t"))) == ErrorCode.NOT_CONTROLLER
    assert await refusal_of(other.delete_topic(name="t")) == ErrorCode.NOT_CONTROLLER
    assert await refusal_of(other.create_partitions("t", 3)) == ErrorCode.NOT_CONTROLLER
    assert await refusal_of(other.elect(None)) == ErrorCode.NOT_CONTROLLER
    assert await refusal_of(other.shut_down(3)) == ErrorCode.NOT_CONTROLLER


async def test_a_deleted_topic_is_gone_everywhere_and_its_name_is_free(three: Members) -> None:
    await create(three)
    await three.controller.controller.delete_topic(name="t")
    await three.until_agreed(lambda image: "t" not in image.topics)
    again = await three.controller.controller.create_topic(NewTopic("t", 1, 3))
    image = await three.until_agreed(lambda image: "t" in image.topics)
    assert image.topics["t"].id == again.id


async def test_added_partitions_are_known_to_all(three: Members) -> None:
    await create(three)
    grown = await three.controller.controller.create_partitions("t", 4)
    image = await three.until_agreed(lambda image: len(image.topics["t"].partitions) == 4)
    assert image.topics["t"] == grown


async def test_configs_may_be_changed_at_any_broker_and_all_follow(three: Members) -> None:
    await create(three)
    await three.all[3].controller.alter_topic_configs("t", {"retention.ms": "7"})
    await three.all[2].controller.update_entity_configs("users/alice", lambda _: {"producer_byte_rate": "5.0"})
    image = await three.until_agreed(lambda image: image.topics["t"].configs == {"retention.ms": "7"})
    image = await three.until_agreed(lambda image: "users/alice" in image.entity_configs)
    assert image.configs_of("users/alice") == {"producer_byte_rate": "5.0"}


async def test_two_brokers_that_change_one_config_node_lose_nothing(three: Members) -> None:
    await create(three)

    async def add(broker_id: int, name: str, text: str) -> None:
        await three.all[broker_id].controller.update_topic_configs("t", lambda before: {**before, name: text})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(add, 2, "retention.ms", "7")
        nursery.start_soon(add, 3, "segment.bytes", "1048576")
    wanted = {"retention.ms": "7", "segment.bytes": "1048576"}
    await three.until_agreed(lambda image: image.topics["t"].configs == wanted)


async def test_another_leader_is_elected_when_one_dies(three: Members) -> None:
    await create(three, (2, 3, 1))
    await three.kill(2)
    image = await three.until_agreed(lambda image: partition_of(image).leader == 3)
    assert partition_of(image) == Partition(3, 1, (3, 1), (2, 3, 1), 1, controller_epoch=1)
    state = await three.all[1].tree.get(znodes.state_path("t", 0))
    assert znodes.decode_state(state.data, state.stat.version, replicas=(2, 3, 1)) == partition_of(image)


async def test_a_follower_that_dies_leaves_the_isr_at_once(three: Members) -> None:
    await create(three, (2, 3, 1))
    await three.kill(3)
    image = await three.until_agreed(lambda image: partition_of(image).isr == (2, 1))
    assert (partition_of(image).leader, partition_of(image).leader_epoch) == (2, 1)


async def test_a_partition_whose_isr_is_away_waits_for_it(three: Members) -> None:
    await create(three, (3,))
    await three.kill(3)
    image = await three.until_agreed(lambda image: partition_of(image).leader == NO_LEADER)
    assert partition_of(image).isr == (3,)
    await three.start(3)
    image = await three.until_agreed(lambda image: partition_of(image).leader == 3)
    assert partition_of(image).leader_epoch == 2


async def test_an_unclean_leader_is_elected_only_where_the_topic_allows_it(three: Members) -> None:
    allowed = {"unclean.leader.election.enable": "true"}
    await three.controller.controller.create_topic(NewTopic("t", assignment={0: (2, 3)}, configs=allowed))
    await create(three, (2, 3), "strict")
    for topic in ("t", "strict"):
        await three.controller.controller.alter_partitions(
            2, three.all[2].member.broker_epoch, [IsrProposal(topic, 0, 0, 0, (2,))]
        )
    await three.kill(2)
    image = await three.until_agreed(lambda image: partition_of(image, "strict").leader == NO_LEADER)
    assert (partition_of(image).leader, partition_of(image).isr) == (3, (3,))
    assert partition_of(image, "strict").isr == (2,)
    outcomes = await three.controller.controller.elect([("strict", 0)], is_unclean=True)
    assert outcomes == {("strict", 0): None}
    await three.until_agreed(lambda image: partition_of(image, "strict").leader == 3)


async def test_another_controller_follows_one_that_dies_and_knows_what_it_knew(three: Members) -> None:
    before = await create(three)
    await three.kill(1)
    await three.until(lambda: any(each.member.is_controller for each in three.all.values()))
    image = await three.until_agreed(lambda image: 1 not in image.brokers and partition_of(image).leader == 2)
    assert image.controller_epoch == 2
    assert partition_of(image) == before._replace(
        leader=2, isr=(2, 3), leader_epoch=1, partition_epoch=1, controller_epoch=2
    )
    await three.controller.controller.create_topic(NewTopic("u", 2, 2))
    await three.until_agreed(lambda image: "u" in image.topics)


async def test_a_broker_that_comes_later_knows_everything(members: Members) -> None:
    await members.start(1)
    await create(members, (1,))
    await members.controller.controller.update_entity_configs("groups/g", lambda _: {"consumer.x": "1"})
    await members.start(2)
    image = await members.until_agreed(lambda image: len(image.brokers) == 2)
    assert partition_of(image).leader == 1


async def test_a_broker_that_starts_leads_nothing_until_it_is_told_to(three: Members) -> None:
    """What the tree says of it is of an earlier life: the controller may be about to give it to somebody else."""
    await create(three, (3,))
    await three.kill(3)
    await three.until_agreed(lambda image: 3 not in image.brokers)
    again = await three.start(3)
    (loaded,) = [each.topic for each in again.recorder.changes if isinstance(each, TopicAdded)]
    assert loaded.partitions[0].leader == NO_LEADER
    await three.until_agreed(lambda image: partition_of(image).leader == 3)


async def test_a_bounced_broker_has_failed_and_then_come(three: Members, sessions: Sessions) -> None:
    await create(three, (2, 3, 1))
    await create(three, (2,), "alone")
    epoch = three.all[2].member.broker_epoch
    await three.expire(2)
    await three.until(lambda: three.all[2].member.broker_epoch > epoch)
    image = await three.until_agreed(lambda image: partition_of(image).leader == 3)
    assert partition_of(image).isr == (3, 1)
    image = await three.until_agreed(lambda image: partition_of(image, "alone").leader == 2)
    assert partition_of(image, "alone").leader_epoch == 2
    assert three.controller.image.brokers[2].epoch == three.all[2].member.broker_epoch


async def test_a_controller_whose_session_is_lost_resigns_and_cannot_write(three: Members) -> None:
    await create(three)
    await three.expire(1)
    await three.until_agreed(lambda image: image.controller_epoch == 2 and len(image.brokers) == 3)
    assert sum(each.member.is_controller for each in three.all.values()) == 1
    await three.controller.controller.create_topic(NewTopic("u", 1, 3))
    await three.until_agreed(lambda image: "u" in image.topics)


async def test_a_controller_that_does_not_know_of_the_next_one_cannot_write(three: Members) -> None:
    zombie = three.all[1].controller
    await three.all[2].tree.set(znodes.CONTROLLER_EPOCH, b"7")
    assert await refusal_of(zombie.create_topic(NewTopic("t"))) == ErrorCode.NOT_CONTROLLER
    assert await three.all[2].tree.exists(znodes.topic_path("t")) is None


async def test_a_stopping_broker_hands_its_leaderships_over(three: Members) -> None:
    await create(three, (1, 2, 3))
    await create(three, (2, 3, 1), "followed")
    await create(three, (1,), "alone")
    controller = three.controller.controller
    assert await controller.shut_down(1, three.all[1].member.broker_epoch) == []
    image = await three.until_agreed(lambda image: partition_of(image).leader == 2)
    assert partition_of(image).isr == (2, 3)
    assert partition_of(image, "followed").isr == (2, 3)
    assert partition_of(image, "alone").leader == 1
    # It cannot come back into an ISR on its way down.
    epoch = three.all[2].member.broker_epoch
    (outcome,) = await controller.alter_partitions(2, epoch, [IsrProposal("t", 0, 1, 1, (2, 3, 1))])
    assert isinstance(outcome, Refusal)
    assert outcome.code == ErrorCode.INELIGIBLE_REPLICA


async def test_a_shutdown_of_an_earlier_life_is_refused(three: Members) -> None:
    controller = three.controller.controller
    epoch = three.all[2].member.broker_epoch
    with pytest.raises(Refusal) as refused:
        await controller.shut_down(2, epoch - 1)
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH
    with pytest.raises(Refusal) as refused:
        await controller.shut_down(9, epoch)
    assert refused.value.code == ErrorCode.BROKER_NOT_AVAILABLE


async def test_the_preferred_replica_gets_its_leadership_back(three: Members) -> None:
    await create(three, (2, 3, 1))
    await three.kill(2)
    await three.until_agreed(lambda image: partition_of(image).leader == 3)
    await three.start(2)
    await three.until_agreed(lambda image: 2 in image.brokers)
    controller = three.controller.controller
    outcomes = await controller.elect([("t", 0)])
    refused = outcomes["t", 0]
    assert refused is not None
    assert refused.code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    known = partition_of(controller.image)
    proposal = IsrProposal("t", 0, known.leader_epoch, known.partition_epoch, (3, 1, 2))
    await controller.alter_partitions(3, three.all[3].member.broker_epoch, [proposal])
    assert await controller.elect(None) == {("t", 0): None}
    image = await three.until_agreed(lambda image: partition_of(image).leader == 2)
    assert partition_of(image).leader_epoch == known.leader_epoch + 1


async def test_leaderships_that_piled_up_are_balanced_by_and_by(three: Members) -> None:
    await create(three, (2, 3, 1))
    controller = three.controller
    await controller.controller.shut_down(2)
    controller.controller.leadership.leaving.clear()  # as if it had gone and come
    known = partition_of(controller.image)
    proposal = IsrProposal("t", 0, known.leader_epoch, known.partition_epoch, (3, 1, 2))
    await controller.controller.alter_partitions(3, three.all[3].member.broker_epoch, [proposal])
    await three.until_agreed(lambda image: partition_of(image).isr == (3, 1, 2))
    controller.member.on_watch("", Event.BALANCE)
    await three.until_agreed(lambda image: partition_of(image).leader == 2)


async def test_an_isr_that_a_leader_proposes_is_written_and_told(three: Members) -> None:
    await create(three, (2, 3, 1))
    controller = three.controller.controller
    epoch = three.all[2].member.broker_epoch
    (outcome,) = await controller.alter_partitions(2, epoch, [IsrProposal("t", 0, 0, 0, (2, 1))])
    assert outcome == Partition(2, 0, (2, 1), (2, 3, 1), 1, controller_epoch=1)
    image = await three.until_agreed(lambda image: partition_of(image).isr == (2, 1))
    assert partition_of(image) == outcome
    with pytest.raises(Refusal) as refused:
        await controller.alter_partitions(2, epoch - 1, [IsrProposal("t", 0, 0, 1, (2,))])
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH


async def test_a_state_that_somebody_else_wrote_is_read_before_anything_is_decided(three: Members) -> None:
    await create(three, (2, 3, 1))
    path = znodes.state_path("t", 0)
    foreign = Partition(2, 5, (2, 3), (2, 3, 1), 1, controller_epoch=1)
    await three.all[2].tree.set(path, znodes.encode_state(foreign))
    await three.kill(3)
    image = await three.until_agreed(lambda image: partition_of(image).isr == (2,))
    assert partition_of(image).leader_epoch == 6


async def test_a_topic_that_another_kind_of_broker_put_into_the_tree_gets_leaders(three: Members) -> None:
    """As Apache Kafka does for topics that come by being asked for: only the assignment, from any broker."""
    states = [Partition(NO_LEADER, 0, (), (3, 2), 0)]
    data = znodes.encode_topic(random_uuid(bytes), states)
    await three.all[2].tree.multi([Create(znodes.topic_path("t"), data)])
    image = await three.until_agreed(lambda image: "t" in image.topics and partition_of(image).leader == 3)
    assert partition_of(image) == Partition(3, 0, (3, 2), (3, 2), 0, controller_epoch=1)


async def test_a_topic_that_somebody_marked_is_deleted(three: Members) -> None:
    await create(three)
    await three.all[2].tree.create(znodes.delete_topic_path("t"))
    await three.until_agreed(lambda image: "t" not in image.topics)
    # The mark goes last, when nothing of the topic is left.
    while await three.all[2].tree.exists(znodes.delete_topic_path("t")) is not None:
        await trio.lowlevel.checkpoint()
    assert await three.all[2].tree.exists(znodes.topic_path("t")) is None


async def test_a_broker_id_is_one_brokers(sessions: Sessions) -> None:
    tree = await sessions.open()
    await ensure_layout(tree)
    first = await claim_broker_id(tree, HERE, timestamp_ms=0)
    assert first.epoch == (await tree.get("/brokers/ids/1")).stat.czxid
    assert await claim_broker_id(tree, HERE, timestamp_ms=0) == first  # as after an answer that was lost
    with pytest.raises(UserError, match=r"broker\.id=1 is in use by another broker"):
        await claim_broker_id(await sessions.open(), ELSEWHERE, timestamp_ms=0, patience_s=60)


async def test_a_broker_waits_for_the_session_of_its_earlier_life(sessions: Sessions) -> None:
    tree = await sessions.open()
    await ensure_layout(tree)
    first = await claim_broker_id(tree, HERE, timestamp_ms=0)
    second: list[Broker] = []

    async def claim(again: Tree) -> None:
        second.append(await claim_broker_id(again, HERE, timestamp_ms=0, patience_s=60))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(claim, await sessions.open())
        await trio.testing.wait_all_tasks_blocked(0.05)
        await sessions.close(tree)
    assert second[0].epoch > first.epoch


async def test_the_controllers_seat_is_taken_once(sessions: Sessions) -> None:
    one, two = await sessions.open(), await sessions.open()
    assert await claim_controller(one, 1, timestamp_ms=0) == ControllerSeat(1, 1, 0, is_mine=True)
    assert await claim_controller(two, 2, timestamp_ms=0) is None
    assert await read_controller(one) == ControllerSeat(1, 1, 0, is_mine=True)
    assert await read_controller(two) == ControllerSeat(1, 1, 0, is_mine=False)
    await sessions.close(one)
    while (await read_controller(two)).broker_id != NO_LEADER:
        await trio.lowlevel.checkpoint()
    assert await claim_controller(two, 2, timestamp_ms=0) == ControllerSeat(2, 2, 1, is_mine=True)


@pytest.mark.jvm
async def test_what_happens_while_the_connection_is_cut_is_seen_when_it_is_back(zookeeper: str) -> None:
    async with AsyncExitStack() as stack:
        proxy, address = await stack.enter_async_context(proxied(zookeeper))
        near = ZooKeeperSessions(f"{zookeeper}/cut", stack)
        far = ZooKeeperSessions(f"{address}/cut", stack)
        members = await stack.enter_async_context(open_members(far))
        for broker_id in (1, 2, 3):
            await members.start(broker_id)
        await members.until_agreed(lambda image: len(image.brokers) == 3)
        await create(members, (3, 2, 1))
        epochs = [each.member.broker_epoch for each in members.all.values()]
        elsewhere = await near.open()
        for turn in range(3):
            proxy.cut()
            topic_id = random_uuid(random.Random(turn).randbytes)
            data = znodes.encode_topic(topic_id, [Partition(NO_LEADER, 0, (), (2,), 0)])
            await elsewhere.create(znodes.topic_path(f"cut-{turn}"), data)
            await members.until_agreed(partial(has_topic, f"cut-{turn}"))
        await members.all[2].controller.alter_topic_configs("t", {"retention.ms": "7"})
        image = await members.until_agreed(lambda image: image.topics["t"].configs == {"retention.ms": "7"})
        assert [each.member.broker_epoch for each in members.all.values()] == epochs
        assert (image.controller_id, image.controller_epoch) == (1, 1)
        assert partition_of(image).leader_epoch == 0
        await members.kill(3)
        await members.until_agreed(lambda image: partition_of(image).leader == 2)
