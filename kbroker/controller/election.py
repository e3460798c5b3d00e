"""Who leads a partition. Pure rules: they take who is alive and answer with a partition's next state."""

from __future__ import annotations

from collections.abc import Container

from kbroker.controller.image import NO_LEADER, Partition

__all__ = ["elect", "elect_preferred", "hand_over", "initial_state", "without_dead"]


def initial_state(replicas: tuple[int, ...], live: Container[int], controller_epoch: int) -> Partition:
    """A new partition: every live replica is in sync, as there is nothing to have missed, and the first one leads."""
    isr = tuple(replica for replica in replicas if replica in live)
    return Partition(
        leader=isr[0] if isr else NO_LEADER,
        leader_epoch=0,
        isr=isr or replicas[:1],
        replicas=replicas,
        partition_epoch=0,
        controller_epoch=controller_epoch,
    )


def elect(
    partition: Partition, live: Container[int], *, controller_epoch: int, unclean_is_allowed: bool = False
) -> Partition | None:
    """The state with a new leader, or None if it is to stay as it is.

    | the leader | who may lead | outcome |
    |--|--|--|
    | alive | | stays |
    | gone | a live replica of the ISR, first in the assignment | leads; the ISR keeps its live members |
    | gone | no such replica, unclean allowed: any live replica | leads alone; what it missed is lost |
    | gone | none | no leader; the ISR stays, so that one of it must come back |
    """
    if partition.leader in live:
        return None
    candidates = [replica for replica in partition.replicas if replica in live and replica in partition.isr]
    isr = tuple(replica for replica in partition.isr if replica in live)
    if not candidates and unclean_is_allowed:
        candidates = [replica for replica in partition.replicas if replica in live]
        isr = tuple(candidates[:1])
    if not candidates and partition.leader == NO_LEADER:
        return None
    leader = candidates[0] if candidates else NO_LEADER
    return _next(partition, leader=leader, isr=isr or partition.isr, controller_epoch=controller_epoch)


def elect_preferred(partition: Partition, live: Container[int], *, controller_epoch: int) -> Partition | None:
    """The state with the first replica as the leader, or None if that one is not there or not in sync."""
    preferred = partition.replicas[0]
    if preferred not in live or preferred not in partition.isr:
        return None
    return _next(partition, leader=preferred, isr=partition.isr, controller_epoch=controller_epoch)


def without_dead(partition: Partition, live: Container[int], *, controller_epoch: int) -> Partition | None:
    """The state under the same leader without those of the ISR that are gone, or None if nobody is."""
    isr = tuple(replica for replica in partition.isr if replica in live)
    if len(isr) == len(partition.isr):
        return None
    return _next(partition, leader=partition.leader, isr=isr, controller_epoch=controller_epoch)


def hand_over(partition: Partition, leaving: int, ready: Container[int], *, controller_epoch: int) -> Partition | None:
    """The state before a broker stops in good order, or None if it is to stay as it is.

    | the broker | outcome |
    |--|--|
    | leads, and others of the ISR are ready | the first of them in the assignment leads; the broker leaves the ISR |
    | leads, nobody else could | stays: going down is then no worse than dying |
    | follows, in the ISR | leaves the ISR |
    """
    if leaving not in partition.isr:
        return None
    others = tuple(replica for replica in partition.isr if replica in ready)
    if partition.leader != leaving:
        remaining = tuple(replica for replica in partition.isr if replica != leaving)
        if not remaining:
            return None
        return _next(partition, leader=partition.leader, isr=remaining, controller_epoch=controller_epoch)
    candidates = [replica for replica in partition.replicas if replica in others]
    if not candidates:
        return None
    return _next(partition, leader=candidates[0], isr=others, controller_epoch=controller_epoch)


def _next(partition: Partition, *, leader: int, isr: tuple[int, ...], controller_epoch: int) -> Partition:
    return partition._replace(
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
        isr=isr,
        partition_epoch=partition.partition_epoch + 1,
        controller_epoch=controller_epoch,
    )
