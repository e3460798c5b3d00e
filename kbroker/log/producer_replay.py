"""Producer state from the files: the newest snapshot that makes sense, and the batches behind it. Owns which
snapshots a log keeps; the rules of sequences and transactions are producer_state's."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable

from kbroker.log.aborted_index import AbortedTransaction
from kbroker.log.filesystem import FileSystem
from kbroker.log.producer_snapshot import SNAPSHOT_SUFFIX, CorruptSnapshot, decode_snapshot, encode_snapshot
from kbroker.log.producer_state import ProducerState
from kbroker.log.segment import Segment, file_name
from kbroker.log.segment_list import SegmentList
from kbroker.protocol.record_batch import BatchHeader, InvalidBatch, ReadBuffer
from kbroker.protocol.records import EndTransactionMarker, iter_records, read_end_transaction_marker

__all__ = ["ProducerSnapshots", "end_transaction", "read_marker", "rebuild_producers"]


class ProducerSnapshots:
    """The `.snapshot` files of one partition, by offset."""

    __slots__ = ("_directory", "_filesystem", "offsets")

    def __init__(self, filesystem: FileSystem, directory: str, names: Iterable[str]) -> None:
        self._filesystem = filesystem
        self._directory = directory
        self.offsets = sorted(int(name[: -len(SNAPSHOT_SUFFIX)]) for name in names if name.endswith(SNAPSHOT_SUFFIX))

    def _path(self, offset: int) -> str:
        return f"{self._directory}/{file_name(offset, SNAPSHOT_SUFFIX)}"

    def take(self, producers: ProducerState, offset: int) -> None:
        if not self.offsets or self.offsets[-1] < offset:
            self._filesystem.replace(self._path(offset), encode_snapshot(producers.entries), sync=False)
            insort(self.offsets, offset)

    def load_newest(self, end_offset: int) -> tuple[ProducerState, int]:
        """State and offset of the newest one at or below `end_offset`. Later ones, and broken ones, are removed."""
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
        """All but the newest, as far as they lie below the offset."""
        for old in self.offsets[: bisect_right(self.offsets, offset - 1)]:
            if old != self.offsets[-1]:
                self._remove(old)

    def remove_strays(self, base_offsets: Iterable[int]) -> None:
        """Every clean stop leaves one: those of the segments and the newest are enough."""
        kept = {*base_offsets, *self.offsets[-1:]}
        for offset in [each for each in self.offsets if each not in kept]:
            self._remove(offset)

    def remove_all(self) -> None:
        for offset in list(self.offsets):
            self._remove(offset)

    def _remove(self, offset: int) -> None:
        self._filesystem.remove(self._path(offset))
        self.offsets.remove(offset)


def rebuild_producers(segments: SegmentList, snapshots: ProducerSnapshots, end_offset: int) -> ProducerState:
    """Batches below the log's start count too, as long as their bytes are there: their producers may retry."""
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
        pass  # a batch that rotted below the recovery point costs its segment's producers, not the start
    segment.aborted.write()


def read_marker(batch: ReadBuffer) -> EndTransactionMarker | None:
    """What a control batch says; None for one that ends no transaction."""
    for record in iter_records(batch):
        return read_end_transaction_marker(record)
    return None


def end_transaction(
    producers: ProducerState, header: BatchHeader, marker: EndTransactionMarker, offset: int
) -> AbortedTransaction | None:
    """Takes a marker in; what the aborted index is to remember, if it aborts anything."""
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
