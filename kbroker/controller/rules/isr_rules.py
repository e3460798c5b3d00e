"""Validation of ISRs that leaders propose, as in Kafka's controller. Pure."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from kbroker.controller.image import PartitionState
from kbroker.controller.rules.election import is_online
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["IsrProposal", "validate_proposal"]


@dataclass(frozen=True, slots=True)
class IsrProposal:
    topic_name: str
    index: int
    leader_epoch: int
    partition_epoch: int
    """Version of the state that the leader knows and wants to replace."""
    isr: tuple[int, ...]


def validate_proposal(
    partition: PartitionState,
    proposal: IsrProposal,
    leader: int,
    eligible: Container[int],
    *,
    controller_epoch: int,
) -> PartitionState | Refusal:
    """Returns the new state, or `partition` itself if it has the proposed ISR already."""
    if proposal.partition_epoch > partition.partition_epoch or proposal.leader_epoch > partition.leader_epoch:
        # The leader knows a newer state, so a newer controller has sent it.
        return Refusal(ErrorCode.NOT_CONTROLLER)
    if proposal.leader_epoch < partition.leader_epoch:
        return Refusal(ErrorCode.FENCED_LEADER_EPOCH)
    if partition.leader != leader or not proposal.isr or not set(proposal.isr) <= set(partition.replicas):
        return Refusal(ErrorCode.INVALID_REQUEST)
    if set(proposal.isr) == set(partition.isr):
        return partition
    if proposal.partition_epoch < partition.partition_epoch:
        return Refusal(ErrorCode.INVALID_UPDATE_VERSION)
    if leader not in proposal.isr:
        return Refusal(ErrorCode.INVALID_REQUEST)
    if not all(is_online(partition, replica, eligible) for replica in proposal.isr if replica not in partition.isr):
        return Refusal(ErrorCode.INELIGIBLE_REPLICA)
    return partition._replace(
        isr=proposal.isr, partition_epoch=partition.partition_epoch + 1, controller_epoch=controller_epoch
    )
