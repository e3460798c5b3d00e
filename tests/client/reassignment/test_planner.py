"""Plans of moves: what every plan guarantees, and what each command adds to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.client.reassignment.layout import ClusterLayout, PartitionLayout, ReassignmentPlan
from kbroker.client.reassignment.planner import (
    plan_assignment,
    plan_balance,
    plan_drain,
    plan_replacement,
    plan_replicas,
)
from kbroker.errors import UserError
from kbroker.names import TopicPartition

RACKS = ("a", "b", "c")


def layout_of(
    replicas: Mapping[TopicPartition, Sequence[int]],
    racks: Mapping[int, str | None],
    sizes: Mapping[TopicPartition, int] | None = None,
) -> ClusterLayout:
    """Returns a layout in which all live replicas are in sync, and the first of them leads."""
    partitions = []
    for key, brokers in replicas.items():
        live = tuple(broker_id for broker_id in brokers if broker_id in racks)
        leader = live[0] if live else -1
        partitions.append(PartitionLayout(*key, tuple(brokers), live, leader, (sizes or {}).get(key, 0)))
    return ClusterLayout(racks, tuple(partitions))


@st.composite
def layouts(draw: st.DrawFn, *, with_racks: bool | None = None) -> ClusterLayout:
    """Draws brokers, some of them empty, and topics whose replicas are anywhere."""
    brokers = range(1, draw(st.integers(2, 6)) + 1)
    is_racked = draw(st.booleans()) if with_racks is None else with_racks
    racks = {broker_id: draw(st.sampled_from(RACKS)) if is_racked else None for broker_id in brokers}
    replicas, sizes = {}, {}
    for topic in draw(st.lists(st.sampled_from(("orders", "billing", "audit")), unique=True)):
        factor = draw(st.integers(1, min(3, len(brokers))))
        for partition in range(draw(st.integers(1, 6))):
            order = draw(st.permutations(list(brokers)))
            replicas[topic, partition] = order[:factor]
            sizes[topic, partition] = draw(st.integers(0, 1000))
    return layout_of(replicas, racks, sizes)


def applied(layout: ClusterLayout, plan: ReassignmentPlan) -> ClusterLayout:
    """Returns the layout after the plan, with all replicas in sync."""
    after = {move.key: move.after for move in plan.moves}
    partitions = (
        partition._replace(replicas=replicas, isr=replicas, leader=replicas[0])
        for partition in layout.partitions
        for replicas in [after.get(partition.key, partition.replicas)]
    )
    return ClusterLayout(layout.racks, tuple(partitions))


def counts(layout: ClusterLayout) -> list[int]:
    return [
        sum(broker_id in partition.replicas for partition in layout.partitions) for broker_id in sorted(layout.racks)
    ]


def leader_counts(layout: ClusterLayout) -> list[int]:
    return [
        sum(broker_id == partition.replicas[0] for partition in layout.partitions) for broker_id in sorted(layout.racks)
    ]


def rack_count(layout: ClusterLayout, replicas: Sequence[int]) -> int:
    return len({layout.racks[broker_id] for broker_id in replicas if broker_id in layout.racks})


def check_sound(layout: ClusterLayout, plan: ReassignmentPlan) -> None:
    """Checks what holds for every plan."""
    known = {partition.key: partition for partition in layout.partitions}
    assert len({move.key for move in plan.moves}) == len(plan.moves)
    for move in plan.moves:
        assert move.before == known[move.key].replicas
        assert move.after != move.before
        assert len(set(move.after)) == len(move.after)
        assert set(move.after) <= layout.racks.keys()
    after = applied(layout, plan)
    assert [load.replicas for load in plan.after.values()] == counts(after)
    assert [load.leaders for load in plan.after.values()] == leader_counts(after)


def keeps_factor(plan: ReassignmentPlan) -> bool:
    return all(len(move.after) == len(move.before) for move in plan.moves)


# Balance


@given(layouts())
def test_a_balance_loses_no_replica_and_no_rack(layout: ClusterLayout) -> None:
    plan = plan_balance(layout)
    check_sound(layout, plan)
    assert keeps_factor(plan)
    if layout.known_racks:
        racks = len(set(layout.racks.values()))
        for partition in applied(layout, plan).partitions:
            assert rack_count(layout, partition.replicas) == min(racks, len(partition.replicas))


@given(layouts())
def test_a_balanced_cluster_has_an_empty_plan(layout: ClusterLayout) -> None:
    assert plan_balance(applied(layout, plan_balance(layout))).moves == ()


@given(layouts(with_racks=False))
def test_a_balance_has_equal_counts_and_only_as_many_moves_as_they_need(layout: ClusterLayout) -> None:
    plan = plan_balance(layout)
    before, after = counts(layout), counts(applied(layout, plan))
    assert max(after) - min(after) <= 1
    low, rest = divmod(sum(before), len(before))
    high = low + bool(rest)
    too_many, too_few = (sum(max(0, n - high) for n in before), sum(max(0, low - n) for n in before))
    assert plan.added_replicas == max(too_many, too_few)


@given(layouts(with_racks=False))
def test_leaders_are_equal_if_every_broker_has_every_partition(layout: ClusterLayout) -> None:
    brokers = tuple(layout.racks)
    partitions = (partition._replace(replicas=brokers, isr=brokers) for partition in layout.partitions)
    everywhere = ClusterLayout(layout.racks, tuple(partitions))
    plan = plan_balance(everywhere)
    assert plan.added_replicas == 0
    after = leader_counts(applied(everywhere, plan))
    assert max(after) - min(after) <= 1


def test_a_new_broker_gets_its_share_of_each_topic() -> None:
    keys = [(topic, partition) for topic in ("orders", "billing") for partition in range(8)]
    layout = layout_of({key: (1 + key[1] % 3, 1 + (key[1] + 1) % 3) for key in keys}, dict.fromkeys((1, 2, 3, 4)))
    plan = plan_balance(layout)
    after = applied(layout, plan)
    assert counts(after) == [8, 8, 8, 8]
    assert leader_counts(after) == [4, 4, 4, 4]
    assert plan.added_replicas == 8
    moved = [move.topic for move in plan.moves if 4 in move.after]
    assert (moved.count("orders"), moved.count("billing")) == (4, 4)


def test_the_sizes_decide_which_replicas_move() -> None:
    sizes = {("orders", partition): size for partition, size in enumerate((900, 100, 500, 100))}
    layout = layout_of(dict.fromkeys(sizes, (1,)), {1: None, 2: None}, sizes)
    plan = plan_balance(layout)
    assert [load.replicas for load in plan.after.values()] == [2, 2]
    assert sorted(load.size_bytes for load in plan.after.values()) == [600, 1000]


def test_replicas_that_share_a_rack_move_apart() -> None:
    layout = layout_of({("orders", 0): (1, 2)}, {1: "a", 2: "a", 3: "b"})
    (move,) = plan_balance(layout).moves
    assert 3 in move.after


def test_a_rack_with_one_broker_keeps_a_replica_of_each_partition() -> None:
    layout = layout_of({("orders", number): (1, 2) for number in range(4)}, {1: "a", 2: "b", 3: "b"})
    assert counts(applied(layout, plan_balance(layout))) == [4, 2, 2]


def test_racks_are_ignored_if_a_broker_has_none() -> None:
    layout = layout_of({("orders", number): (1, 2) for number in range(3)}, {1: "a", 2: "b", 3: None})
    assert counts(applied(layout, plan_balance(layout))) == [2, 2, 2]


def test_no_balance_while_a_broker_with_replicas_is_down() -> None:
    with pytest.raises(UserError, match=r"^Broker 9 is down and has replicas\. "):
        plan_balance(layout_of({("orders", 0): (1, 9)}, {1: None, 2: None}))


# Drain


@given(layouts(), st.data())
def test_a_drained_broker_has_nothing_left_and_nothing_else_moves(layout: ClusterLayout, data: st.DataObject) -> None:
    broker_id = data.draw(st.sampled_from(sorted(layout.racks)))
    held = {partition.key for partition in layout.partitions if broker_id in partition.replicas}
    try:
        plan = plan_drain(layout, broker_id)
    except UserError:
        others = len(layout.racks) - 1
        assert any(len(partition.replicas) > others for partition in layout.partitions if partition.key in held)
        return
    check_sound(layout, plan)
    assert keeps_factor(plan)
    assert {move.key for move in plan.moves} == held
    for move in plan.moves:
        assert broker_id not in move.after
        assert len(move.adding) == 1
        if layout.known_racks:
            kept = [kept for kept in move.before if kept != broker_id]
            possible = [target for target in layout.racks if target not in move.before]
            assert rack_count(layout, move.after) == max(rack_count(layout, [*kept, target]) for target in possible)


def test_the_replicas_of_a_drained_broker_are_spread() -> None:
    layout = layout_of({("orders", number): (1,) for number in range(6)}, dict.fromkeys((1, 2, 3, 4)))
    assert counts(applied(layout, plan_drain(layout, 1))) == [0, 2, 2, 2]


def test_a_broker_that_is_down_can_be_drained() -> None:
    layout = layout_of({("orders", 0): (9, 1), ("orders", 1): (2, 1)}, dict.fromkeys((1, 2, 3)))
    (move,) = plan_drain(layout, 9).moves
    assert (move.partition, set(move.after), move.leader) == (0, {1, 3}, 1)


@pytest.mark.parametrize(
    ("replicas", "live", "problem"),
    [
        ((1,), (1,), r"Broker 1 is the only live broker"),
        ((2,), (2, 3), r"Broker 1 does not exist"),
        ((1, 2), (1, 2), r"Topic 'orders' has 2 replicas, and only 1 other broker is alive"),
        ((1,), (2, 3), r"orders-0 has no leader to copy from"),
        ((1, 9), (1, 2, 3), r"orders-0 also has a replica on broker 9, which is down"),
    ],
)
def test_no_drain_that_cannot_finish(replicas: tuple[int, ...], live: tuple[int, ...], problem: str) -> None:
    with pytest.raises(UserError, match=f"^{problem}"):
        plan_drain(layout_of({("orders", 0): replicas}, dict.fromkeys(live)), 1)


# Replace


@given(layouts(with_racks=False))
def test_a_new_broker_takes_the_place_of_the_old_one(layout: ClusterLayout) -> None:
    layout = ClusterLayout({**layout.racks, 7: None}, layout.partitions)
    plan = plan_replacement(layout, old=1, new=7)
    check_sound(layout, plan)
    replaced = {
        partition.key: tuple(7 if broker_id == 1 else broker_id for broker_id in partition.replicas)
        for partition in layout.partitions
        if 1 in partition.replicas
    }
    assert {move.key: move.after for move in plan.moves} == replaced


def test_a_partition_that_has_a_replica_on_the_new_broker_gets_another_one() -> None:
    layout = layout_of({("orders", 0): (1, 2)}, dict.fromkeys((1, 2, 3)))
    (move,) = plan_replacement(layout, old=1, new=2).moves
    assert move.after == (3, 2)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (1, 1, r"Broker 1 cannot replace itself"),
        (1, 8, r"Broker 8 does not exist"),
        (8, 1, r"Broker 8 does not exist"),
        (1, 9, r"Broker 9 is down"),
        (1, 4, r"orders-0 would have two replicas in rack b, of broker 4"),
    ],
)
def test_no_replacement_with_an_unsuitable_broker(old: int, new: int, problem: str) -> None:
    layout = layout_of({("orders", 0): (1, 2), ("orders", 1): (2, 9)}, {1: "a", 2: "b", 3: "a", 4: "b"})
    with pytest.raises(UserError, match=f"^{problem}"):
        plan_replacement(layout, old=old, new=new)


# Number of replicas


@given(layouts(), st.integers(1, 6), st.integers(1, 3))
def test_a_topic_gets_its_number_of_replicas(layout: ClusterLayout, count: int, min_insync_replicas: int) -> None:
    try:
        plan = plan_replicas(layout, "orders", count, min_insync_replicas=min_insync_replicas)
    except UserError:
        assert count > len(layout.racks) or count < min_insync_replicas
        return
    check_sound(layout, plan)
    assert min_insync_replicas <= count
    after = applied(layout, plan)
    assert all(len(partition.replicas) == count for partition in after.partitions if partition.topic == "orders")
    for move in plan.moves:
        assert move.topic == "orders"
        assert len(move.adding) == max(0, count - len(move.before))
        assert len(move.removing) == max(0, len(move.before) - count)
        if layout.known_racks:
            racks = len(set(layout.racks.values()))
            before = rack_count(layout, move.before)
            assert rack_count(layout, move.after) == min(racks, before + len(move.adding), count) or move.removing
            assert rack_count(layout, move.after) >= min(before, count)


def test_the_replica_that_is_not_in_sync_is_removed_first() -> None:
    partition = PartitionLayout("orders", 0, (1, 2, 3), (2, 3), 2)
    layout = ClusterLayout(dict.fromkeys((1, 2, 3)), (partition,))
    (move,) = plan_replicas(layout, "orders", 2, min_insync_replicas=1).moves
    assert move.removing == (1,)


def test_the_replica_that_is_down_is_removed_first() -> None:
    layout = layout_of({("orders", 0): (9, 1, 2)}, dict.fromkeys((1, 2)))
    (move,) = plan_replicas(layout, "orders", 2, min_insync_replicas=1).moves
    assert move.removing == (9,)


def test_new_replicas_do_not_all_become_leaders_of_one_broker() -> None:
    layout = layout_of({("orders", number): (1,) for number in range(3)}, dict.fromkeys((1, 2, 3)))
    after = applied(layout, plan_replicas(layout, "orders", 3, min_insync_replicas=1))
    assert leader_counts(after) == [1, 1, 1]


# Given replicas


def test_partitions_get_the_replicas_that_are_given_in_their_order() -> None:
    layout = layout_of({("orders", 0): (1, 2), ("orders", 1): (2, 3), ("orders", 2): (3, 1)}, dict.fromkeys((1, 2, 3)))
    wanted = {("orders", 0): (3, 1), ("orders", 1): (2, 3)}
    (move,) = plan_assignment(layout, wanted).moves
    assert (move.key, move.before, move.after, move.leader) == (("orders", 0), (1, 2), (3, 1), 1)


def test_given_replicas_on_a_broker_that_is_down_are_refused() -> None:
    layout = layout_of({("orders", 0): (1,), ("orders", 1): (9,)}, dict.fromkeys((1, 2)))
    with pytest.raises(UserError, match=r"^orders-0 also has a replica on broker 9, which is down"):
        plan_assignment(layout, {("orders", 0): (9,)})
