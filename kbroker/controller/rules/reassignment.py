"""Rules for moving a partition to other replicas, as in Kafka 3.9 (KIP-455). Pure.

While a partition moves, its `replicas` are the target replicas and then the other original ones:

| replicas | adding | removing | leader | ISR | |
|--|--|--|--|--|--|
| 1,2,3 | | | 1 | 1,2,3 | before |
| 4,5,1,2,3 | 4,5 | 2,3 | 1 | 1,2,3 | `plan_reassignment`: new leader epoch, 4 and 5 begin to copy |
| 4,5,1,2,3 | 4,5 | 2,3 | 1 | 1,2,3,4,5 | the leader proposed them: every target replica is in sync |
| 4,5,1 | | | 1 | 1,4,5 | `finish_reassignment`: new leader epoch; 4 would lead if 1 was removed |

A cancelled reassignment is a reassignment to the original replicas, so it is finished at once.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from kbroker.controller.image import NO_LEADER, PartitionState
from kbroker.controller.rules.election import is_online
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode

__all__ = [
    "finish_reassignment",
    "is_due",
    "is_moving_to",
    "is_reassigning",
    "plan_reassignment",
    "restart_reassignment",
]

Replicas = tuple[int, ...]


def is_reassigning(partition: PartitionState) -> bool:
    return bool(partition.adding_replicas or partition.removing_replicas)


def is_moving_to(partition: PartitionState, replicas: Sequence[int]) -> bool:
    return is_reassigning(partition) and _target(partition) == tuple(replicas)


def is_due(partition: PartitionState) -> bool:
    """Whether the partition moves and every target replica is in sync."""
    return is_reassigning(partition) and set(_target(partition)) <= set(partition.isr)


def plan_reassignment(
    partition: PartitionState,
    wanted: Sequence[int] | None,
    live: Container[int],
    *,
    controller_epoch: int,
    may_change_factor: bool = True,
) -> PartitionState | Refusal:
    """Returns the next state for a move to the `wanted` replicas; None cancels the current move.

    The state is `partition` itself if nothing changes, and the final state if the wanted replicas are in sync already.
    """
    if wanted is None and not is_reassigning(partition):
        return Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    origin = _without(partition.replicas, partition.adding_replicas)
    if wanted is not None:
        refusal = _refusal(partition, wanted, live, may_change_factor=may_change_factor)
        if refusal is not None:
            return refusal
    target = origin if wanted is None else tuple(wanted)
    replicas = tuple(dict.fromkeys((*target, *origin)))
    moving = partition._replace(
        replicas=replicas, adding_replicas=_without(replicas, origin), removing_replicas=_without(replicas, target)
    )
    if moving == partition:
        return partition
    planned = _completed(moving, live) if not is_reassigning(moving) or is_due(moving) else _within(moving, live)
    if planned is None:
        return Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "Unable to change the replicas of the partition because it would require an unclean leader election.",
        )
    return _next(planned, controller_epoch)


def finish_reassignment(
    partition: PartitionState, live: Container[int], *, controller_epoch: int
) -> PartitionState | None:
    """Returns the state with the target replicas only; None if one is not in sync yet, or none of them is alive."""
    finished = _completed(partition, live) if is_due(partition) else None
    return None if finished is None else _next(finished, controller_epoch)


def restart_reassignment(partition: PartitionState, *, controller_epoch: int) -> PartitionState | None:
    """Returns the state of a moving partition in a new leader epoch; None if it does not move.

    For a new controller: the previous one may have written the replicas without sending them to the leader.
    """
    return _next(partition, controller_epoch) if is_reassigning(partition) else None


def _refusal(
    partition: PartitionState, wanted: Sequence[int], live: Container[int], *, may_change_factor: bool
) -> Refusal | None:
    invalid = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    if not wanted:
        return Refusal(invalid, "The manual partition assignment includes an empty replica list.")
    ordered = sorted(wanted)
    for place, broker_id in enumerate(ordered):
        # A replica whose broker is down may stay, but none may move to a broker that is down.
        if broker_id not in live and broker_id not in _without(partition.replicas, partition.adding_replicas):
            return Refusal(
                invalid,
                f"The manual partition assignment includes broker {broker_id}, but no such broker is registered.",
            )
        if place and ordered[place - 1] == broker_id:
            return Refusal(invalid, f"The manual partition assignment includes the broker {broker_id} more than once.")
    factor = len(_target(partition))
    if not may_change_factor and factor != len(wanted):
        return Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {factor} to {len(wanted)}",
        )
    return None


def _target(partition: PartitionState) -> Replicas:
    return _without(partition.replicas, partition.removing_replicas)


def _without(replicas: Sequence[int], others: Container[int]) -> Replicas:
    return tuple(replica for replica in replicas if replica not in others)


def _completed(partition: PartitionState, live: Container[int]) -> PartitionState | None:
    return _within(partition._replace(replicas=_target(partition), adding_replicas=(), removing_replicas=()), live)


def _within(partition: PartitionState, live: Container[int]) -> PartitionState | None:
    """Limits leader and ISR to the replicas. Returns None if this loses the last replica with all records."""
    replicas = partition.replicas
    isr = tuple(replica for replica in partition.isr if replica in replicas)
    if not isr:
        return None
    leader = partition.leader
    if leader not in replicas or not is_online(partition, leader, live):
        candidates = [replica for replica in replicas if replica in isr and is_online(partition, replica, live)]
        if not candidates and leader != NO_LEADER and is_online(partition, leader, live):
            return None  # a partition that is served must not become unavailable
        leader = candidates[0] if candidates else NO_LEADER
    offline = tuple(replica for replica in partition.offline_replicas if replica in replicas)
    return partition._replace(leader=leader, isr=isr, offline_replicas=offline)


def _next(partition: PartitionState, controller_epoch: int) -> PartitionState:
    return partition._replace(
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
        controller_epoch=controller_epoch,
    )
