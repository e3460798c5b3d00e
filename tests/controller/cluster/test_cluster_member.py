"""Members of a cluster: registration, controller election, elections of leaders, and equal images, on both trees."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial

import pytest
import trio
import trio.testing

from kbroker.config.endpoints import Endpoint
from kbroker.controller.changes import TopicAdded
from kbroker.controller.cluster.event_queue import Event
from kbroker.controller.image import NO_LEADER, BrokerRegistration, Image, PartitionState
from kbroker.controller.metadata_loader import ensure_layout
from kbroker.controller.registration import (
    ControllerRegistration,
    read_controller,
    register_broker,
    register_controller,
)
from kbroker.controller.rules.isr_rules import IsrProposal
from kbroker.controller.rules.topic_rules import NewTopic
from kbroker.controller.trees import znodes
from kbroker.controller.trees.tree import Create, Tree
from kbroker.errors import Refusal, UserError
from kbroker.names import random_uuid, uuid_to_text
from kbroker.protocol.error_codes import ErrorCode
from tests.controller.conftest import Sessions, ZooKeeperSessions
from tests.controller.members import TIMEOUT_SECONDS, Members, open_members
from tests.controller.test_controller import refusal_of
from tests.controller.trees.test_zookeeper_tree import proxied

HERE = BrokerRegistration(1, -1, (Endpoint("PLAINTEXT", "here", 9092),))
ELSEWHERE = BrokerRegistration(1, -1, (Endpoint("PLAINTEXT", "elsewhere", 9092),))


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


def partition_of(image: Image, topic: str = "t", index: int = 0) -> PartitionState:
    found = image.partition(topic, index)
    assert found is not None
    return found


def has_topic(name: str, image: Image) -> bool:
    return name in image.topics


async def create(members: Members, replicas: tuple[int, ...] = (1, 2, 3), topic: str = "t") -> PartitionState:
    await members.controller.controller.create_topic(NewTopic(topic, assignment={0: replicas}))
    return partition_of(await members.until_agreed(lambda image: topic in image.topics), topic)


async def test_the_first_broker_becomes_the_controller(three: Members) -> None:
    image = await three.until_agreed()
    assert (image.controller_id, image.controller_epoch) == (1, 1)
    assert [member.member.is_controller for member in three.all.values()] == [True, False, False]
    for one in three.all.values():
        node = await one.tree.get(znodes.broker_path(one.id))
        assert node.stat.ephemeral_owner == one.tree.session_id
        assert one.member.broker_epoch == node.stat.czxid
    assert len({one.image.cluster_id for one in three.all.values()}) == 1


async def test_a_joining_broker_names_no_broker_that_the_controller_does_not_know(members: Members) -> None:
    """Else a client could ask for a topic on these brokers, and the controller would refuse it."""
    controller = await members.start(1)
    async with controller.controller.store.exclusive():  # the controller is busy
        second, third = await members.start(2), await members.start(3)
        assert sorted(second.image.brokers) == sorted(third.image.brokers) == sorted(controller.image.brokers) == [1]
        assert second.image.controller_id == third.image.controller_id == 1
    await members.until_agreed(lambda image: len(image.brokers) == 3)


async def test_all_members_know_a_new_topic_with_the_same_leaders(three: Members) -> None:
    topic = await three.controller.controller.create_topic(NewTopic("t", 6, 3, configs={"retention.ms": "5"}))
    image = await three.until_agreed(lambda image: "t" in image.topics)
    assert image.topics["t"] == topic
    assert {partition.leader for partition in topic.partitions} == {1, 2, 3}


async def test_other_brokers_refuse_requests_for_the_controller(three: Members) -> None:
    other = three.all[2].controller
    assert await refusal_of(other.create_topic(NewTopic("t"))) == ErrorCode.NOT_CONTROLLER
    assert await refusal_of(other.delete_topic(name="t")) == ErrorCode.NOT_CONTROLLER
    assert await refusal_of(other.create_partitions("t", 3)) == ErrorCode.NOT_CONTROLLER
    assert await refusal_of(other.elect(None)) == ErrorCode.NOT_CONTROLLER
    assert await refusal_of(other.shut_down(3)) == ErrorCode.NOT_CONTROLLER


async def test_a_deleted_topic_is_removed_everywhere_and_its_name_is_free(three: Members) -> None:
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
    assert partition_of(image) == PartitionState(3, 1, (3, 1), (2, 3, 1), 1, controller_epoch=1)
    state = await three.all[1].tree.get(znodes.state_path("t", 0))
    assert znodes.decode_state(state.data, state.stat.version, replicas=(2, 3, 1)) == partition_of(image)


async def test_a_follower_that_dies_leaves_the_isr_at_once(three: Members) -> None:
    await create(three, (2, 3, 1))
    await three.kill(3)
    image = await three.until_agreed(lambda image: partition_of(image).isr == (2, 1))
    assert (partition_of(image).leader, partition_of(image).leader_epoch) == (2, 1)


async def test_a_partition_without_live_isr_members_waits_for_one(three: Members) -> None:
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
            2, broker_epoch=three.all[2].member.broker_epoch, proposals=[IsrProposal(topic, 0, 0, 0, (2,))]
        )
    await three.kill(2)
    image = await three.until_agreed(lambda image: partition_of(image, "strict").leader == NO_LEADER)
    assert (partition_of(image).leader, partition_of(image).isr) == (3, (3,))
    assert partition_of(image, "strict").isr == (2,)
    outcomes = await three.controller.controller.elect([("strict", 0)], is_unclean=True)
    assert outcomes == {("strict", 0): None}
    await three.until_agreed(lambda image: partition_of(image, "strict").leader == 3)
    elector = three.controller.controller.elector
    assert elector.unclean_elections == sum(elector.election_times.counts) == 2


@pytest.mark.parametrize("entity", ["topics/t", "brokers/<default>"])
async def test_unclean_election_can_be_enabled_for_a_partition_without_a_leader(three: Members, entity: str) -> None:
    await create(three, (2, 3))
    proposal = IsrProposal("t", 0, 0, 0, (2,))
    await three.controller.controller.alter_partitions(
        2, broker_epoch=three.all[2].member.broker_epoch, proposals=[proposal]
    )
    await three.kill(2)
    await three.until_agreed(lambda image: partition_of(image).leader == NO_LEADER)
    configs = {"unclean.leader.election.enable": "true"}
    if entity == "topics/t":
        await three.all[3].controller.alter_topic_configs("t", configs)
    else:
        await three.all[3].controller.update_entity_configs(entity, lambda _: configs)
    image = await three.until_agreed(lambda image: partition_of(image).leader == 3)
    assert partition_of(image).isr == (3,)


async def test_a_new_controller_is_elected_and_loads_all_metadata(three: Members) -> None:
    before = await create(three)
    await three.kill(1)
    await three.until(lambda: any(member.member.is_controller for member in three.all.values()))
    image = await three.until_agreed(lambda image: 1 not in image.brokers and partition_of(image).leader == 2)
    assert image.controller_epoch == 2
    assert partition_of(image) == before._replace(
        leader=2, isr=(2, 3), leader_epoch=1, partition_epoch=1, controller_epoch=2
    )
    await three.controller.controller.create_topic(NewTopic("u", 2, 2))
    await three.until_agreed(lambda image: "u" in image.topics)


async def test_a_broker_that_registers_later_gets_the_full_state(members: Members) -> None:
    await members.start(1)
    await create(members, (1,))
    await members.controller.controller.update_entity_configs("groups/g", lambda _: {"consumer.x": "1"})
    await members.start(2)
    image = await members.until_agreed(lambda image: len(image.brokers) == 2)
    assert partition_of(image).leader == 1


async def test_a_restarted_broker_leads_nothing_until_the_controller_says_so(three: Members) -> None:
    """The leader in the tree is from an earlier run: the controller may be electing another one."""
    await create(three, (3,))
    await three.kill(3)
    await three.until_agreed(lambda image: 3 not in image.brokers)
    again = await three.start(3)
    (loaded,) = [change.topic for change in again.recorder.changes if isinstance(change, TopicAdded)]
    assert loaded.partitions[0].leader == NO_LEADER
    await three.until_agreed(lambda image: partition_of(image).leader == 3)


async def fail_directory(three: Members, broker_id: int, *topics: str) -> None:
    """Lets the data directory of a broker fail that has the partition 0 of these topics."""
    member = three.all[broker_id].member
    member.report_offline(lambda: {(topic, 0) for topic in topics})
    await member.announce_failed_directory()


@pytest.mark.parametrize("broker_id", [1, 2])
async def test_a_leader_whose_disk_fails_is_replaced(three: Members, broker_id: int) -> None:
    """Broker 1 is the controller."""
    others = tuple(other for other in (1, 2, 3) if other != broker_id)
    await create(three, (broker_id, *others))
    await create(three, (broker_id, *others), "intact")
    await create(three, (broker_id,), "alone")
    await fail_directory(three, broker_id, "t", "alone")
    image = await three.until_agreed(lambda image: partition_of(image, "alone").leader == NO_LEADER)
    assert partition_of(image).leader == others[0]
    assert partition_of(image).isr == others
    assert partition_of(image).offline_replicas == (broker_id,)
    assert partition_of(image, "alone").isr == (broker_id,)
    assert partition_of(image, "intact").leader == broker_id
    assert partition_of(image, "intact").offline_replicas == ()


async def test_a_failed_replica_is_neither_elected_nor_added_to_the_isr(three: Members) -> None:
    await create(three, (2, 3, 1))
    await fail_directory(three, 2, "t")
    image = await three.until_agreed(lambda image: partition_of(image).leader == 3)
    outcomes = await three.controller.controller.elect([("t", 0)])
    assert isinstance(outcomes["t", 0], Refusal)
    state = partition_of(image)
    proposal = IsrProposal("t", 0, state.leader_epoch, state.partition_epoch, (3, 1, 2))
    (outcome,) = await three.controller.controller.alter_partitions(
        3, broker_epoch=three.all[3].member.broker_epoch, proposals=[proposal]
    )
    assert isinstance(outcome, Refusal)
    await three.kill(3)
    image = await three.until_agreed(lambda image: partition_of(image).leader == 1)
    assert partition_of(image).isr == (1,)


async def test_announcements_of_failed_disks_are_deleted(three: Members) -> None:
    await create(three, (2, 3))
    await fail_directory(three, 2, "t")
    await three.until_agreed(lambda image: partition_of(image).leader == 3)
    with trio.fail_after(TIMEOUT_SECONDS):
        while await three.controller.tree.children(znodes.LOG_DIR_EVENTS):
            await trio.lowlevel.checkpoint()


async def test_a_broker_that_returns_with_a_new_disk_can_lead_again(three: Members) -> None:
    await create(three, (2,))
    await fail_directory(three, 2, "t")
    await three.until_agreed(lambda image: partition_of(image).leader == NO_LEADER)
    await three.kill(2)
    await three.until_agreed(lambda image: 2 not in image.brokers)
    await three.start(2)
    image = await three.until_agreed(lambda image: partition_of(image).leader == 2)
    assert partition_of(image).offline_replicas == ()


async def test_a_new_controller_learns_of_failed_disks_from_the_brokers(three: Members) -> None:
    await create(three, (2, 3))
    await fail_directory(three, 2, "t")
    await three.until_agreed(lambda image: partition_of(image).leader == 3)
    await three.kill(1)
    await three.until_agreed(lambda image: image.controller_epoch == 2 and partition_of(image).offline_replicas == (2,))


async def test_a_bounced_broker_is_removed_and_then_added(three: Members, sessions: Sessions) -> None:
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
    assert sum(member.member.is_controller for member in three.all.values()) == 1
    await three.controller.controller.create_topic(NewTopic("u", 1, 3))
    await three.until_agreed(lambda image: "u" in image.topics)


async def test_a_controller_that_was_replaced_unknowingly_cannot_write(three: Members) -> None:
    zombie = three.all[1].controller
    await three.all[2].tree.set(znodes.CONTROLLER_EPOCH, b"7")
    assert await refusal_of(zombie.create_topic(NewTopic("t"))) == ErrorCode.NOT_CONTROLLER
    assert await three.all[2].tree.exists(znodes.topic_path("t")) is None


async def test_a_controlled_shutdown_moves_leaderships(three: Members) -> None:
    await create(three, (1, 2, 3))
    await create(three, (2, 3, 1), "followed")
    await create(three, (1,), "alone")
    controller = three.controller.controller
    assert await controller.shut_down(1, broker_epoch=three.all[1].member.broker_epoch) == []
    image = await three.until_agreed(lambda image: partition_of(image).leader == 2)
    assert partition_of(image).isr == (2, 3)
    assert partition_of(image, "followed").isr == (2, 3)
    assert partition_of(image, "alone").leader == 1
    # A broker that shuts down cannot join an ISR again.
    epoch = three.all[2].member.broker_epoch
    (outcome,) = await controller.alter_partitions(
        2, broker_epoch=epoch, proposals=[IsrProposal("t", 0, 1, 1, (2, 3, 1))]
    )
    assert isinstance(outcome, Refusal)
    assert outcome.code == ErrorCode.INELIGIBLE_REPLICA


async def test_a_shutdown_request_of_an_earlier_registration_is_refused(three: Members) -> None:
    controller = three.controller.controller
    epoch = three.all[2].member.broker_epoch
    with pytest.raises(Refusal) as refused:
        await controller.shut_down(2, broker_epoch=epoch - 1)
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH
    with pytest.raises(Refusal) as refused:
        await controller.shut_down(9, broker_epoch=epoch)
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
    await controller.alter_partitions(3, broker_epoch=three.all[3].member.broker_epoch, proposals=[proposal])
    assert await controller.elect(None) == {("t", 0): None}
    image = await three.until_agreed(lambda image: partition_of(image).leader == 2)
    assert partition_of(image).leader_epoch == known.leader_epoch + 1


async def test_preferred_leaders_are_elected_periodically(three: Members) -> None:
    await create(three, (2, 3, 1))
    controller = three.controller
    await controller.controller.shut_down(2)
    controller.controller.elector.shutting_down.clear()  # as after a restart
    known = partition_of(controller.image)
    proposal = IsrProposal("t", 0, known.leader_epoch, known.partition_epoch, (3, 1, 2))
    await controller.controller.alter_partitions(3, broker_epoch=three.all[3].member.broker_epoch, proposals=[proposal])
    await three.until_agreed(lambda image: partition_of(image).isr == (3, 1, 2))
    controller.member.events.put(Event.REBALANCE)
    await three.until_agreed(lambda image: partition_of(image).leader == 2)


async def test_a_proposed_isr_is_written_and_sent_to_all(three: Members) -> None:
    await create(three, (2, 3, 1))
    controller = three.controller.controller
    epoch = three.all[2].member.broker_epoch
    (outcome,) = await controller.alter_partitions(2, broker_epoch=epoch, proposals=[IsrProposal("t", 0, 0, 0, (2, 1))])
    assert outcome == PartitionState(2, 0, (2, 1), (2, 3, 1), 1, controller_epoch=1)
    image = await three.until_agreed(lambda image: partition_of(image).isr == (2, 1))
    assert partition_of(image) == outcome
    with pytest.raises(Refusal) as refused:
        await controller.alter_partitions(2, broker_epoch=epoch - 1, proposals=[IsrProposal("t", 0, 0, 1, (2,))])
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH


async def test_a_state_of_another_writer_is_read_before_an_election(three: Members) -> None:
    await create(three, (2, 3, 1))
    path = znodes.state_path("t", 0)
    foreign = PartitionState(2, 5, (2, 3), (2, 3, 1), 1, controller_epoch=1)
    await three.all[2].tree.set(path, znodes.encode_state(foreign))
    await three.kill(3)
    image = await three.until_agreed(lambda image: partition_of(image).isr == (2,))
    assert partition_of(image).leader_epoch == 6


async def test_a_topic_that_another_writer_put_into_the_tree_gets_leaders(three: Members) -> None:
    """Any broker of Apache Kafka writes the assignment of an auto-created topic, without states."""
    states = [PartitionState(NO_LEADER, 0, (), (3, 2), 0)]
    data = znodes.encode_topic(random_uuid(bytes), states)
    await three.all[2].tree.multi([Create(znodes.topic_path("t"), data)])
    image = await three.until_agreed(lambda image: "t" in image.topics and partition_of(image).leader == 3)
    assert partition_of(image) == PartitionState(3, 0, (3, 2), (3, 2), 0, controller_epoch=1)


async def test_a_stopping_controller_resigns_while_its_session_lasts(three: Members) -> None:
    """Its logs may take long to flush, and without a controller no leader can be elected."""
    await create(three, (1, 2, 3))
    stopping = three.all[1]
    await stopping.member.shut_down()
    await stopping.member.resign()
    image = await three.until_agreed(lambda image: image.controller_id in (2, 3))
    assert (image.controller_epoch, sorted(image.brokers)) == (2, [1, 2, 3])
    assert not stopping.member.is_controller
    assert partition_of(image).leader == 2
    assert 1 not in partition_of(image).isr
    # The next controller knows that the broker is stopping: it may not join the ISR again.
    known = partition_of(image)
    proposal = IsrProposal("t", 0, known.leader_epoch, known.partition_epoch, (2, 3, 1))
    epoch = three.all[2].member.broker_epoch
    (outcome,) = await three.controller.controller.alter_partitions(2, broker_epoch=epoch, proposals=[proposal])
    assert isinstance(outcome, Refusal)
    assert outcome.code == ErrorCode.INELIGIBLE_REPLICA


async def test_the_last_broker_resigns_for_good(members: Members) -> None:
    one = await members.start(1)
    await one.member.resign()
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert await one.tree.exists(znodes.CONTROLLER) is None
    assert not one.member.is_controller


@pytest.mark.parametrize("keeps_id", [True, False])
async def test_partitions_that_another_writer_added_to_a_topic_get_leaders(three: Members, keeps_id: bool) -> None:
    """`kafka-topics --zookeeper --alter` writes only the topic's node, and before Kafka 2.8 without the topic's id."""
    await create(three, (1, 2))
    tree = three.all[2].tree
    topic_id = three.controller.image.topics["t"].id
    for count in (2, 3):  # twice: the watch must be set again
        partitions = {str(index): [1 + index % 3, 1 + (index + 1) % 3] for index in range(count)}
        content: dict[str, object] = {"version": 1, "partitions": partitions}
        if keeps_id:
            content |= {"version": 3, "topic_id": uuid_to_text(topic_id)}
        await tree.set(znodes.topic_path("t"), json.dumps(content).encode())
        image = await three.until_agreed(
            lambda image, last=count - 1: (found := image.partition("t", last)) is not None and found.leader > 0  # type: ignore[misc]
        )
        replicas = tuple(partitions[str(count - 1)])
        assert partition_of(image, index=count - 1) == PartitionState(
            replicas[0], 0, replicas, replicas, 0, controller_epoch=1
        )
        assert image.topics["t"].id == topic_id
        assert partition_of(image) == PartitionState(1, 0, (1, 2), (1, 2), 0, controller_epoch=1)
    while znodes.decode_topic("t", (await tree.get(znodes.topic_path("t"))).data).topic_id != topic_id:
        await trio.lowlevel.checkpoint()


async def test_a_topic_node_that_cannot_be_read_is_ignored(three: Members) -> None:
    before = await create(three, (1, 2))
    await three.all[2].tree.set(znodes.topic_path("t"), b"{")
    await create(three, (3,), "u")
    assert partition_of(await three.until_agreed()) == before


async def test_a_topic_that_another_writer_marked_is_deleted(three: Members) -> None:
    await create(three)
    await three.all[2].tree.create(znodes.delete_topic_path("t"))
    await three.until_agreed(lambda image: "t" not in image.topics)
    # The mark is deleted last.
    while await three.all[2].tree.exists(znodes.delete_topic_path("t")) is not None:
        await trio.lowlevel.checkpoint()
    assert await three.all[2].tree.exists(znodes.topic_path("t")) is None


async def test_a_broker_id_can_be_registered_once(sessions: Sessions) -> None:
    tree = await sessions.open()
    await ensure_layout(tree)
    first = await register_broker(tree, HERE, timestamp_ms=0)
    assert first.epoch == (await tree.get("/brokers/ids/1")).stat.czxid
    assert await register_broker(tree, HERE, timestamp_ms=0) == first  # as if the first answer was lost
    with pytest.raises(UserError, match=r"broker\.id=1 is in use by another broker"):
        await register_broker(await sessions.open(), ELSEWHERE, timestamp_ms=0, wait_s=60)


async def test_a_broker_waits_for_the_session_of_its_earlier_run(sessions: Sessions) -> None:
    tree = await sessions.open()
    await ensure_layout(tree)
    first = await register_broker(tree, HERE, timestamp_ms=0)
    second: list[BrokerRegistration] = []

    async def claim(again: Tree) -> None:
        second.append(await register_broker(again, HERE, timestamp_ms=0, wait_s=60))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(claim, await sessions.open())
        await trio.testing.wait_all_tasks_blocked(0.05)
        await sessions.close(tree)
    assert second[0].epoch > first.epoch


async def test_only_one_broker_registers_as_controller(sessions: Sessions) -> None:
    one, two = await sessions.open(), await sessions.open()
    assert await register_controller(one, 1, timestamp_ms=0) == ControllerRegistration(1, 1, 0, is_mine=True)
    assert await register_controller(two, 2, timestamp_ms=0) is None
    assert await read_controller(one) == ControllerRegistration(1, 1, 0, is_mine=True)
    assert await read_controller(two) == ControllerRegistration(1, 1, 0, is_mine=False)
    await sessions.close(one)
    while (await read_controller(two)).broker_id != NO_LEADER:
        await trio.lowlevel.checkpoint()
    assert await register_controller(two, 2, timestamp_ms=0) == ControllerRegistration(2, 2, 1, is_mine=True)


@pytest.mark.jvm
async def test_changes_during_a_lost_connection_are_read_after_reconnecting(zookeeper: str) -> None:
    async with AsyncExitStack() as stack:
        proxy, address = await stack.enter_async_context(proxied(zookeeper))
        near = ZooKeeperSessions(f"{zookeeper}/cut", stack)
        far = ZooKeeperSessions(f"{address}/cut", stack)
        members = await stack.enter_async_context(open_members(far))
        for broker_id in (1, 2, 3):
            await members.start(broker_id)
        await members.until_agreed(lambda image: len(image.brokers) == 3)
        await create(members, (3, 2, 1))
        epochs = [member.member.broker_epoch for member in members.all.values()]
        elsewhere = await near.open()
        for turn in range(3):
            proxy.cut()
            topic_id = random_uuid(random.Random(turn).randbytes)
            data = znodes.encode_topic(topic_id, [PartitionState(NO_LEADER, 0, (), (2,), 0)])
            await elsewhere.create(znodes.topic_path(f"cut-{turn}"), data)
            await members.until_agreed(partial(has_topic, f"cut-{turn}"))
        await members.all[2].controller.alter_topic_configs("t", {"retention.ms": "7"})
        image = await members.until_agreed(lambda image: image.topics["t"].configs == {"retention.ms": "7"})
        assert [member.member.broker_epoch for member in members.all.values()] == epochs
        assert (image.controller_id, image.controller_epoch) == (1, 1)
        assert partition_of(image).leader_epoch == 0
        await members.kill(3)
        await members.until_agreed(lambda image: partition_of(image).leader == 2)
