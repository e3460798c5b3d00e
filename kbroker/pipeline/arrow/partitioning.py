"""Partitions of many records at once: Kafka's murmur2 of the keys, and a spread of records without a key."""

from __future__ import annotations

from typing import Any

import numpy as np

from kbroker.client.partitioning import MULTIPLIER, SEED

__all__ = ["murmur2_of_keys", "partitions_of_keys", "spread"]

ColumnArray = Any

_M = np.uint32(MULTIPLIER)


def murmur2_of_keys(data: ColumnArray, starts: ColumnArray, lengths: ColumnArray) -> ColumnArray:
    """Returns the hash of each key, as `kbroker.client.partitioning.murmur2` does. Keys are ranges of `data`."""
    values = np.uint32(SEED) ^ lengths.astype(np.uint32)
    words = lengths >> 2
    rows: ColumnArray = np.arange(len(lengths))
    for word in range(int(words.max(initial=0))):
        rows = rows[words[rows] > word]
        number = _read_little(data, starts[rows] + 4 * word, 4) * _M
        number = (number ^ (number >> np.uint32(24))) * _M
        values[rows] = (values[rows] * _M) ^ number
    for rest in (1, 2, 3):
        rows = np.flatnonzero((lengths & 3) == rest)
        if len(rows):
            number = _read_little(data, starts[rows] + 4 * words[rows], rest)
            values[rows] = (values[rows] ^ number) * _M
    values = (values ^ (values >> np.uint32(13))) * _M
    return values ^ (values >> np.uint32(15))


def _read_little(data: ColumnArray, positions: ColumnArray, size: int) -> ColumnArray:
    number = data[positions].astype(np.uint32)
    for byte in range(1, size):
        number |= data[positions + byte].astype(np.uint32) << np.uint32(8 * byte)
    return number


def partitions_of_keys(
    data: ColumnArray, starts: ColumnArray, lengths: ColumnArray, partition_count: int
) -> ColumnArray:
    """Returns the partition of each key by Kafka's default partitioner."""
    hashes = murmur2_of_keys(data, starts, lengths) & np.uint32(0x7FFFFFFF)
    return (hashes % np.uint32(partition_count)).astype(np.int32)


def spread(row_count: int, size_bytes: int, partition_count: int, first: int, least_bytes: int) -> ColumnArray:
    """Returns partitions for records without a key: runs of at least `least_bytes`, from partition `first` on.

    Runs keep batches large; several runs use several partitions in one request.
    """
    runs = min(partition_count, max(1, size_bytes // least_bytes))
    numbers = np.arange(row_count, dtype=np.int64) * runs // max(row_count, 1)
    return ((numbers + first) % partition_count).astype(np.int32)
