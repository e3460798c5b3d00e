"""Knowledge about other brokers that all partitions share: live brokers, the channel for ISR proposals, the time.

One object for each broker. Sends nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

from kbroker.clock import Clock
from kbroker.controller.image import PartitionState
from kbroker.controller.rules.isr_rules import IsrProposal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.replication_quota import ReplicationQuota

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition

__all__ = ["Decision", "IsrProposals", "NoController", "Peers"]

Decision = PartitionState | ErrorCode
"""The state that the controller wrote, or the error because of which it did not, or may not have."""


class IsrProposals(Protocol):
    """Channel for a leader's ISR proposals to the controller: AlterPartition (56)."""

    def propose(self, proposal: IsrProposal, done: Callable[[Decision], None]) -> None:
        """Sends a proposal, and retries while the controller cannot be reached. Returns at once.

        Calls `done` once, on the event loop, within this call or later: with the state that the controller wrote; with
        INVALID_REQUEST, INELIGIBLE_REPLICA or OPERATION_NOT_ATTEMPTED if it certainly wrote nothing; with another code
        if it may have written: then the image brings the state.
        """
        ...


class NoController:
    """Refuses all proposals: for a broker without a cluster, whose ISRs never change."""

    def propose(self, proposal: IsrProposal, done: Callable[[Decision], None]) -> None:
        done(ErrorCode.OPERATION_NOT_ATTEMPTED)


class Peers:
    def __init__(self, broker_id: int, clock: Clock, max_lag_ms: int, proposals: IsrProposals | None = None) -> None:
        self.broker_id = broker_id
        self.max_lag_ms = max_lag_ms
        self.proposals: IsrProposals = NoController() if proposals is None else proposals
        self.leader_quota: ReplicationQuota | None = None
        """Limit for records that this broker sends to replicas that are not in sync."""
        self.live: Collection[int] = ()
        self.replicated: dict[Partition, None] = {}
        """Partitions that this broker leads and that have other replicas, in insertion order."""
        self.on_replicated: Callable[[], None] = lambda: None
        """Called when a partition is added to `replicated`, or leads in a new epoch."""
        self.isr_shrinks = 0
        self.isr_expands = 0
        self.failed_isr_updates = 0
        """ISR proposals of this broker that the controller has refused."""
        self._monotonic = clock.monotonic

    def finish_fetches(self) -> None:
        """Completes all delayed fetches of followers with the records available now."""
        states = [partition.leadership for partition in self.replicated]
        for waiter in set().union(*(state.waiters() for state in states if state is not None)):
            waiter.finish()

    def now_ms(self) -> int:
        return int(self._monotonic() * 1000)
