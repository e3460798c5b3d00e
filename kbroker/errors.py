"""Expected failures: of a peer, of a request, of the disk, and of a user's input.

Any other exception is a bug in kbroker.
"""

from __future__ import annotations

__all__ = ["PeerError", "RecoveryNeeded", "Refusal", "StorageFailure", "UserError"]


class PeerError(Exception):
    """The peer violated the protocol. Its connection is closed; other connections are not affected."""


class Refusal(Exception):
    """A request is refused with an error code, as Kafka defines. Caught only in dispatch."""

    def __init__(self, code: int, message: str | None = None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


class StorageFailure(Exception):
    """The disk failed. `is_full`: it has no space left (retried); otherwise the directory is offline until restart."""

    def __init__(self, message: str, *, is_full: bool = False) -> None:
        super().__init__(message)
        self.is_full = is_full


class RecoveryNeeded(StorageFailure):
    """A log is damaged and must be recovered, under a new leader epoch, before reads and writes. Not a disk failure."""


class UserError(Exception):
    """Invalid input of a user. The message is one line that says what is wrong and what to do."""
