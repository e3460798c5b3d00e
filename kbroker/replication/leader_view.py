"""What a leader knows of the other replicas of its partition, and what follows: high watermark and in-sync set (ISR).

| | counts for the high watermark | may be elected |
|--|--|--|
| in the committed ISR | yes | yes |
| to be added, proposed and not answered yet | yes: the controller may have agreed already | perhaps |
| to be removed, proposed and not answered yet | yes: until it is committed it may be elected | yes |
| caught up and alive, outside | yes: or it would run after a high watermark that it never reaches | no |

Pure: time comes with each call. Never asks the controller itself.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final

__all__ = ["LeaderView", "Proposal", "Replica"]

UNKNOWN_OFFSET: Final = -1


class Replica:
    """A follower, as its fetches show it."""

    __slots__ = (
        "_last_fetch_leader_end",
        "_last_fetch_ms",
        "broker_epoch",
        "last_caught_up_ms",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, last_caught_up_ms: int | None) -> None:
        self.log_end_offset = UNKNOWN_OFFSET
        self.log_start_offset = UNKNOWN_OFFSET
        self.last_caught_up_ms = last_caught_up_ms  # None: never, as far as this leader knows
        self.broker_epoch = -1
        self._last_fetch_ms: int | None = None
        self._last_fetch_leader_end = 0

    def on_fetch(
        self, fetch_offset: int, log_start_offset: int, broker_epoch: int, *, leader_end: int, now_ms: int
    ) -> None:
        """It asks for what comes after all that it has. Who now has what there was at his last fetch was caught up
        then: under steady load nobody ever has all."""
        if fetch_offset >= leader_end:
            self._caught_up(now_ms)
        elif self._last_fetch_ms is not None and fetch_offset >= self._last_fetch_leader_end:
            self._caught_up(self._last_fetch_ms)
        self._last_fetch_ms = now_ms
        self._last_fetch_leader_end = leader_end
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch

    def _caught_up(self, at_ms: int) -> None:
        self.last_caught_up_ms = at_ms if self.last_caught_up_ms is None else max(self.last_caught_up_ms, at_ms)

    def is_caught_up(self, leader_end: int, now_ms: int, max_lag_ms: int) -> bool:
        if self.log_end_offset == leader_end:
            return True
        return self.last_caught_up_ms is not None and now_ms - self.last_caught_up_ms <= max_lag_ms


@dataclass(frozen=True, slots=True)
class Proposal:
    """An ISR for the controller to agree to: it must know the partition by these epochs."""

    isr: tuple[int, ...]
    leader_epoch: int
    partition_epoch: int


class LeaderView:
    __slots__ = (
        "_max_lag_ms",
        "_pending",
        "_replicas",
        "epoch_start_offset",
        "isr",
        "leader_epoch",
        "leader_id",
        "partition_epoch",
    )

    def __init__(
        self,
        leader_id: int,
        replicas: Iterable[int],
        isr: tuple[int, ...],
        *,
        leader_epoch: int,
        partition_epoch: int,
        epoch_start_offset: int,
        max_lag_ms: int,
        now_ms: int,
    ) -> None:
        """`epoch_start_offset`: where this leader's epoch begins, the end of its log when it took over."""
        self.leader_id = leader_id
        self.isr = isr
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.epoch_start_offset = epoch_start_offset
        self._max_lag_ms = max_lag_ms
        self._pending: Proposal | None = None
        # Those in sync get the whole time to show themselves; the others have to catch up first.
        self._replicas = {each: Replica(now_ms if each in isr else None) for each in replicas if each != leader_id}

    def replica(self, broker_id: int) -> Replica | None:
        return self._replicas.get(broker_id)

    @property
    def replica_count(self) -> int:
        return len(self._replicas) + 1

    @property
    def pending(self) -> Proposal | None:
        return self._pending

    def _is_in_maximal_isr(self, broker_id: int) -> bool:
        return broker_id in self.isr or (self._pending is not None and broker_id in self._pending.isr)

    @property
    def maximal_isr_size(self) -> int:
        return 1 + sum(map(self._is_in_maximal_isr, self._replicas))

    # Fetches and what follows from them

    def on_fetch(
        self,
        broker_id: int,
        fetch_offset: int,
        log_start_offset: int,
        broker_epoch: int,
        *,
        leader_end: int,
        now_ms: int,
    ) -> bool:
        """False: it is no replica of this partition."""
        replica = self._replicas.get(broker_id)
        if replica is None:
            return False
        replica.on_fetch(fetch_offset, log_start_offset, broker_epoch, leader_end=leader_end, now_ms=now_ms)
        return True

    def high_watermark(
        self, leader_end: int, now_ms: int, live: Container[int], min_insync_replicas: int = 1
    ) -> int | None:
        """How far the log is committed by what is known now; None while too few are in sync for it to move. It may be
        lower than it was: then it stays. `leader_end`: up to where the leader's own copy counts."""
        if len(self.isr) < min(min_insync_replicas, self.replica_count):
            return None
        lowest = leader_end
        for broker_id, replica in self._replicas.items():
            if replica.log_end_offset < lowest and (
                self._is_in_maximal_isr(broker_id)
                or (broker_id in live and replica.is_caught_up(leader_end, now_ms, self._max_lag_ms))
            ):
                lowest = replica.log_end_offset
        return lowest

    def low_watermark(self, leader_start: int, live: Container[int]) -> int:
        """Below it nobody who is alive has records any more."""
        starts = [replica.log_start_offset for broker_id, replica in self._replicas.items() if broker_id in live]
        return min([leader_start, *starts])

    # The in-sync set: one proposal at a time

    def propose_removals(self, leader_end: int, now_ms: int) -> Proposal | None:
        """Without those that have not caught up for too long."""
        if self._pending is not None:
            return None
        isr = tuple(each for each in self.isr if not self._is_out_of_sync(each, leader_end, now_ms))
        return self._propose(isr) if len(isr) < len(self.isr) else None

    def _is_out_of_sync(self, broker_id: int, leader_end: int, now_ms: int) -> bool:
        if broker_id == self.leader_id:
            return False
        replica = self._replicas.get(broker_id)
        return replica is None or not replica.is_caught_up(leader_end, now_ms, self._max_lag_ms)

    def propose_addition(self, broker_id: int, high_watermark: int, live: Container[int]) -> Proposal | None:
        """With a replica that has all that is committed. It must have all that was there when this leader began too:
        what lies above a new leader's high watermark may be acknowledged, only nobody told him."""
        replica = self._replicas.get(broker_id)
        if self._pending is not None or replica is None or broker_id in self.isr or broker_id not in live:
            return None
        if replica.log_end_offset < max(high_watermark, self.epoch_start_offset):
            return None
        return self._propose((*self.isr, broker_id))

    def _propose(self, isr: tuple[int, ...]) -> Proposal:
        self._pending = Proposal(isr, self.leader_epoch, self.partition_epoch)
        return self._pending

    def on_committed(self, isr: tuple[int, ...], partition_epoch: int) -> bool:
        """The state that the controller has written, by whatever way it was heard of. False: it is an old one."""
        if partition_epoch <= self.partition_epoch:
            return False
        self.isr = isr
        self.partition_epoch = partition_epoch
        self._pending = None
        return True

    def on_rejected(self, proposal: Proposal) -> None:
        """The controller has certainly not written it."""
        if self._pending is proposal:
            self._pending = None

    def on_replicas(self, replicas: Iterable[int]) -> None:
        """The assignment has changed under the same leader."""
        known = self._replicas
        self._replicas = {each: known.get(each) or Replica(None) for each in replicas if each != self.leader_id}
