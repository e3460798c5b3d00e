"""Zigzag varints of many records at once: numpy arrays of numbers to bytes and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import InvalidBatch

__all__ = ["VarintColumns", "read_varints", "varint_sizes"]

_LONGEST = 10  # bytes of a number of 64 bits
ColumnArray = Any


def zigzag(numbers: ColumnArray) -> ColumnArray:
    signed = np.asarray(numbers, dtype=np.int64)
    return ((signed << 1) ^ (signed >> 63)).view(np.uint64)


def varint_sizes(numbers: ColumnArray) -> ColumnArray:
    """Returns the length in bytes of each number."""
    coded = zigzag(numbers)
    sizes = np.ones(len(coded), dtype=np.int64)
    largest = int(coded.max(initial=0))
    for shift in range(7, 7 * _LONGEST, 7):
        if largest >> shift == 0:
            break
        sizes += coded >= np.uint64(1 << shift)
    return sizes


class VarintColumns:
    """Collects columns of numbers and joins them row by row to bytes: a fast way to write the heads of records."""

    def __init__(self, row_count: int) -> None:
        self._row_count = row_count
        self._bytes: list[ColumnArray] = []
        self._masks: list[ColumnArray | None] = []

    def add(self, numbers: ColumnArray) -> None:
        coded = zigzag(numbers)
        largest = int(coded.max(initial=0))
        mask: ColumnArray | None = None
        while True:
            low = (coded & np.uint64(0x7F)).astype(np.uint8)
            largest >>= 7
            self._masks.append(mask)
            if largest == 0:
                self._bytes.append(low)
                return
            coded = coded >> np.uint64(7)
            following = coded != 0
            self._bytes.append(low | (following.astype(np.uint8) << 7))
            mask = following

    def add_byte(self, value: int) -> None:
        self._bytes.append(np.full(self._row_count, value, dtype=np.uint8))
        self._masks.append(None)

    def join(self) -> tuple[ColumnArray, ColumnArray]:
        """Returns the bytes of all rows, and the length of each row."""
        table = np.stack(self._bytes, axis=1) if self._bytes else np.zeros((self._row_count, 0), dtype=np.uint8)
        if all(mask is None for mask in self._masks):
            return table.reshape(-1), np.full(self._row_count, table.shape[1], dtype=np.int64)
        present = np.ones(table.shape, dtype=bool)
        for column, mask in enumerate(self._masks):
            if mask is not None:
                present[:, column] = mask
        return table[present], present.sum(axis=1)


def read_varints(data: ColumnArray, positions: ColumnArray) -> tuple[ColumnArray, ColumnArray]:
    """Returns the numbers at the positions of `data`, and the positions after them.

    Raises InvalidBatch if a number is cut off or too long.
    """
    try:
        return _read_varints(data, positions)
    except IndexError:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "a record ends within a number") from None


def _read_varints(data: ColumnArray, positions: ColumnArray) -> tuple[ColumnArray, ColumnArray]:
    first = data[positions]
    coded = (first & 0x7F).astype(np.uint64)
    ends = positions + 1
    rows = np.flatnonzero(first >= 0x80)
    shift = 7
    while len(rows):
        if shift >= 7 * _LONGEST:
            raise InvalidBatch(ErrorCode.INVALID_RECORD, "a number in a record is too long")
        following = data[ends[rows]]
        coded[rows] |= (following & 0x7F).astype(np.uint64) << np.uint64(shift)
        ends[rows] += 1
        rows = rows[following >= 0x80]
        shift += 7
    return (coded >> np.uint64(1)).astype(np.int64) ^ -(coded & np.uint64(1)).astype(np.int64), ends
