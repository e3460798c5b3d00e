"""The result of a request to a transaction shard: the response, and the new state to append before it is sent."""

from __future__ import annotations

from typing import NamedTuple

from kbroker.protocol.error_codes import ErrorCode
from kbroker.transaction.records import NO_EPOCH, NO_ID, Transaction

__all__ = ["NeedsProducerId", "TransactionResult"]


class TransactionResult(NamedTuple):
    error: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_ID
    producer_epoch: int = NO_EPOCH
    updated: Transaction | None = None
    """The new state of the transactional id, to be appended first; None if nothing changes."""
    last_epoch: int | None = None
    """The epoch that a retry of this request may still have; None leaves it as it is."""


class NeedsProducerId(Exception):
    """The request needs a new producer id: the caller must allocate one and call again."""
