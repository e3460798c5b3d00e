"""Plans moves of replicas: balance a cluster, drain or replace a broker, change the number of replicas of a topic.

Pure: no requests. A plan never has two replicas of a partition on one broker, and moves only replicas that have to
move. It never loses a rack, unless a user gives the replicas (`plan_assignment`). Raises UserError if there is no such
plan, or a move of it could never finish.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from kbroker.client.reassignment.draft import PlacementDraft
from kbroker.client.reassignment.layout import (
    ClusterLayout,
    PartitionLayout,
    ReassignmentPlan,
    partition_text,
)
from kbroker.errors import UserError
from kbroker.names import TopicPartition

__all__ = ["plan_assignment", "plan_balance", "plan_drain", "plan_replacement", "plan_replicas"]


def plan_balance(layout: ClusterLayout) -> ReassignmentPlan:
    """Spreads replicas and preferred leaders evenly over the live brokers. A balanced cluster has an empty plan."""
    for partition in layout.partitions:
        for broker_id in partition.replicas:
            if broker_id not in layout.racks:
                raise UserError(
                    f"Broker {broker_id} is down and has replicas. Start it, or move them to other brokers with "
                    f"'kbroker cluster drain {broker_id}'."
                )
    draft = PlacementDraft(layout)
    draft.spread_racks()
    draft.spread_replicas()
    draft.spread_leaders(draft.partitions)
    return _checked(draft.plan(), layout)


def plan_drain(layout: ClusterLayout, broker_id: int) -> ReassignmentPlan:
    """Moves all replicas of a broker to other live brokers. The broker may be down."""
    _check_exists(layout, broker_id)
    if not layout.racks.keys() - {broker_id}:
        raise UserError(f"Broker {broker_id} is the only live broker: there is no broker to move its replicas to.")
    draft = PlacementDraft(layout)
    keys = [partition.key for partition in _largest_first(_of_broker(layout, broker_id))]
    for key in keys:
        target = draft.best_target(key, without=broker_id)
        if target is None:
            _raise_too_few_brokers(draft.partitions[key], len(layout.racks.keys() - {broker_id}))
        draft.substitute(key, source=broker_id, target=target)
    draft.spread_leaders(keys)
    return _checked(draft.plan(), layout)


def plan_replacement(layout: ClusterLayout, *, old: int, new: int) -> ReassignmentPlan:
    """Gives all replicas of the broker `old` to the broker `new`, at the same places. `old` may be down.

    A partition that has a replica on `new` already gets one on another broker.
    """
    _check_exists(layout, old)
    _check_exists(layout, new)
    if old == new:
        raise UserError(f"Broker {old} cannot replace itself.")
    if new not in layout.racks:
        raise UserError(f"Broker {new} is down. Start it first.")
    draft = PlacementDraft(layout)
    for partition in _largest_first(_of_broker(layout, old)):
        target = draft.best_target(partition.key, without=old) if new in partition.replicas else new
        if target is None:
            _raise_too_few_brokers(partition, len(layout.racks.keys() - {old}))
        if target == new:
            _check_racks_kept(draft, partition, layout, old=old, new=new)
        draft.substitute(partition.key, source=old, target=target)
    return _checked(draft.plan(), layout)


def plan_replicas(layout: ClusterLayout, topic: str, count: int, *, min_insync_replicas: int) -> ReassignmentPlan:
    """Gives each partition of a topic `count` replicas. Existing replicas stay where they are."""
    if count > len(layout.racks):
        alive = "1 broker is" if len(layout.racks) == 1 else f"{len(layout.racks)} brokers are"
        raise UserError(f"Topic '{topic}' cannot have {count} replicas: only {alive} alive.")
    if count < min_insync_replicas:
        raise UserError(
            f"Topic '{topic}' has min.insync.replicas={min_insync_replicas}: producers with acks=all could not write "
            f"to fewer replicas. Lower min.insync.replicas first."
        )
    draft = PlacementDraft(layout)
    keys = [partition.key for partition in layout.partitions if partition.topic == topic]
    changed = [key for key in keys if len(draft.replicas[key]) != count]
    for key in changed:
        while len(draft.replicas[key]) > count:
            removed = draft.least_useful(key)
            draft.assign(key, tuple(broker_id for broker_id in draft.replicas[key] if broker_id != removed))
        while len(draft.replicas[key]) < count:
            target = draft.best_target(key)
            assert target is not None  # `count` live brokers, and fewer replicas
            draft.assign(key, (*draft.replicas[key], target))
    draft.spread_leaders(changed)
    return _checked(draft.plan(), layout)


def plan_assignment(layout: ClusterLayout, assignment: Mapping[TopicPartition, tuple[int, ...]]) -> ReassignmentPlan:
    """Gives each of these partitions the replicas of `assignment`, the preferred leader first."""
    draft = PlacementDraft(layout)
    for key, replicas in assignment.items():
        if key not in draft.partitions:
            raise UserError(
                f"Partition {partition_text(key)} does not exist. Run 'kbroker topics describe' to see all partitions."
            )
        for broker_id in replicas:
            _check_exists(layout, broker_id)
        draft.assign(key, replicas)
    return _checked(draft.plan(), layout)


def _of_broker(layout: ClusterLayout, broker_id: int) -> list[PartitionLayout]:
    return [partition for partition in layout.partitions if broker_id in partition.replicas]


def _largest_first(partitions: list[PartitionLayout]) -> list[PartitionLayout]:
    return sorted(partitions, key=lambda partition: (-partition.size_bytes, partition.key))


def _check_exists(layout: ClusterLayout, broker_id: int) -> None:
    if broker_id not in layout.racks and not _of_broker(layout, broker_id):
        raise UserError(f"Broker {broker_id} does not exist. Run 'kbroker cluster describe' to see all brokers.")


def _check_racks_kept(
    draft: PlacementDraft, partition: PartitionLayout, layout: ClusterLayout, *, old: int, new: int
) -> None:
    others = [broker_id for broker_id in partition.replicas if broker_id != old]
    best = draft.best_target(partition.key, without=old)
    if best is not None and draft.rack_count([*others, new]) < draft.rack_count([*others, best]):
        raise UserError(
            f"{partition_text(partition.key)} would have two replicas in rack {layout.racks[new]}, of broker {new}. "
            f"Run 'kbroker cluster drain {old}' to move each replica to a suitable rack."
        )


def _raise_too_few_brokers(partition: PartitionLayout, brokers: int) -> NoReturn:
    count = len(partition.replicas)
    others = "1 other broker is" if brokers == 1 else f"{brokers} other brokers are"
    raise UserError(
        f"Topic '{partition.topic}' has {count} replicas, and only {others} alive. Start another broker, or run "
        f"'kbroker topics replicas {partition.topic} {count - 1}' first."
    )


def _checked(plan: ReassignmentPlan, layout: ClusterLayout) -> ReassignmentPlan:
    """Raises UserError if a move could never finish: all its new replicas have to be in sync."""
    for move in plan.moves:
        for broker_id in move.after:
            if broker_id not in layout.racks:
                raise UserError(
                    f"{partition_text(move.key)} also has a replica on broker {broker_id}, which is down: its move "
                    f"could not finish. Start broker {broker_id} first."
                )
        if move.leader < 0:
            raise UserError(f"{partition_text(move.key)} has no leader to copy from. Start a broker of its replicas.")
    return plan
