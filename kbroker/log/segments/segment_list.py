"""Segments of a log in the order of their base offsets; the last one is active. Never opens files by itself."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import is_

from kbroker.log.files.file_slice import FileSlice
from kbroker.log.segments.aborted_index import AbortedTransaction, aborted_in_range
from kbroker.log.segments.segment import Segment

__all__ = ["SegmentList", "discard", "find_aborted"]


class SegmentList:
    __slots__ = ("_bases", "_segments")

    def __init__(self, segments: list[Segment]) -> None:
        assert segments, "a log without a segment"
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]

    def __len__(self) -> int:
        return len(self._segments)

    def __getitem__(self, number: int) -> Segment:
        return self._segments[number]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __reversed__(self) -> Iterator[Segment]:
        return reversed(self._segments)

    @property
    def first(self) -> Segment:
        return self._segments[0]

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    def floor_number(self, offset: int) -> int:
        """Returns the number of the segment that covers `offset`; 0 for an offset before the first segment."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def starting_with(self, offset: int) -> list[Segment]:
        """Returns the segment that covers `offset`, and all later segments."""
        return self._segments[self.floor_number(offset) :]

    def find_batch(self, offset: int) -> tuple[Segment | None, int, int]:
        """Returns the first batch that ends at `offset` or later: segment, position, size. (None, -1, 0) if none does.

        Looks in later segments too, because compaction can leave a segment without batches.
        """
        for segment in self.starting_with(offset):
            segment.ensure_size()
            position, size = segment.find_batch(offset)
            if position >= 0:
                return segment, position, size
        return None, -1, 0

    def from_number(self, number: int) -> list[Segment]:
        return self._segments[number:]

    def end_of(self, number: int) -> int | None:
        """Returns the end offset of a segment: the base offset of the next one, or None for the active segment."""
        return self._bases[number + 1] if number + 1 < len(self._bases) else None

    def append(self, segment: Segment) -> None:
        assert segment.base_offset > self._bases[-1]
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    def pop_first(self, count: int) -> list[Segment]:
        """Removes and returns segments at the front; never the active one."""
        assert count < len(self._segments)
        removed = self._segments[:count]
        del self._segments[:count]
        del self._bases[:count]
        return removed

    def pop_behind(self, number: int) -> list[Segment]:
        """Removes and returns all segments after the given one."""
        removed = self._segments[number + 1 :]
        del self._segments[number + 1 :]
        del self._bases[number + 1 :]
        return removed

    def find_run(self, segments: Sequence[Segment]) -> int | None:
        """Returns the number of the first segment if all are in the list, in a row, and inactive; None otherwise."""
        number = self.floor_number(segments[0].base_offset)
        found = self._segments[number : number + len(segments)]
        is_same = len(found) == len(segments) and all(map(is_, found, segments))
        return number if is_same and number + len(segments) < len(self._segments) else None

    def replace_run(self, number: int, count: int, segment: Segment) -> None:
        assert segment.base_offset == self._bases[number]
        self._segments[number : number + count] = [segment]
        self._bases[number : number + count] = [segment.base_offset]

    def replace_all(self, segment: Segment) -> list[Segment]:
        removed = self._segments
        self._segments = [segment]
        self._bases = [segment.base_offset]
        return removed


def find_aborted(
    segments: Sequence[Segment], start_offset: int, end_offset: int, within: FileSlice | None
) -> list[AbortedTransaction]:
    """Returns the aborted transactions with data in [start, end).

    `within`: limits the range to a slice that was read from `start_offset`. Otherwise a consumer that is far behind
    would get all later transactions with every fetch.
    """
    if within is not None:
        for segment in segments:
            if segment.file is within.file:
                end_offset = min(end_offset, segment.offset_behind(within.position + within.size, otherwise=end_offset))
    return list(aborted_in_range((segment.aborted for segment in segments), start_offset, end_offset))


def discard(segments: Sequence[Segment]) -> None:
    """Deletes the files of truncated segments. Slices of them become invalid."""
    for segment in segments:
        segment.file.generation += 1
        for file in segment.mark_deleted():
            file.unlink()
