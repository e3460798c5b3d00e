"""Rebuilds the producer state of a log from its newest valid snapshot and the batches after it, and decides which
snapshots to keep. The rules of sequences and transactions are in producer_state."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable

from kbroker.log.files.filesystem import FileSystem
from kbroker.log.producers.producer_snapshot import SNAPSHOT_SUFFIX, CorruptSnapshot, decode_snapshot, encode_snapshot
from kbroker.log.producers.producer_state import ProducerState
from kbroker.log.segments.aborted_index import AbortedTransaction
from kbroker.log.segments.segment import Segment, file_name
from kbroker.log.segments.segment_list import SegmentList
from kbroker.protocol.record_batch import BatchHeader, InvalidBatch, ReadBuffer
from kbroker.protocol.records import EndTransactionMarker, iter_records, read_end_transaction_marker

__all__ = ["ProducerSnapshots", "end_transaction", "read_marker", "rebuild_producers"]


class ProducerSnapshots:
    """`.snapshot` files of one partition, by offset."""

    __slots__ = ("_directory", "_filesystem", "offsets")

    def __init__(self, filesystem: FileSystem, directory: str, names: Iterable[str]) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self.offsets = sorted(int(name[: -len(SNAPSHOT_SUFFIX)]) for name in names if name.endswith(SNAPSHOT_SUFFIX))

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"

    def write(self, producers: ProducerState, offset: int) -> None:
        """Writes the producer state at `offset`, unless a snapshot at or after it exists. Not fsynced."""
        if not self.offsets or self.offsets[-1] < offset:
            self._filesystem.replace(self._path(offset), encode_snapshot(producers.entries), sync=False)
            insort(self.offsets, offset)

    def load_newest(self, end_offset: int) -> tuple[ProducerState, int]:
        """Returns state and offset of the newest snapshot up to `end_offset`. Deletes later and damaged ones."""
        while self.offsets:
            offset = self.offsets[-1]
            if offset <= end_offset:
                try:
                    return ProducerState(decode_snapshot(self._filesystem.read(self._path(offset)))), offset
                except (CorruptSnapshot, FileNotFoundError):
                    pass
            self._remove(offset)
        return ProducerState(), 0

    def remove_before(self, offset: int) -> None:
        """Deletes the snapshots below the offset, except the newest."""
        for old in self.offsets[: bisect_right(self.offsets, offset - 1)]:
            if old != self.offsets[-1]:
                self._remove(old)

    def remove_strays(self, base_offsets: Iterable[int]) -> None:
        """Deletes all snapshots except the newest and those at a base offset: every clean stop leaves one."""
        kept = {*base_offsets, *self.offsets[-1:]}
        for offset in [offset for offset in self.offsets if offset not in kept]:
            self._remove(offset)

    def remove_all(self) -> None:
        for offset in list(self.offsets):
            self._remove(offset)

    def _remove(self, offset: int) -> None:
        self._filesystem.remove(self._path(offset))
        self.offsets.remove(offset)


def rebuild_producers(segments: SegmentList, snapshots: ProducerSnapshots, end_offset: int) -> ProducerState:
    """Returns the producer state at `end_offset`.

    Uses batches below the log start offset too, if they are not deleted yet: their producers may retry.
    """
    producers, replayed_to = snapshots.load_newest(end_offset)
    replayed_to = max(replayed_to, segments.first.base_offset)
    if replayed_to < end_offset:
        for segment in segments.starting_with(replayed_to):
            _replay_segment(producers, segment, replayed_to)
    return producers


def _replay_segment(producers: ProducerState, segment: Segment, start_offset: int) -> None:
    segment.aborted.truncate_to(start_offset)
    position = segment.find(start_offset)
    if position < 0:
        return
    try:
        for at, header in segment.headers(position):
            if header.producer_id < 0:
                continue
            if not header.is_control:
                producers.update(header, header.base_offset)
            elif (marker := read_marker(segment.batch_at(at))) is not None:
                aborted = end_transaction(producers, header, marker, header.base_offset)
                if aborted is not None:
                    segment.aborted.append(aborted)
    except InvalidBatch:
        pass  # damage below the recovery point: the rest of the segment is skipped, and the log still opens
    segment.aborted.write()


def read_marker(batch: ReadBuffer) -> EndTransactionMarker | None:
    """Returns the marker in a control batch; None if it does not end a transaction."""
    for record in iter_records(batch):
        return read_end_transaction_marker(record)
    return None


def end_transaction(
    producers: ProducerState, header: BatchHeader, marker: EndTransactionMarker, offset: int
) -> AbortedTransaction | None:
    """Applies a marker. Returns the entry for the aborted index; None if it aborts no transaction with records here."""
    completed = producers.end_transaction(
        header, offset=offset, coordinator_epoch=marker.coordinator_epoch, is_abort=not marker.is_commit
    )
    if completed is None or not completed.is_aborted:
        return None
    return AbortedTransaction(
        completed.producer_id,
        completed.first_offset,
        completed.last_offset,
        producers.last_stable_offset_after(completed),
    )
