"""What a shard makes of a request: the answer, and what the transactional id becomes before the answer may leave."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.protocol.error_codes import ErrorCode
from kbroker.transaction.records import NO_EPOCH, NO_ID, Transaction

__all__ = ["NeedsProducerId", "Step"]


class Step(NamedTuple):
    error: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_ID
    producer_epoch: int = NO_EPOCH
    becomes: Transaction | None = None
    """To be appended first; None: nothing changes."""
    last_epoch: int | None = None
    """The epoch that a retry of this request may still name; None: as before."""


class NeedsProducerId(Exception):
    """Ask again with a producer id that nobody has had."""
