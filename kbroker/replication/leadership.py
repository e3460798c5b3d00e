"""A partition that is led here and has other replicas: what they have, who is in sync, and who waits for them.

Only there where a partition has other replicas: one that has none pays nothing for it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kbroker.controller.image import Partition as PartitionState
from kbroker.controller.isr_rules import IsrProposal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.leader_view import LeaderView, Proposal
from kbroker.replication.peers import Decision, Peers

if TYPE_CHECKING:
    from kbroker.replication.partition import FetchWaiter, Partition

__all__ = ["Leadership"]

logger = logging.getLogger(__name__)

_NOT_WRITTEN: Final = frozenset(
    (ErrorCode.INVALID_REQUEST, ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)
)


class Leadership:
    __slots__ = (
        "_marks",
        "_partition",
        "_peers",
        "_seen_bytes",
        "flush_waiters",
        "log_start_waiters",
        "replica_waiters",
        "view",
    )

    def __init__(self, partition: Partition, state: PartitionState, peers: Peers) -> None:
        self._partition = partition
        self._peers = peers
        self._marks: deque[tuple[int, int]] = deque()
        """Where writes ended, and how many bytes had been appended then: those that are not committed yet."""
        self._seen_bytes = partition.log.appended_bytes
        self.replica_waiters: set[FetchWaiter] = set()
        """Fetches of followers, which see the log to its end."""
        self.flush_waiters: deque[tuple[int, Callable[[int], None]]] = deque()
        """Producers that wait for this broker's disk, and not for others."""
        self.log_start_waiters: list[Callable[[], bool]] = []
        """Called when a follower's log start may have moved; True: it waits no longer."""
        self.view = LeaderView(
            peers.broker_id,
            state.replicas,
            state.isr,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            epoch_start_offset=partition.log.log_end_offset,
            max_lag_ms=peers.max_lag_ms,
            now_ms=peers.now_ms(),
        )

    # The leader's own log

    def on_written(self, end_offset: int, appended_bytes: int) -> None:
        """More bytes, which followers see at once and consumers when they are committed."""
        size, self._seen_bytes = appended_bytes - self._seen_bytes, appended_bytes
        self._marks.append((end_offset, appended_bytes))
        if self.replica_waiters:
            for waiter in list(self.replica_waiters):
                waiter.on_visible(size)

    def bytes_below(self, offset: int) -> int | None:
        """How many bytes had been appended up to there; None if that falls within what was written at once."""
        found = None
        marks = self._marks
        while marks and marks[0][0] <= offset:
            found = marks.popleft()[1]
        return found

    def on_flushed(self, recovery_point: int) -> None:
        waiters = self.flush_waiters
        while waiters and waiters[0][0] < recovery_point:
            waiters.popleft()[1](ErrorCode.NONE)

    def high_watermark(self, own_end: int, min_insync_replicas: int) -> int | None:
        peers = self._peers
        return self.view.high_watermark(own_end, peers.now_ms(), peers.live, min_insync_replicas)

    # Followers

    def on_fetch(self, broker_id: int, offset: int, log_start_offset: int, broker_epoch: int) -> bool:
        """False: that broker has no replica."""
        partition = self._partition
        leader_end = partition.log.log_end_offset
        now_ms = self._peers.now_ms()
        if not self.view.on_fetch(
            broker_id, offset, log_start_offset, broker_epoch, leader_end=leader_end, now_ms=now_ms
        ):
            return False
        partition.update_high_watermark()
        if broker_id not in self.view.isr:
            self._send(self.view.propose_addition(broker_id, partition.high_watermark, self._peers.live))
        self.check_log_starts()
        return True

    def check_log_starts(self) -> None:
        """After a follower has said where its log begins, or is no longer alive."""
        if self.log_start_waiters:
            self.log_start_waiters = [each for each in self.log_start_waiters if not each()]

    def wait_log_starts(self, check: Callable[[], bool]) -> None:
        """Calls it now and whenever a follower's log start may have moved, until it is True."""
        if not check():
            self.log_start_waiters.append(check)
            for waiter in list(self.replica_waiters):
                waiter.finish()  # so that followers hear of the leader's

    def check_lag(self) -> None:
        """Now and then: who has not caught up for too long is to leave the in-sync set."""
        self._send(self.view.propose_removals(self._partition.log.log_end_offset, self._peers.now_ms()))

    def low_watermark(self) -> int:
        return self.view.low_watermark(self._partition.log.log_start_offset, self._peers.live)

    # The in-sync set

    def _send(self, proposal: Proposal | None) -> None:
        if proposal is None:
            return
        partition = self._partition
        self._peers.proposals.propose(
            IsrProposal(
                partition.topic, partition.index, proposal.leader_epoch, proposal.partition_epoch, proposal.isr
            ),
            lambda decision: self._on_decision(proposal, decision),
        )

    def _on_decision(self, proposal: Proposal, decision: Decision) -> None:
        if self._partition.leadership is not self:
            return  # it was led by somebody else meanwhile
        if isinstance(decision, ErrorCode):
            if decision in _NOT_WRITTEN:
                self.view.on_rejected(proposal)
                self._partition.update_high_watermark()
        elif decision.leader_epoch == self.view.leader_epoch:
            self._partition.become_leader(decision, self._peers)
            self.view.on_rejected(proposal)  # where the state is none that was not known: nothing is open any more

    def on_state(self, state: PartitionState) -> None:
        """A newer state under the same leader epoch."""
        before = self.view.isr
        if not self.view.on_committed(state.isr, state.partition_epoch):
            return
        self.view.on_replicas(state.replicas)
        if set(before) != set(state.isr):
            partition = self._partition
            fields = {"topic": partition.topic, "partition": partition.index, "isr": list(state.isr)}
            text = "%s-%d: in sync are %s, before %s"
            logger.info(text, partition.topic, partition.index, state.isr, before, extra=fields)
