"""`.index`: positions of some batches of a segment. Entries of 8 bytes: last offset of the batch relative to the base
offset (int32), position of the batch in the `.log` (int32). The first batch of a segment has no entry."""

from __future__ import annotations

from typing import Final

from kbroker.log.segments.sorted_index import SortedIndex

__all__ = ["OFFSET_ENTRY_SIZE", "new_offset_index", "position_at_or_below"]

OFFSET_ENTRY_SIZE: Final = 8


def new_offset_index(content: bytes = b"") -> SortedIndex:
    return SortedIndex("i", content)


def position_at_or_below(index: SortedIndex, relative_offset: int) -> int:
    """Returns the position at which a search for the offset starts; 0 if no entry is at or below it."""
    entry = index.floor(relative_offset)
    return index.values[entry] if entry >= 0 else 0
