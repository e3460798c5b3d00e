"""Finds the follower in a consumer's rack (KIP-392). Exists only if `replica.selector.class` is rack-aware."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.replication.replica_selector import select_follower

if TYPE_CHECKING:
    from kbroker.controller.controller import Controller
    from kbroker.replication.partition import Partition

__all__ = ["PreferredReplicas"]


class PreferredReplicas:
    __slots__ = ("_controller", "_rack")

    def __init__(self, controller: Controller, rack: str | None) -> None:
        """`rack`: the rack of this broker, or None."""
        self._controller = controller
        self._rack = rack

    def may_be_elsewhere(self, rack_id: str) -> bool:
        """Whether a client of this rack may have to read from another broker."""
        return rack_id not in ("", self._rack)

    def find(self, partition: Partition, offset: int, *, rack_id: str, listener_name: str) -> int | None:
        """Returns the broker that a client of this rack should read from; None if it is this one."""
        leadership = partition.leadership
        if leadership is None:
            return None
        followers = leadership.readable_followers(offset, self._controller.image.brokers, listener_name)
        selected = select_follower(rack_id, self._rack, followers)
        return None if selected is None else selected.broker_id
