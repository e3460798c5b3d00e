"""What a follower does with what its leader says: append, cut off what the leader does not have, start anew.

    fetch (offset, epoch of the last record) -> records         append them, take over high watermark and log start
                                             -> diverging epoch cut, fetch again: two logs agree after a few rounds
                                             -> out of range    ask for the leader's ends, cut or start anew

The high watermark is never what a log is cut to: records above it may be acknowledged, and the follower not know yet.
Pure: knows offsets and epochs, no records and no wire.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kbroker.log.leader_epochs import UNDEFINED_EPOCH, UNDEFINED_OFFSET, EpochEntry

__all__ = ["FollowerLog", "Restart", "restart_after", "truncation_offset"]


class FollowerLog(Protocol):
    """As much of a log as these rules look at."""

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    def end_offset_for_epoch(self, epoch: int) -> EpochEntry: ...


class Restart(NamedTuple):
    """What a follower does that asked for what its leader does not have."""

    truncate_to: int | None = None
    start_at: int | None = None
    """Nothing of the log is of use: it is emptied, and begins here."""


def truncation_offset(log: FollowerLog, diverging: EpochEntry) -> int:
    """Where to cut, given the largest epoch of the leader that is not above ours, and where it ends there. The same for
    an answer to OffsetForLeaderEpoch and for the diverging epoch of a Fetch.

    If we do not know that epoch, our next lower one ends below it: cut there, and ask again with the lower one.
    """
    end = log.log_end_offset
    if diverging.start_offset == UNDEFINED_OFFSET:
        return min(log.high_watermark, end)  # the leader knows no epochs: all that is left to go by
    if diverging.epoch == UNDEFINED_EPOCH:
        return min(diverging.start_offset, end)
    own = log.end_offset_for_epoch(diverging.epoch)
    if own.start_offset == UNDEFINED_OFFSET:
        return min(diverging.start_offset, end)
    if own.epoch != diverging.epoch:
        return min(own.start_offset, end)
    return min(own.start_offset, diverging.start_offset, end)


def restart_after(log_end_offset: int, *, leader_start: int, leader_end: int) -> Restart:
    """Out of range: the leader has lost its end (it was elected uncleanly), or its start has moved past our end."""
    if leader_end < log_end_offset:
        if leader_end < leader_start:
            return Restart(start_at=leader_start)
        return Restart(truncate_to=leader_end)
    if leader_start > log_end_offset:
        return Restart(start_at=leader_start)
    return Restart()
