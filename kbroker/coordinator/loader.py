"""Rebuilds a shard from its partition's log, in slices, while the broker serves everybody else.

Reads in a thread, replays on the loop for two milliseconds at a time. A batch that does not parse is passed over and
reported: one rotten record must not take all groups away.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

from kbroker.clock import Clock
from kbroker.group.hard_state import HardState
from kbroker.group.offset_replay import OffsetReplay
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
_BYTES_BETWEEN_COLLECTIONS: Final = 2 << 20
_BYTES_WORTH_A_COLLECTION: Final = 1 << 18


class Loader:
    def __init__(self, partition: Partition, hard: HardState, clock: Clock) -> None:
        self._partition = partition
        self._clock = clock
        self._replay = OffsetReplay(hard, self._report)
        self._pending: dict[int, list[KeyAndValue]] = {}  # of open transactions, by producer id
        self._next_offset = 0

    async def load(self) -> None:
        with _old_heap_left_alone():
            await self._load()

    async def _load(self) -> None:
        log = self._partition.log
        offset = log.log_start_offset
        uncollected_bytes = 0
        while offset < log.log_end_offset:
            piece = log.read(offset, _READ_BYTES)
            if piece is None:
                break  # compaction has taken what was there
            if not isinstance(piece, FileSlice):
                logger.error("%s cannot be read at offset %d: %r", self._partition, offset, piece)
                break
            try:
                data = await trio.to_thread.run_sync(piece.read)
            finally:
                piece.release()
            before, offset = offset, await self._take(data, offset)
            if offset == before:
                break
            uncollected_bytes += len(data)
            if uncollected_bytes >= _BYTES_BETWEEN_COLLECTIONS:
                uncollected_bytes = 0
                await _collect()
        if uncollected_bytes >= _BYTES_WORTH_A_COLLECTION:
            await _collect()

    async def _take(self, data: bytes, offset: int) -> int:
        """The offset after the last whole batch."""
        monotonic = self._clock.monotonic
        self._next_offset = offset
        slice_end = monotonic() + _SLICE_SECONDS
        for _ in self._batches(data, offset):
            if monotonic() >= slice_end:
                await trio.lowlevel.checkpoint()
                slice_end = monotonic() + _SLICE_SECONDS
        return self._next_offset

    def _batches(self, data: bytes, offset: int) -> Iterator[None]:
        """Replays them, and yields now and then: records of transactions when they have been committed."""
        try:
            for position, header in iter_headers(data):
                if header.last_offset < offset:
                    continue
                try:
                    if header.attributes & _SPECIAL:
                        self._replay_special(data, position, header)
                    else:
                        yield from self._replay.replay_batch(data, position, header)
                except InvalidBatch as problem:
                    logger.error("%s: batch at %d does not parse: %s", self._partition, header.base_offset, problem)
                self._next_offset = header.last_offset + 1
                yield
        except InvalidBatch as problem:
            logger.error("%s is damaged after offset %d: %s", self._partition, self._next_offset, problem)

    def _replay_special(self, data: bytes, position: int, header: BatchHeader) -> None:
        records = list(iter_records(data, position))
        if not header.is_control:
            pending = self._pending.setdefault(header.producer_id, [])
            pending += [(each.key, each.value) for each in records if each.key is not None]
            return
        marker = read_end_transaction_marker(records[0]) if records else None
        ended = self._pending.pop(header.producer_id, [])
        if marker is not None and marker.is_commit:
            for key, value in ended:
                self._replay.replay(key, value)

    def _report(self, problem: UnreadableRecord) -> None:
        logger.error("%s, after offset %d: not readable: %s", self._partition, self._next_offset, problem)


@contextmanager
def _old_heap_left_alone() -> Iterator[None]:
    """Until it ends a full pass of the garbage collector is one over what is new. Where somebody keeps a heap frozen
    (`gc.freeze`), it is left as it is."""
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def _collect() -> None:
    """A full pass, early: after it the collector knows that tuples and dicts of atoms can hold no cycle, and walks them
    no more. A pass over a million offsets at once would pause everybody."""
    await trio.lowlevel.checkpoint()
    if gc.isenabled():
        gc.collect()
        await trio.lowlevel.checkpoint()
