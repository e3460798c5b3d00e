"""State of a partition that this broker leads and that has other replicas: followers, ISR, and requests that wait.

A partition without other replicas has no LeaderState, so that it pays nothing for replication.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from kbroker.controller.image import BrokerRegistration, PartitionState
from kbroker.controller.rules.isr_rules import IsrProposal
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.leader_view import LeaderView, Proposal
from kbroker.replication.peers import Decision, Peers
from kbroker.replication.replica_selector import ReplicaView

if TYPE_CHECKING:
    from kbroker.replication.fetch_waiters import FetchWaiter, QuietFollower
    from kbroker.replication.partition import Partition

__all__ = ["LeaderState"]

logger = logging.getLogger(__name__)

# The controller answered with one of these, so it did not write the proposed ISR. After any other error it may have.
_NOT_WRITTEN: Final = frozenset(
    (ErrorCode.INVALID_REQUEST, ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)
)


class LeaderState:
    __slots__ = (
        "_marks",
        "_partition",
        "_peers",
        "_seen_bytes",
        "flush_waiters",
        "log_start_waiters",
        "quiet_followers",
        "replica_waiters",
        "view",
    )

    def __init__(self, partition: Partition, state: PartitionState, peers: Peers) -> None:
        self._partition = partition
        self._peers = peers
        self._marks: deque[tuple[int, int]] = deque()
        """End offset of each uncommitted write, and the bytes appended to the log up to there."""
        self._seen_bytes = partition.log.appended_bytes
        self.replica_waiters: set[FetchWaiter] = set()
        """Delayed fetches of followers, which read up to the log end offset."""
        self.quiet_followers: dict[int, QuietFollower] = {}
        """Followers that have all records and know it, by broker. They learn of the next change, once."""
        self.flush_waiters: deque[tuple[int, Callable[[int], None]]] = deque()
        """Producers with acks=1 and flush.messages=1: they wait for this broker's fsync, not for followers."""
        self.log_start_waiters: list[Callable[[], bool]] = []
        """Called when a follower's log start offset may have changed, until they return True."""
        self.view = self._new_view(state)

    def _new_view(self, state: PartitionState) -> LeaderView:
        peers = self._peers
        return LeaderView(
            peers.broker_id,
            state.replicas,
            state.isr,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            epoch_start_offset=self._partition.log.log_end_offset,
            max_lag_ms=peers.max_lag_ms,
            now_ms=peers.now_ms(),
        )

    # The leader's own log

    def on_written(self, end_offset: int, appended_bytes: int) -> None:
        """Completes fetches of followers: they see written records at once, consumers only committed ones."""
        size, self._seen_bytes = appended_bytes - self._seen_bytes, appended_bytes
        self._marks.append((end_offset, appended_bytes))
        if self.replica_waiters:
            for waiter in list(self.replica_waiters):
                waiter.on_visible(size)
        self.disturb(size)

    def disturb(self, size: int = 0) -> None:
        """Tells quiet followers that the partition has changed: their next fetch must read it.

        With `size`, their delayed fetches are notified. A change without this call is found half a second later: so
        often a fetch reads all partitions of its session.
        """
        if self.quiet_followers:
            quiet, self.quiet_followers = self.quiet_followers, {}
            for follower in quiet.values():
                follower.on_change(size)

    def waiters(self) -> set[FetchWaiter]:
        """Returns the delayed fetches of followers, quiet ones too."""
        quiet = (follower.waiter for follower in self.quiet_followers.values())
        return self.replica_waiters.union(waiter for waiter in quiet if waiter is not None)

    def finish_waiters(self) -> None:
        """Completes the delayed fetches of all followers. They read this partition again."""
        waiters = self.waiters()
        self.disturb()
        for waiter in waiters:
            waiter.finish()

    def bytes_below(self, offset: int) -> int | None:
        """Returns the bytes appended by writes that end at or below `offset`, or None if no further one does."""
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
        """Updates a follower from its fetch. Returns False if the broker is not a replica of the partition.

        The fetch offset confirms that the follower has everything below it: so the high watermark may advance, and the
        follower may join the ISR.
        """
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

    def readable_followers(
        self, offset: int, brokers: Mapping[int, BrokerRegistration], listener_name: str
    ) -> Iterator[ReplicaView]:
        """Iterates over the in-sync followers that have the offset, and a listener of this name on a live broker."""
        for broker_id, replica in self.view.followers_with(offset):
            broker = brokers.get(broker_id)
            if broker is not None and broker.endpoint(listener_name) is not None:
                yield ReplicaView(broker_id, broker.rack, replica.log_end_offset, replica.last_caught_up_ms or 0)

    def is_throttled(self, broker_id: int) -> bool:
        """Whether the follower gets no records now, because it is not in sync and its throttle is exceeded."""
        quota = self._peers.leader_quota
        return (
            quota is not None
            and broker_id not in self.view.isr
            and quota.covers(self._partition)
            and quota.excess_seconds() > 0
        )

    def on_sent(self, size: int) -> None:
        """Counts records that are sent to a follower."""
        quota = self._peers.leader_quota
        if quota is not None and quota.covers(self._partition):
            quota.record(size)

    def check_log_starts(self) -> None:
        """Checks requests that wait for log start offsets, after a follower's fetch or when live brokers change."""
        if self.log_start_waiters:
            self.log_start_waiters = [check for check in self.log_start_waiters if not check()]

    def when_log_starts(self, check: Callable[[], bool]) -> None:
        """Calls `check` now and whenever a follower's log start offset may have changed, until it returns True."""
        if not check():
            self.log_start_waiters.append(check)
            self.finish_waiters()  # the response has the leader's new log start offset

    def check_lag(self) -> None:
        """Proposes to remove followers from the ISR that lag by replica.lag.time.max.ms. Called periodically."""
        self._send(self.view.propose_removals(self._partition.log.log_end_offset, self._peers.now_ms()))

    def low_watermark(self) -> int:
        return self.view.low_watermark(self._partition.log.log_start_offset, self._peers.live)

    # The ISR

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
            return  # the role changed while the controller decided
        if isinstance(decision, ErrorCode):
            self._peers.failed_isr_updates += 1
            # After other errors the proposal stays pending, so the proposed replicas go on counting for the high
            # watermark: the controller may have written the ISR, and the image will say.
            if decision in _NOT_WRITTEN:
                self.view.on_rejected(proposal)
                self._partition.update_high_watermark()
        elif decision.leader_epoch == self.view.leader_epoch:
            self._partition.become_leader(decision, self._peers)
            # If the decision was known already, `on_committed` ignored it, and the proposal is still pending.
            self.view.on_rejected(proposal)

    def on_new_epoch(self, state: PartitionState) -> None:
        """Continues as leader in a newer epoch. The followers' offsets are unknown until they fetch in this epoch."""
        self.view = self._new_view(state)
        self.disturb()

    def on_state(self, state: PartitionState) -> None:
        """Applies a newer state of the same leader epoch, from the image or the controller's decision."""
        before = self.view.isr
        if not self.view.on_committed(state.isr, state.partition_epoch):
            return
        self.view.on_replicas(state.replicas)
        if set(before) != set(state.isr):
            partition, peers = self._partition, self._peers
            peers.isr_shrinks += not set(before) <= set(state.isr)
            peers.isr_expands += not set(state.isr) <= set(before)
            fields = {"topic": partition.topic, "partition": partition.index, "isr": list(state.isr)}
            text = "ISR of %s-%d changed from %s to %s"
            args = (partition.topic, partition.index, list(before), list(state.isr))
            logger.info(text, *args, extra=fields)
