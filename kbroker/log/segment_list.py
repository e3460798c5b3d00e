"""The segments of a log in the order of their base offsets; the last one is active. Only arithmetic, no files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import is_

from kbroker.log.aborted_index import AbortedTransaction, aborted_in_range
from kbroker.log.file_slice import FileSlice
from kbroker.log.segment import Segment

__all__ = ["SegmentList", "find_aborted"]


class SegmentList:
    __slots__ = ("_bases", "_segments")

    def __init__(self, segments: list[Segment]) -> None:
        assert segments, "a log has a segment at all times"
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
        """The place of the segment that would hold `offset`; the first one for an offset before them all."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def starting_with(self, offset: int) -> list[Segment]:
        """The segment that would hold `offset`, and all behind it."""
        return self._segments[self.floor_number(offset) :]

    def find_batch(self, offset: int) -> tuple[Segment | None, int, int]:
        """The first batch that ends at `offset` or later, its position and size: compaction may have emptied whole
        segments."""
        for segment in self.starting_with(offset):
            segment.ensure_size()
            position, size = segment.find_batch(offset)
            if position >= 0:
                return segment, position, size
        return None, -1, 0

    def from_number(self, number: int) -> list[Segment]:
        return self._segments[number:]

    def end_of(self, number: int) -> int | None:
        """Where the segment at this place ends: the base of the next one, None for the active one."""
        return self._bases[number + 1] if number + 1 < len(self._bases) else None

    def append(self, segment: Segment) -> None:
        assert segment.base_offset > self._bases[-1]
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    def pop_first(self, count: int) -> list[Segment]:
        """Never the active one."""
        assert count < len(self._segments)
        gone = self._segments[:count]
        del self._segments[:count]
        del self._bases[:count]
        return gone

    def pop_behind(self, number: int) -> list[Segment]:
        """Takes away all behind the one at this place."""
        gone = self._segments[number + 1 :]
        del self._segments[number + 1 :]
        del self._bases[number + 1 :]
        return gone

    def find_run(self, segments: Sequence[Segment]) -> int | None:
        """The place of the first of these if they lie here side by side, none of them active."""
        number = self.floor_number(segments[0].base_offset)
        found = self._segments[number : number + len(segments)]
        is_here = len(found) == len(segments) and all(map(is_, found, segments))
        return number if is_here and number + len(segments) < len(self._segments) else None

    def replace_run(self, number: int, count: int, segment: Segment) -> None:
        assert segment.base_offset == self._bases[number]
        self._segments[number : number + count] = [segment]
        self._bases[number : number + count] = [segment.base_offset]

    def replace_all(self, segment: Segment) -> list[Segment]:
        gone = self._segments
        self._segments = [segment]
        self._bases = [segment.base_offset]
        return gone


def find_aborted(
    segments: Sequence[Segment], start_offset: int, end_offset: int, within: FileSlice | None
) -> list[AbortedTransaction]:
    """Those with data in [start, end). `within`: no further than this slice reaches, which was read from the start; a
    reader who is far behind would get all of them again with every slice."""
    if within is not None:
        for segment in segments:
            if segment.file is within.file:
                end_offset = min(end_offset, segment.offset_behind(within.position + within.size, end_offset))
    return list(aborted_in_range((segment.aborted for segment in segments), start_offset, end_offset))
