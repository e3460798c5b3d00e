"""Rules of a follower for its leader's responses: append, truncate diverging records, or restart the log.

    fetch (offset, epoch of the last record) -> records          append; apply the leader's high watermark and log start
                                             -> diverging epoch  truncate, fetch again; logs agree after a few rounds
                                             -> out of range     get the leader's offsets, truncate or restart the log

A log is not truncated to the high watermark (KIP-101): records above it may be acknowledged before the follower learns
the new high watermark. Pure: works on offsets and epochs only.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kbroker.log.leader_epochs import UNDEFINED_EPOCH, UNDEFINED_OFFSET, EpochEntry

__all__ = ["FollowerLog", "Restart", "restart_after", "truncation_offset"]


class FollowerLog(Protocol):
    """The part of a log that these rules use."""

    @property
    def log_end_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    def end_offset_for_epoch(self, epoch: int) -> EpochEntry: ...


class Restart(NamedTuple):
    """Change of a follower's log after its fetch offset was out of range. Both None: nothing to change."""

    truncate_to: int | None = None
    start_at: int | None = None
    """Delete all records; the log starts again at this offset."""


def truncation_offset(log: FollowerLog, diverging: EpochEntry) -> int:
    """Returns the offset to truncate to. Works for responses of Fetch and of OffsetForLeaderEpoch.

    `diverging`: the leader's largest epoch that is not above the follower's last one, and its end offset on the leader.
    If the follower does not have that epoch, truncates to the end of its next lower one, and the next fetch asks again.
    """
    end = log.log_end_offset
    if diverging.start_offset == UNDEFINED_OFFSET:
        return min(log.high_watermark, end)  # the leader has no epochs, so the high watermark is the only bound left
    if diverging.epoch == UNDEFINED_EPOCH:
        return min(diverging.start_offset, end)
    own = log.end_offset_for_epoch(diverging.epoch)
    if own.start_offset == UNDEFINED_OFFSET:
        return min(diverging.start_offset, end)
    if own.epoch != diverging.epoch:
        return min(own.start_offset, end)
    return min(own.start_offset, diverging.start_offset, end)


def restart_after(log_end_offset: int, *, leader_start: int, leader_end: int) -> Restart:
    """Returns the change after an out-of-range fetch.

    Either the leader's log is shorter (unclean election), or retention moved its start past the follower's end.
    """
    if leader_end < log_end_offset:
        if leader_end < leader_start:
            return Restart(start_at=leader_start)
        return Restart(truncate_to=leader_end)
    if leader_start > log_end_offset:
        return Restart(start_at=leader_start)
    return Restart()
