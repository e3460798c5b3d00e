"""`.index`: for some batches of a segment, where they begin. Entries of 8 bytes: last offset of the batch relative to
the segment's base (int32), position of the batch in the `.log` (int32). The segment's first batch has no entry."""

from __future__ import annotations

from kbroker.log.sorted_index import SortedIndex

__all__ = ["OFFSET_ENTRY_SIZE", "new_offset_index", "position_at_or_below"]

OFFSET_ENTRY_SIZE = 8


def new_offset_index(content: bytes = b"") -> SortedIndex:
    return SortedIndex("i", content)


def position_at_or_below(index: SortedIndex, relative_offset: int) -> int:
    """Where a walk that looks for this offset starts; 0 if no entry lies at or below it."""
    entry = index.floor(relative_offset)
    return index.values[entry] if entry >= 0 else 0
