"""Selects the follower that a consumer should read from, as Kafka's RackAwareReplicaSelector does (KIP-392).

Pure: knows no log and no image. The leader names the selected follower in its response, and the consumer reads there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["ReplicaView", "select_follower"]


class ReplicaView(NamedTuple):
    """A follower that is in sync, alive, and has the offset that the consumer asks for."""

    broker_id: int
    rack: str | None
    log_end_offset: int
    caught_up_ms: int
    """Time at which the follower had all records of the leader last."""


def select_follower(rack_id: str, leader_rack: str | None, followers: Iterable[ReplicaView]) -> ReplicaView | None:
    """Returns the most caught-up follower in the client's rack. None: the client reads from the leader.

    The leader is preferred if it is in the rack too. Of two equal followers the one with the larger id is selected.
    """
    if not rack_id or rack_id == leader_rack:
        return None
    return max((view for view in followers if view.rack == rack_id), key=_progress, default=None)


def _progress(view: ReplicaView) -> tuple[int, int, int]:
    return view.log_end_offset, view.caught_up_ms, view.broker_id
