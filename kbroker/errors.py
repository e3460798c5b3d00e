"""The three kinds of failure that the broker tells apart, and the one that a person at the command line sees.

Anything that is none of these is a bug of ours.
"""

from __future__ import annotations

__all__ = ["PeerError", "RecoveryNeeded", "Refusal", "StorageFailure", "UserError"]


class PeerError(Exception):
    """The other side broke the rules of the wire: its connection is closed, nobody else notices."""


class Refusal(Exception):
    """Part of Kafka's contract: an error code on the wire. Caught only in dispatch."""

    def __init__(self, code: int, message: str | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


class StorageFailure(Exception):
    """The disk refused. `is_full` tells a lack of room (tried again) from a broken disk (offline until restart)."""

    def __init__(self, message: str, *, is_full: bool = False) -> None:
        super().__init__(message)
        self.is_full = is_full


class RecoveryNeeded(StorageFailure):
    """One log is not what was left there: nobody reads or writes it before it has been recovered under a new leader
    epoch, which takes a moment. The disk is not to blame."""


class UserError(Exception):
    """What a person at the command line did wrong, in one line that says what to do."""
