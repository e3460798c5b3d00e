"""Which batches belong to aborted transactions, and which markers nobody needs any more, as a walk over a log goes.

A marker is needed for as long as a batch of its transaction is in the log. Sees headers and markers only, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from kbroker.log.aborted_index import AbortedTransaction
from kbroker.protocol.record_batch import BatchHeader
from kbroker.protocol.records import EndTransactionMarker

__all__ = ["CleanedTransactions"]


class CleanedTransactions:
    __slots__ = ("_coming", "_ongoing_aborted", "_ongoing_committed", "_seen", "kept")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted`: all that have a batch or their marker in the part of the log that is walked over."""
        self._coming = deque(sorted(aborted, key=lambda each: each.first_offset))
        self._ongoing_aborted: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()  # producers of aborted transactions of which a batch was met
        self._ongoing_committed: set[int] = set()
        self.kept: list[AbortedTransaction] = []  # what the aborted index of the segment in hand has to say

    def is_aborted(self, header: BatchHeader) -> bool:
        """Of a batch of data: whether its transaction was aborted, so that all of it may go."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        producer_id = header.producer_id
        if producer_id in self._ongoing_aborted:
            self._seen.add(producer_id)
            return True
        self._ongoing_committed.add(producer_id)
        return False

    def may_drop_marker(self, header: BatchHeader, marker: EndTransactionMarker | None) -> bool:
        """Of a control batch; `marker` None: it has been emptied before, and says nothing any more."""
        self._begin_up_to(header.last_offset)
        if marker is None:
            return not header.record_count
        producer_id = header.producer_id
        if marker.is_commit:
            was_seen = producer_id in self._ongoing_committed
            self._ongoing_committed.discard(producer_id)
            return not was_seen
        aborted = self._ongoing_aborted.pop(producer_id, None)
        if aborted is None or producer_id not in self._seen:
            return True
        self._seen.discard(producer_id)
        self.kept.append(aborted)
        return False

    def _begin_up_to(self, offset: int) -> None:
        coming = self._coming
        while coming and coming[0].first_offset <= offset:
            aborted = coming.popleft()
            self._ongoing_aborted.setdefault(aborted.producer_id, aborted)
