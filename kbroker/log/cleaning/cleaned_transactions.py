"""Finds the batches of aborted transactions, and the markers that are not needed any more, in one pass over a log.

A marker is needed while a batch of its transaction is in the log. Gets only headers and markers, in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from kbroker.log.segments.aborted_index import AbortedTransaction
from kbroker.protocol.record_batch import BatchHeader
from kbroker.protocol.records import EndTransactionMarker

__all__ = ["CleanedTransactions"]


class CleanedTransactions:
    __slots__ = ("_ongoing_aborted", "_ongoing_committed", "_seen", "_upcoming", "kept")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted`: all transactions with a batch or a marker in the part of the log that is read."""
        self._upcoming = deque(sorted(aborted, key=lambda transaction: transaction.first_offset))
        self._ongoing_aborted: dict[int, AbortedTransaction] = {}
        self._seen: set[int] = set()  # producers with a batch of an ongoing aborted transaction in the log
        self._ongoing_committed: set[int] = set()
        self.kept: list[AbortedTransaction] = []  # for the aborted index of the segment that is written

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the transaction of a data batch was aborted, so that the batch is dropped."""
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
        """Whether the marker in a control batch is not needed. `marker` None: an earlier round emptied the batch."""
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
        upcoming = self._upcoming
        while upcoming and upcoming[0].first_offset <= offset:
            aborted = upcoming.popleft()
            self._ongoing_aborted.setdefault(aborted.producer_id, aborted)
