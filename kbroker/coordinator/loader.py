"""Rebuilds a shard from its partition's log, while the broker serves other requests.

Reads in a thread and replays on the loop, in time slices. Does not know the meaning of the batches: that is the
replay's. A batch that cannot be parsed is skipped and logged: one corrupt record must not disable all groups.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import trio

from kbroker.clock import Clock
from kbroker.log.files.file_slice import FileSlice
from kbroker.protocol.record_batch import BatchHeader, InvalidBatch, iter_headers
from kbroker.replication.partition import Partition
from kbroker.time_slice import TimeSlice

__all__ = ["BatchReplay", "Loader"]

logger = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 20
_BYTES_BETWEEN_COLLECTIONS: Final = 2 << 20
_BYTES_WORTH_A_COLLECTION: Final = 1 << 18


class BatchReplay(Protocol):
    def replay_batch(self, data: bytes, position: int, header: BatchHeader) -> Iterator[None]:
        """Replays one batch. Yields every few records, so that the loader can let other tasks run."""
        ...


class Loader:
    def __init__(
        self, partition: Partition, new_replay: Callable[[Callable[[Exception], None]], BatchReplay], clock: Clock
    ) -> None:
        """`new_replay` gets a callback for records that cannot be read."""
        self._partition = partition
        self._clock = clock
        self._replay = new_replay(self._report)
        self._next_offset = 0

    async def load(self) -> None:
        with _frozen_heap():
            await self._load()

    async def _load(self) -> None:
        log = self._partition.log
        offset = log.log_start_offset
        uncollected_bytes = 0
        while offset < log.log_end_offset:
            piece = log.read(offset, _READ_BYTES)
            if piece is None:
                break  # compaction has removed the records after this offset
            if not isinstance(piece, FileSlice):
                logger.error("Could not read %s at offset %d: %r", self._partition, offset, piece)
                break
            try:
                data = await trio.to_thread.run_sync(piece.read)
            finally:
                piece.release()
            before, offset = offset, await self._replay_batches(data, offset)
            if offset == before:
                break
            uncollected_bytes += len(data)
            if uncollected_bytes >= _BYTES_BETWEEN_COLLECTIONS:
                uncollected_bytes = 0
                await _collect()
        if uncollected_bytes >= _BYTES_WORTH_A_COLLECTION:
            await _collect()

    async def _replay_batches(self, data: bytes, offset: int) -> int:
        """Replays the complete batches in `data`. Returns the offset after the last of them."""
        self._next_offset = offset
        time_slice = TimeSlice(self._clock)
        for _ in self._batches(data, offset):
            await time_slice.checkpoint_if_over()
        return self._next_offset

    def _batches(self, data: bytes, offset: int) -> Iterator[None]:
        try:
            for position, header in iter_headers(data):
                if header.last_offset < offset:
                    continue
                try:
                    yield from self._replay.replay_batch(data, position, header)
                except InvalidBatch as problem:
                    logger.error(
                        "Skipped a corrupt batch of %s at offset %d: %s", self._partition, header.base_offset, problem
                    )
                self._next_offset = header.last_offset + 1
                yield
        except InvalidBatch as problem:
            logger.error("%s is corrupt after offset %d: %s", self._partition, self._next_offset, problem)

    def _report(self, problem: Exception) -> None:
        logger.error(
            "Skipped an unreadable record of %s after offset %d: %s", self._partition, self._next_offset, problem
        )


@contextmanager
def _frozen_heap() -> Iterator[None]:
    """Freezes existing objects during a load, so that garbage collections scan only new ones.

    Does nothing if the heap is already frozen.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


async def _collect() -> None:
    """Collects garbage early and often: a collection stops tracking tuples and dicts of atoms, which hold no cycles.

    A single collection over a million offsets would block the loop for too long.
    """
    await trio.lowlevel.checkpoint()
    if gc.isenabled():
        gc.collect()
        await trio.lowlevel.checkpoint()
