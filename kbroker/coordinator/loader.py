"""Rebuilds a shard from its partition's log, in slices, while the broker serves everybody else.

Reads in a thread, replays on the loop for two milliseconds at a time. A batch that does not parse is passed over and
reported: one rotten record must not take all groups away.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from typing import Final

import trio

from kbroker.clock import Clock
from kbroker.group.hard_state import HardState
from kbroker.group.records import UnreadableRecord
from kbroker.group.step import KeyAndValue
from kbroker.log.file_slice import FileSlice
from kbroker.protocol.record_batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BatchHeader,
    InvalidBatch,
    iter_headers,
)
from kbroker.protocol.records import iter_records, read_end_transaction_marker
from kbroker.replication.partition import Partition

__all__ = ["Loader"]

logger = logging.getLogger(__name__)

_SPECIAL: Final = ATTRIBUTE_CONTROL | ATTRIBUTE_TRANSACTIONAL
_READ_BYTES: Final = 1 << 20
_SLICE_SECONDS: Final = 0.002
_RECORDS_BETWEEN_LOOKS: Final = 64
_RECORDS_BETWEEN_FREEZES: Final = 100_000


class Loader:
    def __init__(self, partition: Partition, hard: HardState, clock: Clock) -> None:
        self._partition = partition
        self._hard = hard
        self._clock = clock
        self._pending: dict[int, list[KeyAndValue]] = {}  # of open transactions, by producer id
        self._unfrozen = 0
        self._slice_end = 0.0
        self._next_offset = 0

    async def load(self) -> None:
        log = self._partition.log
        offset = log.log_start_offset
        self._slice_end = self._clock.monotonic() + _SLICE_SECONDS
        while offset < log.log_end_offset:
            piece = log.read(offset, _READ_BYTES)
            if not isinstance(piece, FileSlice):
                logger.error("%s cannot be read at offset %d: %r", self._partition, offset, piece)
                break
            try:
                data = await trio.to_thread.run_sync(piece.read)
            finally:
                piece.release()
            before, offset = offset, await self._replay(data, offset)
            if offset == before:
                break
        if self._unfrozen:
            self._freeze()

    async def _replay(self, data: bytes, offset: int) -> int:
        """The offset after the last whole batch."""
        replay, monotonic = self._hard.replay, self._clock.monotonic
        self._next_offset = offset
        count = 0
        for key, value in self._records(data, offset):
            try:
                replay(key, value)
            except UnreadableRecord as problem:
                logger.error("%s, after offset %d: not readable: %s", self._partition, self._next_offset, problem)
            count += 1
            if count % _RECORDS_BETWEEN_LOOKS == 0 and monotonic() >= self._slice_end:
                await trio.lowlevel.checkpoint()
                self._slice_end = monotonic() + _SLICE_SECONDS
        self._unfrozen += count
        if self._unfrozen >= _RECORDS_BETWEEN_FREEZES:
            self._freeze()
        return self._next_offset

    def _records(self, data: bytes, offset: int) -> Iterator[KeyAndValue]:
        """What to replay, in order: records of transactions when they have been committed."""
        try:
            for position, header in iter_headers(data):
                if header.last_offset < offset:
                    continue
                if header.attributes & _SPECIAL:
                    yield from self._special_records(data, position, header)
                else:
                    try:
                        for _, _, key, value, _ in iter_records(data, position):
                            if key is not None:
                                yield key, value
                    except InvalidBatch as problem:
                        logger.error("%s: batch at %d does not parse: %s", self._partition, header.base_offset, problem)
                self._next_offset = header.last_offset + 1
        except InvalidBatch as problem:
            logger.error("%s is damaged after offset %d: %s", self._partition, self._next_offset, problem)

    def _special_records(self, data: bytes, position: int, header: BatchHeader) -> Iterator[KeyAndValue]:
        try:
            records = list(iter_records(data, position))
            if not header.is_control:
                pending = self._pending.setdefault(header.producer_id, [])
                pending += [(each.key, each.value) for each in records if each.key is not None]
                return
            marker = read_end_transaction_marker(records[0]) if records else None
        except InvalidBatch as problem:
            logger.error("%s: batch at %d does not parse: %s", self._partition, header.base_offset, problem)
            return
        ended = self._pending.pop(header.producer_id, [])
        if marker is not None and marker.is_commit:
            yield from ended

    def _freeze(self) -> None:
        """What was loaded stays: a collector that walks a million offsets again and again would pause everybody."""
        self._unfrozen = 0
        gc.freeze()
