"""State of a session with the tree, its changes, and the times of its requests: for metrics."""

from __future__ import annotations

from kbroker.controller.trees.tree import SessionState
from kbroker.histogram import Histogram

__all__ = ["SessionStats"]


class SessionStats:
    __slots__ = ("connects", "disconnects", "expirations", "request_times", "state")

    def __init__(self) -> None:
        self.state = SessionState.LOST
        self.connects = 0
        self.disconnects = 0
        self.expirations = 0
        """Sessions that the tree has ended. The first state, before any session, is none."""
        self.request_times = Histogram()

    def enter(self, state: SessionState) -> None:
        """Counts the change to another state."""
        self.state = state
        if state is SessionState.CONNECTED:
            self.connects += 1
        elif state is SessionState.SUSPENDED:
            self.disconnects += 1
        else:
            self.expirations += 1
