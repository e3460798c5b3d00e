"""Rebuilds a shard from its partition's log, in slices, while the broker serves everybody else.

Reads in a thread, replays on the loop for two milliseconds at a time; what the batches mean is the replay's to know. A
batch that does not parse is passed over and reported: one rotten record must not take all groups away.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import trio

from kbroker.clock import Clock
from kbroker.log.file_slice import FileSlice
from kbroker.protocol.record_batch import BatchHeader, InvalidBatch, iter_headers
from kbroker.replication.partition import Partition

__all__ = ["BatchReplay", "Loader"]

logger = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 20
_SLICE_SECONDS: Final = 0.002
_BYTES_BETWEEN_COLLECTIONS: Final = 2 << 20
_BYTES_WORTH_A_COLLECTION: Final = 1 << 18


class BatchReplay(Protocol):
    def replay_batch(self, data: bytes, position: int, header: BatchHeader) -> Iterator[None]:
        """Yields now and then, for others to have their turn."""
        ...


class Loader:
    def __init__(
        self, partition: Partition, new_replay: Callable[[Callable[[Exception], None]], BatchReplay], clock: Clock
    ) -> None:
        """`new_replay` gets what is to be called with a record that cannot be read."""
        self._partition = partition
        self._clock = clock
        self._replay = new_replay(self._report)
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
        try:
            for position, header in iter_headers(data):
                if header.last_offset < offset:
                    continue
                try:
                    yield from self._replay.replay_batch(data, position, header)
                except InvalidBatch as problem:
                    logger.error("%s: batch at %d does not parse: %s", self._partition, header.base_offset, problem)
                self._next_offset = header.last_offset + 1
                yield
        except InvalidBatch as problem:
            logger.error("%s is damaged after offset %d: %s", self._partition, self._next_offset, problem)

    def _report(self, problem: Exception) -> None:
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
