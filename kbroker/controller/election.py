"""Who leads a partition. Pure rules: they take who is alive and answer with a partition's next state."""

from __future__ import annotations

from collections.abc import Container

from kbroker.controller.image import NO_LEADER, Partition

__all__ = ["elect", "initial_state"]


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
    return partition._replace(
        leader=candidates[0] if candidates else NO_LEADER,
        leader_epoch=partition.leader_epoch + 1,
        isr=isr or partition.isr,
        partition_epoch=partition.partition_epoch + 1,
        controller_epoch=controller_epoch,
    )
