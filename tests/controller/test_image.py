"""The image, its changes, and the pure rules that place replicas and elect leaders."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.config.endpoints import Endpoint
from kbroker.controller.changes import (
    BrokerAdded,
    BrokerRemoved,
    ClusterIdSet,
    ControllerChanged,
    PartitionsChanged,
    TopicAdded,
    TopicConfigsChanged,
    TopicRemoved,
    apply,
)
from kbroker.controller.image import NO_LEADER, BrokerRegistration, Image, PartitionState, TopicImage
from kbroker.controller.rules.election import elect, initial_state
from kbroker.controller.rules.placement import place_replicas

BROKER = BrokerRegistration(1, 77, (Endpoint("PLAINTEXT", "h", 9092), Endpoint("SSL", "h", 9093, "SSL")))


def partition(leader: int = 1, epoch: int = 0, isr: tuple[int, ...] = (1,)) -> PartitionState:
    return PartitionState(leader, epoch, isr, (1, 2, 3), partition_epoch=4)


def topic(name: str, number: int = 1, partitions: int = 2) -> TopicImage:
    return TopicImage(name, bytes(15) + bytes([number]), (partition(),) * partitions)


def test_a_topic_is_found_by_name_and_by_id() -> None:
    image = apply(Image(), [TopicAdded(topic("a", 1)), TopicAdded(topic("b", 2))])
    assert image.topic("a") is image.topic_by_id(topic("a", 1).id)
    assert image.topic("c") is None
    assert image.topic_by_id(bytes(16)) is None


def test_an_unknown_partition_is_none() -> None:
    image = apply(Image(), [TopicAdded(topic("a", partitions=2))])
    assert image.partition("a", 1) == partition()
    assert image.partition("a", 2) is None
    assert image.partition("a", -1) is None
    assert image.partition("b", 0) is None


def test_a_change_leaves_the_old_image_as_it_was() -> None:
    old = apply(Image(), [TopicAdded(topic("a"))])
    new = apply(old, [TopicRemoved(topic("a")), BrokerAdded(BROKER), ClusterIdSet("c"), ControllerChanged(1, 5)])
    assert "a" in old.topics
    assert old.topic_by_id(topic("a").id) is not None
    assert old.brokers == {}
    assert new.topics == {}
    assert new.topic_names_by_id == {}
    assert new.topic_names_by_collision_key == {}
    assert new.brokers == {1: BROKER}
    assert (new.cluster_id, new.controller_id, new.controller_epoch) == ("c", 1, 5)
    assert apply(new, [BrokerRemoved(1)]).brokers == {}


def test_partitions_change_by_number_and_grow_at_the_end() -> None:
    image = apply(Image(), [TopicAdded(topic("a", partitions=2))])
    changed = apply(image, [PartitionsChanged("a", {3: partition(4), 1: partition(2, 1), 2: partition(3)})])
    assert [partition.leader for partition in changed.topics["a"].partitions] == [1, 2, 3, 4]


def test_new_configs_replace_all_old_ones() -> None:
    image = apply(Image(), [TopicAdded(topic("a")), TopicConfigsChanged("a", {"retention.ms": "1"})])
    assert image.topics["a"].configs == {"retention.ms": "1"}
    assert apply(image, [TopicConfigsChanged("a", {})]).topics["a"].configs == {}


def test_colliding_names_are_found_until_the_last_topic_is_removed() -> None:
    image = apply(Image(), [TopicAdded(topic("a.b", 1)), TopicAdded(topic("a_b", 2))])
    assert image.colliding_topic("a.b") == "a_b"
    image = apply(image, [TopicRemoved(topic("a_b", 2))])
    assert image.colliding_topic("a.b") is None
    assert image.colliding_topic("a_b") == "a.b"
    assert apply(image, [TopicRemoved(topic("a.b", 1))]).colliding_topic("a_b") is None


def test_internal_topics_are_recognised() -> None:
    assert topic("__consumer_offsets").is_internal
    assert not topic("orders").is_internal
    assert topic("orders").replication_factor == 3


def test_a_broker_has_an_endpoint_for_each_listener() -> None:
    assert BROKER.endpoint("SSL") == Endpoint("SSL", "h", 9093, "SSL")
    assert BROKER.endpoint("OTHER") is None


def test_placement_is_kafkas_for_five_brokers() -> None:
    # The example in Kafka's AdminUtils: ten partitions, three replicas, from broker 0.
    placed = place_replicas(dict.fromkeys(range(5)), partitions=10, replication_factor=3, start=0, shift=0)
    assert placed[:6] == [(0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1), (0, 2, 3)]
    assert placed[6:] == [(1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2)]


def test_placement_in_racks_is_kafkas() -> None:
    # The example in Kafka's AdminUtils: the list of alternating racks is 0, 3, 1, 5, 4, 2.
    racks = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
    placed = place_replicas(racks, partitions=7, replication_factor=3, start=0, shift=0)
    assert placed == [(0, 3, 1), (3, 1, 5), (1, 5, 4), (5, 4, 2), (4, 2, 0), (2, 0, 3), (0, 4, 2)]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.data())
def test_replicas_are_in_as_many_racks_as_possible(numbers: list[int], data: st.DataObject) -> None:
    racks = {broker_id: f"rack{number}" for broker_id, number in enumerate(numbers)}
    factor = data.draw(st.integers(1, len(racks)))
    start, shift = (data.draw(st.integers(0, len(racks) - 1)) for _ in range(2))
    for replicas in place_replicas(racks, partitions=20, replication_factor=factor, start=start, shift=shift):
        assert len(set(replicas)) == factor
        assert len({racks[replica] for replica in replicas}) == min(factor, len(set(numbers)))


def test_racks_are_ignored_if_a_broker_has_none() -> None:
    rules = {"partitions": 6, "replication_factor": 2, "start": 1, "shift": 1}
    assert place_replicas({1: "a", 2: "a", 3: None}, **rules) == place_replicas(dict.fromkeys((1, 2, 3)), **rules)


@given(st.integers(1, 7), st.data())
def test_placement_is_even_and_never_puts_two_replicas_on_one_broker(brokers: int, data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, brokers))
    rounds = data.draw(st.integers(1, 4))
    start, shift = (data.draw(st.integers(0, brokers - 1)) for _ in range(2))
    ids = [10 * number for number in range(brokers)]
    placed = place_replicas(
        dict.fromkeys(ids), partitions=rounds * brokers, replication_factor=factor, start=start, shift=shift
    )
    assert all(len(set(replicas)) == factor for replicas in placed)
    assert Counter(replicas[0] for replicas in placed) == dict.fromkeys(ids, rounds)
    assert Counter(replica for replicas in placed for replica in replicas) == dict.fromkeys(ids, rounds * factor)


@given(st.integers(0, 12), st.integers(1, 12))
def test_added_partitions_continue_the_round_robin(first: int, more: int) -> None:
    rules = {"replication_factor": 2, "start": 1, "shift": 1}
    brokers = dict.fromkeys((1, 2, 3))
    whole = place_replicas(brokers, partitions=first + more, **rules)
    begun = place_replicas(brokers, partitions=first, **rules)
    assert begun + place_replicas(brokers, partitions=more, first_partition=first, **rules) == whole


def test_a_new_partition_is_led_by_its_first_live_replica() -> None:
    state = initial_state((3, 1, 2), {1, 2}, controller_epoch=9)
    assert (state.leader, state.isr, state.replicas) == (1, (1, 2), (3, 1, 2))
    assert (state.leader_epoch, state.partition_epoch, state.controller_epoch) == (0, 0, 9)
    assert initial_state((3,), {1}, controller_epoch=9).leader == NO_LEADER


@pytest.mark.parametrize(
    ("before", "live", "unclean", "leader", "isr"),
    [
        (partition(leader=1, isr=(3, 2, 1)), {2, 3}, False, 2, (3, 2)),
        (partition(leader=1, isr=(1, 3)), {2, 3}, False, 3, (3,)),
        (partition(leader=1, isr=(1,)), {2, 3}, False, NO_LEADER, (1,)),
        (partition(leader=1, isr=(1,)), {2, 3}, True, 2, (2,)),
        (partition(leader=1, isr=(1,)), set(), True, NO_LEADER, (1,)),
        (partition(leader=NO_LEADER, isr=(1,)), {1}, False, 1, (1,)),
    ],
)
def test_a_partition_with_a_dead_leader_gets_a_new_leader_and_epoch(
    before: PartitionState, live: set[int], unclean: bool, leader: int, isr: tuple[int, ...]
) -> None:
    after = elect(before, live, controller_epoch=8, unclean_is_allowed=unclean)
    assert after is not None
    assert (after.leader, after.isr) == (leader, isr)
    assert (after.leader_epoch, after.partition_epoch, after.controller_epoch) == (1, 5, 8)


def test_a_live_leader_and_a_partition_without_candidates_do_not_change() -> None:
    assert elect(partition(leader=1), {1}, controller_epoch=8) is None
    assert elect(partition(leader=NO_LEADER), {2}, controller_epoch=8) is None
