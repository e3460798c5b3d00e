"""`.timeindex`: entries of 12 bytes: the largest timestamp so far in the segment (int64), last offset of the batch that
has it, relative to the base offset (int32). Both grow. The last entry of a closed segment has its largest timestamp."""

from __future__ import annotations

from typing import Final

from kbroker.log.segments.sorted_index import SortedIndex
from kbroker.protocol.record_batch import NO_TIMESTAMP

__all__ = ["TIME_ENTRY_SIZE", "append_if_later", "last_timestamp", "new_time_index"]

TIME_ENTRY_SIZE: Final = 12


def new_time_index(content: bytes = b"") -> SortedIndex:
    return SortedIndex("q", content)


def last_timestamp(index: SortedIndex) -> int:
    return index.keys[-1] if index.keys else NO_TIMESTAMP


def append_if_later(index: SortedIndex, timestamp: int, relative_offset: int) -> None:
    if timestamp > last_timestamp(index):
        index.append(timestamp, relative_offset)
