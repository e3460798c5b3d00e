"""The controller of a single node, on the embedded tree and on a real ZooKeeper."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio

from kbroker.config.broker import BrokerConfig
from kbroker.config.endpoints import Endpoint
from kbroker.controller.changes import (
    BrokerAdded,
    Change,
    ClusterIdSet,
    ControllerChanged,
    PartitionsChanged,
    TopicAdded,
    TopicConfigsChanged,
    TopicRemoved,
)
from kbroker.controller.controller import Controller
from kbroker.controller.image import NO_LEADER, Image, PartitionState, TopicImage
from kbroker.controller.registration import generate_broker_id
from kbroker.controller.rules.topic_rules import NewTopic
from kbroker.controller.trees import znodes
from kbroker.controller.trees.tree import Delete, SetData, Tree, ensure_path
from kbroker.errors import Refusal, UserError
from kbroker.names import uuid_from_text
from kbroker.protocol.error_codes import ErrorCode
from tests.controller.conftest import Sessions

ENDPOINTS = (Endpoint("PLAINTEXT", "127.0.0.1", 9092),)


class StoppedClock:
    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return 0.0


class Recorder:
    """A listener that records the changes."""

    def __init__(self) -> None:
        self.image = Image()
        self.changes: list[Change] = []

    def __call__(self, image: Image, changes: Sequence[Change]) -> None:
        self.image = image
        self.changes += changes

    def take(self) -> list[Change]:
        taken, self.changes = self.changes, []
        return taken


def new_controller(tree: Tree, broker_id: int = 1, **properties: str) -> Controller:
    return Controller(
        tree,
        broker_id=broker_id,
        config=BrokerConfig.from_properties({name.replace("_", "."): text for name, text in properties.items()}),
        clock=StoppedClock(),
        random_bytes=random.Random(7).randbytes,
    )


async def started(tree: Tree, **properties: str) -> Controller:
    controller = new_controller(tree, 1, **properties)
    await controller.start(ENDPOINTS)
    return controller


async def restarted(sessions: Sessions, tree: Tree, **properties: str) -> Controller:
    """Starts a controller as after kill -9: the old session has ended, without cleanup."""
    await sessions.close(tree)
    return await started(await sessions.open(), **properties)


async def refusal_of(call: Awaitable[object]) -> ErrorCode:
    with pytest.raises(Refusal) as refusal:
        await call
    assert refusal.value.message
    return ErrorCode(refusal.value.code)


async def test_a_start_registers_the_broker_and_makes_it_the_controller(tree: Tree) -> None:
    controller = await started(tree)
    image = controller.image
    node = await tree.get("/brokers/ids/1")
    assert node.stat.ephemeral_owner == tree.session_id
    assert image.brokers[1].epoch == node.stat.czxid
    assert image.brokers[1].endpoints == ENDPOINTS
    assert znodes.decode_broker(1, node.data, epoch=node.stat.czxid) == image.brokers[1]
    assert (image.controller_id, image.controller_epoch) == (1, 1)
    assert znodes.decode_controller((await tree.get("/controller")).data) == 1
    assert (await tree.get("/controller_epoch")).data == b"1"
    assert len(uuid_from_text(image.cluster_id)) == 16
    for path in ("/config/topics", "/admin/delete_topics", "/isr_change_notification", "/brokers/seqid"):
        assert await tree.exists(path) is not None


async def test_a_restart_keeps_the_cluster_and_its_topics_under_a_new_controller_epoch(
    sessions: Sessions, tree: Tree
) -> None:
    first = await started(tree)
    created = await first.create_topic(NewTopic("a", 3, configs={"retention.ms": "5"}))
    second = await restarted(sessions, tree)
    assert second.image.cluster_id == first.image.cluster_id
    assert second.image.topics == {"a": created} == first.image.topics
    assert second.image.controller_epoch == 2
    assert second.image.brokers[1].epoch > first.image.brokers[1].epoch


async def test_listeners_get_the_load_the_registration_and_each_change_in_order(sessions: Sessions, tree: Tree) -> None:
    await (await started(tree)).create_topics([NewTopic("a"), NewTopic("b")])
    await sessions.close(tree)
    controller = new_controller(await sessions.open())
    listener = Recorder()
    controller.add_listener(listener)
    await controller.load()
    kinds = [type(change) for change in listener.take()]
    assert kinds == [ClusterIdSet, TopicAdded, TopicAdded]
    await controller.register(ENDPOINTS)
    assert [type(change) for change in listener.take()] == [BrokerAdded, ControllerChanged]
    topic = await controller.create_topic(NewTopic("c"))
    assert listener.take() == [TopicAdded(topic)]
    assert listener.image is controller.image
    await controller.delete_topic(name="c")
    assert listener.take() == [TopicRemoved(topic)]


async def test_listeners_see_no_topic_of_a_cluster_that_was_refused(sessions: Sessions, tree: Tree) -> None:
    first = await started(tree)
    await first.create_topic(NewTopic("a"))
    await sessions.close(tree)
    controller = new_controller(await sessions.open())
    listener = Recorder()
    controller.add_listener(listener)

    def refuse(cluster_id: str) -> None:
        raise UserError(cluster_id)

    with pytest.raises(UserError, match=first.image.cluster_id):
        await controller.load(refuse)
    assert listener.take() == []


async def test_a_created_topic_has_kafkas_nodes(tree: Tree) -> None:
    controller = await started(tree)
    topic = await controller.create_topic(NewTopic("a", 2, 1, configs={"segment.bytes": "1000"}))
    assert topic == controller.image.topic("a") == controller.image.topic_by_id(topic.id)
    assert topic.configs == {"segment.bytes": "1000"}
    expected = PartitionState(1, 0, (1,), (1,), partition_epoch=0, controller_epoch=1)
    assert topic.partitions == (expected, expected)
    node = await tree.get("/brokers/topics/a")
    assert znodes.decode_topic("a", node.data) == (topic.id, {0: (1,), 1: (1,)}, {}, {})
    assert await tree.children("/brokers/topics/a/partitions") == ["0", "1"]
    state = await tree.get("/brokers/topics/a/partitions/1/state")
    assert znodes.decode_state(state.data, state.stat.version, replicas=(1,)) == expected
    assert znodes.decode_configs((await tree.get("/config/topics/a")).data) == {"segment.bytes": "1000"}


async def test_default_counts_are_those_of_the_broker_config(tree: Tree) -> None:
    controller = await started(tree, num_partitions="4")
    assert len((await controller.create_topic(NewTopic("a"))).partitions) == 4
    assert len((await controller.create_topic(NewTopic("b", 2))).partitions) == 2


async def test_partitions_may_be_assigned_to_brokers(tree: Tree) -> None:
    controller = await started(tree)
    topic = await controller.create_topic(NewTopic("a", assignment={1: [1], 0: [1]}))
    assert [partition.replicas for partition in topic.partitions] == [(1,), (1,)]


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (NewTopic(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("is_there"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (NewTopic("is.there"), ErrorCode.TOPIC_ALREADY_EXISTS),
        (NewTopic("a", 0), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("a", -2), ErrorCode.INVALID_PARTITIONS),
        (NewTopic("a", 10_001), ErrorCode.POLICY_VIOLATION),
        (NewTopic("a", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("a", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("a", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR),
        (NewTopic("a", assignment={0: [2]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", assignment={0: [1, 1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", assignment={0: []}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", assignment={1: [1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", assignment={0: [1], 1: []}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", assignment={0: [1], -1: [1]}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (NewTopic("a", 1, assignment={0: [1]}), ErrorCode.INVALID_REQUEST),
        (NewTopic("a", replication_factor=1, assignment={0: [1]}), ErrorCode.INVALID_REQUEST),
        (NewTopic("a", configs={"no.such": "1"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("a", configs={"retention.ms": "soon"}), ErrorCode.INVALID_CONFIG),
        (NewTopic("a", configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
    ],
    ids=repr,
)
@pytest.mark.parametrize("zookeeper_address", ["embedded"], indirect=True)
async def test_an_invalid_topic_is_refused_with_kafkas_code(tree: Tree, new: NewTopic, code: ErrorCode) -> None:
    controller = await started(tree)
    await controller.create_topic(NewTopic("is.there"))
    assert await refusal_of(controller.create_topic(new)) is code
    assert await refusal_of(controller.create_topic(new, validate_only=True)) is code
    assert list(controller.image.topics) == ["is.there"]
    assert await tree.children("/brokers/topics") == ["is.there"]


async def test_validating_creates_nothing(tree: Tree) -> None:
    controller = await started(tree)
    listener = Recorder()
    controller.add_listener(listener)
    topic = await controller.create_topic(NewTopic("a", 3), validate_only=True)
    assert len(topic.partitions) == 3
    assert listener.take() == []
    assert controller.image.topics == {}
    assert await tree.children("/brokers/topics") == []


async def test_each_of_many_topics_has_its_own_outcome(tree: Tree) -> None:
    controller = await started(tree)
    outcomes = await controller.create_topics(
        [NewTopic("a.b"), NewTopic("a_b"), NewTopic("a.b"), NewTopic("c", 0), NewTopic("d")]
    )
    codes = [outcome.code if isinstance(outcome, Refusal) else 0 for outcome in outcomes]
    assert codes == [
        0,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.INVALID_PARTITIONS,
        0,
    ]
    assert sorted(controller.image.topics) == await tree.children("/brokers/topics") == ["a.b", "d"]


async def test_a_topic_too_large_for_one_write_is_created_and_deleted_whole(sessions: Sessions, tree: Tree) -> None:
    controller = await started(tree)
    topic = await controller.create_topic(NewTopic("x" * 200, 1500))
    restart = await restarted(sessions, tree)
    assert restart.image.topics == {topic.name: topic}
    await restart.delete_topic(topic_id=topic.id)
    assert restart.image.topics == {}


async def test_topics_that_exist_in_the_tree_are_refused_and_the_others_created(tree: Tree) -> None:
    controller = await started(tree)
    await ensure_path(tree, "/brokers/topics/b")
    await ensure_path(tree, "/config/topics/c")
    outcomes = await controller.create_topics(
        [NewTopic("a"), NewTopic("b"), NewTopic("c", configs={"retention.ms": "1"})]
    )
    codes = [outcome.code if isinstance(outcome, Refusal) else 0 for outcome in outcomes]
    assert codes == [0, ErrorCode.TOPIC_ALREADY_EXISTS, 0]
    assert sorted(controller.image.topics) == ["a", "c"]
    assert znodes.decode_configs((await tree.get("/config/topics/c")).data) == {"retention.ms": "1"}


async def test_an_interrupted_creation_is_finished_at_the_next_start(sessions: Sessions, tree: Tree) -> None:
    controller = await started(tree)
    topic = await controller.create_topic(NewTopic("a", 3))
    await tree.multi(
        [
            Delete("/brokers/topics/a/partitions/1/state"),
            Delete("/brokers/topics/a/partitions/2/state"),
            Delete("/brokers/topics/a/partitions/2"),
        ]
    )
    await sessions.close(tree)
    tree = await sessions.open()
    controller = new_controller(tree)
    await controller.load()
    assert [partition.leader for partition in controller.image.topics["a"].partitions] == [1, NO_LEADER, NO_LEADER]
    listener = Recorder()
    controller.add_listener(listener)
    await controller.register(ENDPOINTS)
    assert controller.image.topics["a"].id == topic.id
    assert [partition.leader for partition in controller.image.topics["a"].partitions] == [1, 1, 1]
    assert [set(change.partitions) for change in listener.take() if isinstance(change, PartitionsChanged)] == [{1, 2}]
    assert await tree.exists("/brokers/topics/a/partitions/2/state") is not None


async def test_a_topic_without_an_id_gets_one_that_stays(sessions: Sessions, tree: Tree) -> None:
    await (await started(tree)).create_topic(NewTopic("old"))
    await tree.set("/brokers/topics/old", b'{"version":1,"partitions":{"0":[1]}}')
    first = await restarted(sessions, tree)
    second = await restarted(sessions, first._tree)
    assert first.image.topics["old"].id == second.image.topics["old"].id != bytes(16)


async def test_a_deleted_topic_leaves_nothing_and_its_name_is_free(tree: Tree) -> None:
    controller = await started(tree)
    first = await controller.create_topic(NewTopic("a", 2))
    assert await controller.delete_topic(name="a") == first
    assert controller.image.topics == {}
    for path in ("/brokers/topics", "/config/topics", "/admin/delete_topics"):
        assert await tree.children(path) == []
    second = await controller.create_topic(NewTopic("a"))
    assert second.id != first.id
    assert await controller.delete_topic(topic_id=second.id) == second


async def test_deletion_of_unknown_topics_is_refused_and_may_be_disabled(tree: Tree) -> None:
    controller = await started(tree, delete_topic_enable="false")
    topic = await controller.create_topic(NewTopic("a"))
    assert await refusal_of(controller.delete_topic(name="b")) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await refusal_of(controller.delete_topic(topic_id=bytes(16))) is ErrorCode.UNKNOWN_TOPIC_ID
    assert await refusal_of(controller.delete_topic(name="a")) is ErrorCode.TOPIC_DELETION_DISABLED
    assert controller.image.topics == {"a": topic}


async def test_each_of_many_deletions_has_its_own_outcome(tree: Tree) -> None:
    controller = await started(tree)
    a, b = await controller.create_topics([NewTopic("a"), NewTopic("b")])
    assert isinstance(b, TopicImage)
    outcomes = await controller.delete_topics(["a", "missing", b.id, "a"])
    assert outcomes[0] == outcomes[3] == a
    assert isinstance(outcomes[1], Refusal)
    assert outcomes[2] == b
    assert controller.image.topics == {}


async def test_an_interrupted_deletion_is_finished_at_the_next_start(sessions: Sessions, tree: Tree) -> None:
    controller = await started(tree)
    await controller.create_topics([NewTopic("a", 2), NewTopic("b")])
    await tree.create("/admin/delete_topics/a")
    await tree.create("/admin/delete_topics/never_there")
    await tree.delete("/brokers/topics/a/partitions/0/state")
    await sessions.close(tree)
    tree = await sessions.open()
    controller = await started(tree)
    assert list(controller.image.topics) == ["b"]
    assert await tree.children("/brokers/topics") == ["b"]
    assert await tree.children("/config/topics") == ["b"]
    assert await tree.children("/admin/delete_topics") == []


async def test_partitions_are_added_up_to_a_total(sessions: Sessions, tree: Tree) -> None:
    controller = await started(tree)
    listener = Recorder()
    await controller.create_topic(NewTopic("a", 2))
    controller.add_listener(listener)
    assert len((await controller.create_partitions("a", 3, validate_only=True)).partitions) == 3
    assert listener.take() == []
    await controller.create_partitions("a", 3)
    await controller.create_partitions("a", 4, [[1]])
    assert [set(change.partitions) for change in listener.take() if isinstance(change, PartitionsChanged)] == [{2}, {3}]
    assert (await restarted(sessions, tree)).image.topics == controller.image.topics


async def test_added_partitions_are_prepared_before_they_are_announced(tree: Tree) -> None:
    """Their directories are created in a thread: thousands of them would take a second of the event loop."""
    controller = await started(tree)
    await controller.create_topic(NewTopic("a", 2))
    listener = Recorder()
    controller.add_listener(listener)
    prepared: list[int] = []

    async def prepare(topics: Sequence[TopicImage]) -> None:
        assert listener.take() == []
        prepared.extend(len(topic.partitions) for topic in topics)

    controller.add_preparer(prepare)
    await controller.create_partitions("a", 5)
    assert prepared == [5]
    assert [set(change.partitions) for change in listener.take() if isinstance(change, PartitionsChanged)] == [
        {2, 3, 4}
    ]


@pytest.mark.parametrize("zookeeper_address", ["embedded"], indirect=True)
async def test_partitions_that_cannot_be_added_are_refused(tree: Tree) -> None:
    controller = await started(tree)
    await controller.create_topic(NewTopic("a", 2))
    refused: list[tuple[Callable[[], Awaitable[object]], ErrorCode]] = [
        (lambda: controller.create_partitions("b", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda: controller.create_partitions("a", 2), ErrorCode.INVALID_PARTITIONS),
        (lambda: controller.create_partitions("a", 1), ErrorCode.INVALID_PARTITIONS),
        (lambda: controller.create_partitions("a", 20_000), ErrorCode.POLICY_VIOLATION),
        (lambda: controller.create_partitions("a", 4, [[1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (lambda: controller.create_partitions("a", 3, [[9]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ]
    for call, code in refused:
        assert await refusal_of(call()) is code
    assert len(controller.image.topics["a"].partitions) == 2


async def test_configs_are_replaced_and_announced(sessions: Sessions, tree: Tree) -> None:
    controller = await started(tree)
    listener = Recorder()
    await controller.create_topic(NewTopic("a", configs={"retention.ms": "1"}))
    controller.add_listener(listener)
    await controller.alter_topic_configs("a", {"segment.bytes": "99"})
    assert listener.take() == [TopicConfigsChanged("a", {"segment.bytes": "99"})]
    assert await tree.children("/config/changes") == ["config_change_0000000000"]
    await controller.alter_topic_configs("a", {}, validate_only=True)
    assert await refusal_of(controller.alter_topic_configs("a", {"x": "1"})) is ErrorCode.INVALID_CONFIG
    assert await refusal_of(controller.alter_topic_configs("b", {})) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    restart = await restarted(sessions, tree)
    assert restart.image.topics["a"].configs == {"segment.bytes": "99"}
    assert await restart._tree.children("/config/changes") == []


async def test_producer_id_blocks_are_never_given_twice(sessions: Sessions, tree: Tree) -> None:
    controller = await started(tree)
    rival = new_controller(await sessions.open(), broker_id=2)
    blocks = []

    async def take(taker: Controller) -> None:
        blocks.append(await taker.allocate_producer_ids())

    async with trio.open_nursery() as nursery:
        for taker in (controller, rival) * 3:
            nursery.start_soon(take, taker)
    assert sorted(blocks) == [(first, first + 999) for first in range(0, 6000, 1000)]
    assert await (await restarted(sessions, tree)).allocate_producer_ids() == (6000, 6999)


async def test_a_bumped_leader_epoch_is_kept(sessions: Sessions, tree: Tree) -> None:
    controller = await started(tree)
    listener = Recorder()
    await controller.create_topics([NewTopic("a", 2), NewTopic("b")])
    controller.add_listener(listener)
    await controller.bump_leader_epochs([("a", 1), ("b", 0)])
    await controller.bump_leader_epochs([("a", 1)])
    await controller.bump_leader_epochs([])
    assert [partition.leader_epoch for partition in controller.image.topics["a"].partitions] == [0, 2]
    assert controller.image.partition("b", 0) == PartitionState(1, 1, (1,), (1,), partition_epoch=1, controller_epoch=1)
    assert [type(change) for change in listener.take()] == [PartitionsChanged] * 3
    assert (await restarted(sessions, tree)).image.topics == controller.image.topics


async def test_a_partition_whose_leader_is_away_waits_for_a_replica_in_sync(sessions: Sessions, tree: Tree) -> None:
    controller = await started(tree)
    await controller.create_topics(
        [NewTopic("clean"), NewTopic("dirty", configs={"unclean.leader.election.enable": "true"})]
    )
    for name in ("clean", "dirty"):
        path = znodes.state_path(name, 0)
        away = PartitionState(2, 5, (2,), (2, 1), partition_epoch=0, controller_epoch=1)
        await tree.multi(
            [
                SetData(path, znodes.encode_state(away)),
                SetData(znodes.topic_path(name), znodes.encode_topic(controller.image.topics[name].id, [away])),
            ]
        )
    controller = await restarted(sessions, tree)
    image = controller.image
    assert controller.elector.unclean_elections == sum(controller.elector.election_times.counts) == 1
    assert image.partition("clean", 0) == PartitionState(
        NO_LEADER, 6, (2,), (2, 1), partition_epoch=2, controller_epoch=2
    )
    assert image.partition("dirty", 0) == PartitionState(1, 6, (1,), (2, 1), partition_epoch=2, controller_epoch=2)


async def test_a_replaced_controller_cannot_write(tree: Tree) -> None:
    controller = await started(tree)
    await tree.set("/controller_epoch", b"9")
    assert await refusal_of(controller.create_topic(NewTopic("a"))) is ErrorCode.NOT_CONTROLLER
    assert controller.image.topics == {}
    assert await tree.children("/brokers/topics") == []


async def test_a_second_broker_gets_the_reason_why_it_cannot_join(sessions: Sessions, tree: Tree) -> None:
    await started(tree)
    other = await sessions.open()
    with pytest.raises(UserError, match=r"broker\.id=1 is in use"):
        await started(other)
    with pytest.raises(UserError, match="Another broker is the controller"):
        await new_controller(other, broker_id=2).start(ENDPOINTS)


async def test_an_operation_that_began_runs_to_its_end_when_its_caller_is_cancelled(tree: Tree) -> None:
    controller = await started(tree)

    def cancel_the_caller(_image: Image, _changes: Sequence[Change]) -> None:
        scope.cancel()

    await controller.create_topic(NewTopic("a"))
    controller.add_listener(cancel_the_caller)
    with trio.CancelScope() as scope:
        await controller.delete_topic(name="a")
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert await tree.children("/brokers/topics") == []
    assert await tree.children("/admin/delete_topics") == []


async def test_generated_broker_ids_begin_above_the_reserved_ones(tree: Tree) -> None:
    assert await generate_broker_id(tree, reserved_max_id=1000) == 1001
    assert await generate_broker_id(tree, reserved_max_id=1000) == 1002


async def test_an_invalid_node_stops_the_start_in_one_line(sessions: Sessions, tree: Tree) -> None:
    await (await started(tree)).create_topic(NewTopic("a"))
    await tree.set("/brokers/topics/a", b"garbage")
    with pytest.raises(UserError, match="topic a is not JSON"):
        await restarted(sessions, tree)
