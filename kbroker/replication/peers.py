"""What partitions know of the other brokers: who is alive, who agrees to changes of an in-sync set, and how late it is.

One for all partitions of a broker. Never talks to anybody itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

from kbroker.clock import Clock
from kbroker.controller.image import Partition as PartitionState
from kbroker.controller.isr_rules import IsrProposal
from kbroker.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from kbroker.replication.partition import Partition

__all__ = ["Decision", "IsrProposals", "NoController", "Peers"]

Decision = PartitionState | ErrorCode
"""The state that the controller has written, or why it has not, or may not have."""


class IsrProposals(Protocol):
    """The controller, as a leader asks it: AlterPartition (56)."""

    def propose(self, proposal: IsrProposal, done: Callable[[Decision], None]) -> None:
        """Returns at once. `done` is called on the loop, once, later or within the call: with the state as it is in the
        tree; with INVALID_REQUEST, INELIGIBLE_REPLICA or OPERATION_NOT_ATTEMPTED where the controller has certainly not
        written it; with any other code where nobody knows, or somebody else has written: then the image will tell.
        Whoever implements it tries again by itself while the controller cannot be reached."""
        ...


class NoController:
    """Nobody to ask: the in-sync sets stay as they are."""

    def propose(self, proposal: IsrProposal, done: Callable[[Decision], None]) -> None:
        done(ErrorCode.OPERATION_NOT_ATTEMPTED)


class Peers:
    def __init__(self, broker_id: int, clock: Clock, max_lag_ms: int, proposals: IsrProposals | None = None) -> None:
        self.broker_id = broker_id
        self.max_lag_ms = max_lag_ms
        self.proposals: IsrProposals = NoController() if proposals is None else proposals
        self.live: Collection[int] = ()
        self.replicated: dict[Partition, None] = {}
        """Those that are led here and have other replicas."""
        self.on_replicated: Callable[[], None] = lambda: None
        """Called when there is a new one, or an old one in a new epoch."""
        self._monotonic = clock.monotonic

    def finish_fetches(self) -> None:
        """Fetches of followers that wait here are answered, with what there is."""
        waiting = [each.leadership.replica_waiters for each in self.replicated if each.leadership is not None]
        for waiter in set().union(*waiting):
            waiter.finish()

    def now_ms(self) -> int:
        return int(self._monotonic() * 1000)
