"""Batches that have their offsets but are not written yet, and everything needed to undo them if the write fails.

Shared by appends as leader and as follower. Never writes and never assigns an offset.
"""

from __future__ import annotations

import contextlib

from kbroker.errors import StorageFailure
from kbroker.log.producers.producer_replay import end_transaction
from kbroker.log.producers.producer_state import ProducerEntry, ProducerState
from kbroker.log.segments.aborted_index import AbortedTransaction
from kbroker.log.segments.segment import Segment
from kbroker.protocol.record_batch import ATTRIBUTE_CONTROL, BatchHeader, WriteBuffer
from kbroker.protocol.records import EndTransactionMarker

__all__ = ["Staging"]


class Staging:
    """`batches` are views of receive buffers: valid until the run of frames ends, so they must not outlive it."""

    __slots__ = ("_aborted", "_undo", "batches", "size_bytes")

    def __init__(self) -> None:
        self.batches: list[WriteBuffer] = []
        self.size_bytes = 0
        self._undo: list[tuple[int, ProducerEntry | None]] = []
        self._aborted: list[AbortedTransaction] = []

    def update_producer(
        self, producers: ProducerState, header: BatchHeader, base_offset: int, marker: EndTransactionMarker | None
    ) -> None:
        """Applies a staged batch to the producer state and remembers the producer's previous entry."""
        producer_id = header.producer_id
        if marker is not None:
            self._undo.append((producer_id, producers.entries.get(producer_id)))
            aborted = end_transaction(producers, header, marker, base_offset)
            if aborted is not None:
                self._aborted.append(aborted)
        elif not header.attributes & ATTRIBUTE_CONTROL:
            self._undo.append((producer_id, producers.update(header, base_offset)))

    def complete(self, segment: Segment) -> None:
        """Forgets the batches after they were written to `segment`, and indexes the transactions they aborted."""
        self.batches.clear()
        self.size_bytes = 0
        if self._undo:
            self._undo.clear()
        if self._aborted:
            for aborted in self._aborted:
                segment.aborted.append(aborted)
            self._aborted.clear()
            with contextlib.suppress(StorageFailure):  # the next flush writes the index, or reports the failure
                segment.aborted.write()

    def abandon(self, producers: ProducerState) -> None:
        """Forgets the batches and restores the producer state from before the first of them."""
        self.batches.clear()
        self.size_bytes = 0
        self._aborted.clear()
        for producer_id, old in reversed(self._undo):
            producers.restore(producer_id, old)
        self._undo.clear()
