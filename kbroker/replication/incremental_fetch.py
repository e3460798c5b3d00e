"""A follower's side of an incremental fetch session (KIP-227): only what changed since the last request is said again.

    epoch 0: everything; the leader may answer with a session -> epoch 1, 2, …: what is new, other or to be forgotten

Pure. After any failure it begins again with everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["Asked", "IncrementalFetch", "Key"]

_LAST_EPOCH: Final = 0x7FFFFFFF

Key = tuple[bytes, int]
"""Topic id and partition."""


class Asked(NamedTuple):
    """What a follower asks for of a partition."""

    leader_epoch: int
    offset: int
    last_epoch: int
    log_start_offset: int


class IncrementalFetch:
    __slots__ = ("_said", "epoch", "session_id")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.session_id = 0
        self.epoch = 0
        self._said: dict[Key, Asked] = {}

    def next(self, wanted: Mapping[Key, Asked]) -> tuple[dict[Key, Asked], list[Key]]:
        """What to say, and which partitions the leader is to forget."""
        if self.epoch == 0:
            self._said = dict(wanted)
            return self._said, []
        said = self._said
        changed = {key: asked for key, asked in wanted.items() if said.get(key) != asked}
        forgotten = [key for key in said if key not in wanted]
        for key in forgotten:
            del said[key]
        said.update(changed)
        return changed, forgotten

    def on_answer(self, session_id: int) -> None:
        """0: the leader keeps no session for us."""
        if not session_id:
            self.reset()
        else:
            self.session_id = session_id
            self.epoch = 1 if self.epoch >= _LAST_EPOCH else self.epoch + 1
