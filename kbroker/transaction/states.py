"""The states of a transactional id, and the states that each may be entered from.

Empty              has a producer id, no transaction        from Empty, CompleteCommit, CompleteAbort
Ongoing            partitions have been added               from Ongoing, Empty, CompleteCommit, CompleteAbort
PrepareCommit      decided: markers must be written         from Ongoing
PrepareAbort       decided: markers must be written         from Ongoing; with an epoch bump for every transaction
                                                            also from Empty, CompleteCommit, CompleteAbort
CompleteCommit     every partition has its marker           from PrepareCommit
CompleteAbort      every partition has its marker           from PrepareAbort
Dead               expired; only in responses               from Empty, CompleteCommit, CompleteAbort
PrepareEpochFence  internal to Kafka, before PrepareAbort; never in a log and never entered here
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = ["COMPLETE", "MAY_FOLLOW", "PREPARED", "TransactionState"]


class TransactionState(IntEnum):
    """The numbers are stored in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def text(self) -> str:
        """Returns the name that clients see, and filter by."""
        return self.name.title().replace("_", "")


_EMPTY = TransactionState.EMPTY
_ONGOING = TransactionState.ONGOING

PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
COMPLETE: Final = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})

MAY_FOLLOW: Final[dict[TransactionState, frozenset[TransactionState]]] = {
    _EMPTY: COMPLETE | {_EMPTY},
    _ONGOING: COMPLETE | {_EMPTY, _ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({_ONGOING}),
    TransactionState.PREPARE_ABORT: COMPLETE | {_EMPTY, _ONGOING, TransactionState.PREPARE_EPOCH_FENCE},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: COMPLETE | {_EMPTY},
    TransactionState.PREPARE_EPOCH_FENCE: frozenset({_ONGOING}),
}
"""State -> the states that it may be entered from."""
