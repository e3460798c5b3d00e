"""A follower's side of an incremental fetch session (KIP-227): each request names only partitions that changed.

    epoch 0: all partitions; the leader may create a session -> epoch 1, 2, …: changed and forgotten partitions

Pure. After a failure the follower starts a new session.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["FetchKey", "FetchPosition", "IncrementalFetch"]

_LAST_EPOCH: Final = 0x7FFFFFFF

FetchKey = tuple[bytes, int]
"""Topic id and partition."""


class FetchPosition(NamedTuple):
    """Position at which a follower fetches a partition."""

    leader_epoch: int
    offset: int
    last_epoch: int
    """Leader epoch of the follower's last record, by which the leader detects divergence; -1 for an empty log."""
    log_start_offset: int


class IncrementalFetch:
    __slots__ = ("_sent", "epoch", "session_id")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.session_id = 0
        self.epoch = 0
        self._sent: dict[FetchKey, FetchPosition] = {}

    def next(self, positions: Mapping[FetchKey, FetchPosition]) -> tuple[dict[FetchKey, FetchPosition], list[FetchKey]]:
        """Returns the partitions that the next request must name, and those that the leader must forget."""
        if self.epoch == 0:
            self._sent = dict(positions)
            return self._sent, []
        sent = self._sent
        changed = {key: position for key, position in positions.items() if sent.get(key) != position}
        forgotten = [key for key in sent if key not in positions]
        for key in forgotten:
            del sent[key]
        sent.update(changed)
        return changed, forgotten

    def next_of(self, positions: Mapping[FetchKey, FetchPosition]) -> dict[FetchKey, FetchPosition]:
        """Like `next`, for a session that exists, and the only positions that may have changed."""
        sent = self._sent
        changed = {key: position for key, position in positions.items() if sent.get(key) != position}
        sent.update(changed)
        return changed

    def on_answer(self, session_id: int) -> None:
        """Notes the response. A `session_id` of 0 means that the leader keeps no session."""
        if not session_id:
            self.reset()
        else:
            self.session_id = session_id
            self.epoch = 1 if self.epoch >= _LAST_EPOCH else self.epoch + 1
