"""Whether an ISR that a leader proposes may be, as Kafka's controller judges it. Pure."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from kbroker.controller.image import Partition
from kbroker.errors import Refusal
from kbroker.protocol.error_codes import ErrorCode

__all__ = ["IsrProposal", "judge_proposal"]


@dataclass(frozen=True, slots=True)
class IsrProposal:
    topic_name: str
    index: int
    leader_epoch: int
    partition_epoch: int
    """Of the state that the leader knows, and wants to see replaced."""
    isr: tuple[int, ...]


def judge_proposal(
    partition: Partition, proposal: IsrProposal, leader: int, ready: Container[int], *, controller_epoch: int
) -> Partition | Refusal:
    """The state as it shall be; the partition itself if it is so already."""
    if proposal.partition_epoch > partition.partition_epoch or proposal.leader_epoch > partition.leader_epoch:
        # The leader knows more: whoever told it is the controller now.
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
    if any(replica not in ready for replica in proposal.isr if replica not in partition.isr):
        return Refusal(ErrorCode.INELIGIBLE_REPLICA)
    return partition._replace(
        isr=proposal.isr, partition_epoch=partition.partition_epoch + 1, controller_epoch=controller_epoch
    )
