"""A leader's knowledge of the followers of its partition, from which high watermark and ISR follow.

| | counts for the high watermark | may be elected |
|--|--|--|
| in the committed ISR | yes | yes |
| proposed to be added, not decided yet | yes: the controller may have written it already | perhaps |
| proposed to be removed, not decided yet | yes: it may be elected until the removal is committed | yes |
| caught up and alive, not in the ISR | yes: else the high watermark would run ahead, and it could never join | no |

The first three rows are Kafka's maximal ISR. Pure: the caller passes the time. Never sends a request.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final

__all__ = ["LeaderView", "Proposal", "Replica"]

UNKNOWN_OFFSET: Final = -1


class Replica:
    """State of a follower, as known from its fetches."""

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
        self.last_caught_up_ms = last_caught_up_ms  # None: not caught up since this leader was elected
        self.broker_epoch = -1
        self._last_fetch_ms: int | None = None
        self._last_fetch_leader_end = 0

    def on_fetch(
        self, fetch_offset: int, log_start_offset: int, broker_epoch: int, *, leader_end: int, now_ms: int
    ) -> None:
        """Updates the state. `fetch_offset` is the follower's log end offset.

        A follower that reached the leader's end offset of its previous fetch was caught up at that time: under steady
        load it never reaches the current end offset.
        """
        if fetch_offset >= leader_end:
            self._note_caught_up(now_ms)
        elif self._last_fetch_ms is not None and fetch_offset >= self._last_fetch_leader_end:
            self._note_caught_up(self._last_fetch_ms)
        self._last_fetch_ms = now_ms
        self._last_fetch_leader_end = leader_end
        self.log_end_offset = fetch_offset
        self.log_start_offset = log_start_offset
        self.broker_epoch = broker_epoch

    def _note_caught_up(self, at_ms: int) -> None:
        self.last_caught_up_ms = at_ms if self.last_caught_up_ms is None else max(self.last_caught_up_ms, at_ms)

    def is_caught_up(self, leader_end: int, now_ms: int, max_lag_ms: int) -> bool:
        if self.log_end_offset == leader_end:
            return True
        return self.last_caught_up_ms is not None and now_ms - self.last_caught_up_ms <= max_lag_ms


@dataclass(frozen=True, slots=True)
class Proposal:
    """An ISR proposed to the controller, which refuses it if the partition has other epochs by then."""

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
        """`epoch_start_offset`: the log end offset when this broker became leader."""
        self.leader_id = leader_id
        self.isr = isr
        self.leader_epoch = leader_epoch
        self.partition_epoch = partition_epoch
        self.epoch_start_offset = epoch_start_offset
        self._max_lag_ms = max_lag_ms
        self._pending: Proposal | None = None
        # Followers in the ISR count as caught up now: they have max_lag_ms to fetch for the first time.
        self._replicas = {
            broker_id: Replica(now_ms if broker_id in isr else None) for broker_id in replicas if broker_id != leader_id
        }

    def replica(self, broker_id: int) -> Replica | None:
        return self._replicas.get(broker_id)

    def followers_with(self, offset: int) -> list[tuple[int, Replica]]:
        """Returns the followers of the ISR, by broker id, whose logs have this offset or end there."""
        return [
            (broker_id, replica)
            for broker_id, replica in self._replicas.items()
            if broker_id in self.isr and replica.log_start_offset <= offset <= replica.log_end_offset
        ]

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

    # Fetches and watermarks

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
        """Updates the follower. Returns False if the broker is not a replica of this partition."""
        replica = self._replicas.get(broker_id)
        if replica is None:
            return False
        replica.on_fetch(fetch_offset, log_start_offset, broker_epoch, leader_end=leader_end, now_ms=now_ms)
        return True

    def high_watermark(
        self, leader_end: int, now_ms: int, live: Container[int], min_insync_replicas: int = 1
    ) -> int | None:
        """Returns the smallest end offset of all replicas that count, or None if the ISR is below the minimum.

        It can be lower than before, for example right after an election: the caller must never move the high watermark
        back. `leader_end`: the leader's log end offset, or with flush.messages=1 its fsynced end.
        """
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
        """Returns the smallest log start offset of all live replicas: records below it are deleted everywhere."""
        starts = [replica.log_start_offset for broker_id, replica in self._replicas.items() if broker_id in live]
        return min([leader_start, *starts])

    # The ISR: one proposal at a time, as in Kafka. A second one would need the partition epoch that the first one gets.

    def propose_removals(self, leader_end: int, now_ms: int) -> Proposal | None:
        """Proposes the ISR without lagging followers. Returns None if there are none, or a proposal is pending."""
        if self._pending is not None:
            return None
        isr = tuple(broker_id for broker_id in self.isr if not self._is_out_of_sync(broker_id, leader_end, now_ms))
        return self._propose(isr) if len(isr) < len(self.isr) else None

    def _is_out_of_sync(self, broker_id: int, leader_end: int, now_ms: int) -> bool:
        if broker_id == self.leader_id:
            return False
        replica = self._replicas.get(broker_id)
        return replica is None or not replica.is_caught_up(leader_end, now_ms, self._max_lag_ms)

    def propose_addition(self, broker_id: int, high_watermark: int, live: Container[int]) -> Proposal | None:
        """Proposes the ISR with a follower that reached the high watermark. Returns None if it may not join.

        It must also have everything up to `epoch_start_offset`. Records above a new leader's high watermark may be
        acknowledged to producers: the old leader can have advanced its high watermark without telling its followers.
        """
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
        """Applies a state that the controller wrote, from its response or the image. Returns False if it is old."""
        if partition_epoch <= self.partition_epoch:
            return False
        self.isr = isr
        self.partition_epoch = partition_epoch
        self._pending = None
        return True

    def on_rejected(self, proposal: Proposal) -> None:
        """Drops a proposal that the controller certainly did not write."""
        if self._pending is proposal:
            self._pending = None

    def on_replicas(self, replicas: Iterable[int]) -> None:
        """Applies a new replica assignment of the same leader epoch."""
        known = self._replicas
        self._replicas = {
            broker_id: known.get(broker_id) or Replica(None) for broker_id in replicas if broker_id != self.leader_id
        }
