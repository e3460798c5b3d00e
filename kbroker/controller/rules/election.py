"""Rules for leader elections. Pure: they take a partition's state and the live brokers, and return its next state."""

from __future__ import annotations

from collections.abc import Container

from kbroker.controller.image import NO_LEADER, PartitionState

__all__ = ["elect", "elect_for_shutdown", "elect_preferred", "initial_state", "is_online", "shrink_isr"]


def is_online(partition: PartitionState, replica: int, live: Container[int]) -> bool:
    """Whether the replica can be used: its broker is alive, and the data directory with it has not failed."""
    return replica in live and replica not in partition.offline_replicas


def initial_state(replicas: tuple[int, ...], live: Container[int], controller_epoch: int) -> PartitionState:
    """Returns the state of a new partition: the first live replica leads, all live replicas are in sync."""
    isr = tuple(replica for replica in replicas if replica in live)
    return PartitionState(
        leader=isr[0] if isr else NO_LEADER,
        leader_epoch=0,
        isr=isr or replicas[:1],  # never empty: only a member of the ISR can become leader without losing records
        replicas=replicas,
        partition_epoch=0,
        controller_epoch=controller_epoch,
    )


def elect(
    partition: PartitionState, live: Container[int], *, controller_epoch: int, unclean_is_allowed: bool = False
) -> PartitionState | None:
    """Returns the state with a new leader, or None if the state does not change.

    | leader | candidate | outcome |
    |--|--|--|
    | alive | | no change |
    | dead | first live replica of the ISR, in assignment order | leads; the ISR keeps its live members |
    | dead | none in the ISR, unclean allowed: first live replica | leads as the only ISR member; may lose records |
    | dead | none | no leader; the ISR stays, so that only one of its members can become leader |
    """
    if is_online(partition, partition.leader, live):
        return None
    online = [replica for replica in partition.replicas if is_online(partition, replica, live)]
    candidates = [replica for replica in online if replica in partition.isr]
    isr = tuple(replica for replica in partition.isr if replica in online)
    if not candidates and unclean_is_allowed:
        candidates = online
        isr = tuple(candidates[:1])
    if not candidates and partition.leader == NO_LEADER:
        return None
    leader = candidates[0] if candidates else NO_LEADER
    return _next(partition, leader=leader, isr=isr or partition.isr, controller_epoch=controller_epoch)


def elect_preferred(partition: PartitionState, live: Container[int], *, controller_epoch: int) -> PartitionState | None:
    """Returns the state with the first replica as leader, or None if that replica is not live or not in sync."""
    preferred = partition.replicas[0]
    if not is_online(partition, preferred, live) or preferred not in partition.isr:
        return None
    return _next(partition, leader=preferred, isr=partition.isr, controller_epoch=controller_epoch)


def shrink_isr(partition: PartitionState, live: Container[int], *, controller_epoch: int) -> PartitionState | None:
    """Returns the state without dead brokers and failed replicas in the ISR, or None if there are none."""
    isr = tuple(replica for replica in partition.isr if is_online(partition, replica, live))
    if len(isr) == len(partition.isr):
        return None
    return _next(partition, leader=partition.leader, isr=isr, controller_epoch=controller_epoch)


def elect_for_shutdown(
    partition: PartitionState, leaving: int, eligible: Container[int], *, controller_epoch: int
) -> PartitionState | None:
    """Returns the state for the controlled shutdown of broker `leaving`, or None if the state does not change.

    | the broker | outcome |
    |--|--|
    | leads, and the ISR has other eligible members | first of them in the assignment leads; broker leaves the ISR |
    | leads, and no other replica can | no change |
    | follows, in the ISR | leaves the ISR |
    """
    if leaving not in partition.isr:
        return None
    others = tuple(replica for replica in partition.isr if is_online(partition, replica, eligible))
    if partition.leader != leaving:
        remaining = tuple(replica for replica in partition.isr if replica != leaving)
        if not remaining:
            return None
        return _next(partition, leader=partition.leader, isr=remaining, controller_epoch=controller_epoch)
    candidates = [replica for replica in partition.replicas if replica in others]
    if not candidates:
        return None
    return _next(partition, leader=candidates[0], isr=others, controller_epoch=controller_epoch)


def _next(partition: PartitionState, *, leader: int, isr: tuple[int, ...], controller_epoch: int) -> PartitionState:
    return partition._replace(
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
        isr=isr,
        partition_epoch=partition.partition_epoch + 1,
        controller_epoch=controller_epoch,
    )
