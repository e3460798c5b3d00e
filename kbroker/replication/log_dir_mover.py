"""The task that moves partitions between data directories: copies in pieces, in a thread, at a bounded rate.

All moves that are under way have their turns, a piece each. What a move is and how it ends: replica_moves.py.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Final

import trio

from kbroker.clock import Clock
from kbroker.config import BrokerConfig
from kbroker.errors import StorageFailure
from kbroker.log.file_slice import FileSlice
from kbroker.log.future_log import FutureLog
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import InvalidBatch
from kbroker.replication.partition_table import PartitionTable
from kbroker.replication.replica_moves import Move

__all__ = ["LogDirMover"]

logger = logging.getLogger(__name__)

_PIECE_BYTES: Final = 1 << 20
_BYTES_PER_SECOND: Final = 64 << 20  # unless the config says otherwise: clients shall not feel a move
_THROTTLE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
_PAUSE_SECONDS: Final = 0.5
_SWAP_TRIES: Final = 5


class LogDirMover:
    def __init__(self, table: PartitionTable, config: BrokerConfig, clock: Clock) -> None:
        self._table = table
        self._config = config
        self._clock = clock
        self._is_due = trio.Event()
        self._is_idle = trio.Event()
        self._known: set[Move] = set()
        table.moves.on_change = self._take

    async def run(self) -> None:
        while True:
            if not self._known:
                self._is_idle.set()
                self._is_due = trio.Event()
                await self._is_due.wait()
            for move in list(self._known):
                if not await self._advance(move):
                    self._known.discard(move)

    async def wait_idle(self) -> None:
        """Until no partition is on its way, and no copy is left over."""
        await self._is_idle.wait()

    def _take(self, move: Move) -> None:
        self._known.add(move)
        if self._is_idle.is_set():
            self._is_idle = trio.Event()
        self._is_due.set()

    async def _advance(self, move: Move) -> bool:
        """One step of a move; False when it is over."""
        try:
            if not move.is_over and await self._copy_piece(move):
                return True
            if not move.is_over and not await self._finish(move):
                return True
        except (StorageFailure, InvalidBatch) as failure:
            logger.error("%s-%d stays where it is, it cannot be moved: %s", *move.key, failure)
        self._table.moves.drop(move)
        return False

    async def _copy_piece(self, move: Move) -> bool:
        """False when nothing is left to copy."""
        began = self._clock.monotonic()
        piece = move.next_slice(_PIECE_BYTES)
        if piece is None:
            return False
        if isinstance(piece, ErrorCode):
            if piece is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise StorageFailure(f"the log cannot be read at offset {move.offset}")
            move.start_again()
            return True
        try:
            is_whole = await trio.to_thread.run_sync(_copy, piece, move.future)
        finally:
            piece.release()
        if not is_whole:
            move.start_again()
            return True
        move.note_copied()
        await self._pause(move, len(piece), began)
        return True

    async def _pause(self, move: Move, size: int, began: float) -> None:
        """In steps, for the rate may change."""
        while not move.is_over:
            left = size / self._rate() - (self._clock.monotonic() - began)
            if left <= 0:
                return
            await trio.sleep(min(left, _PAUSE_SECONDS))

    async def _finish(self, move: Move) -> bool:
        for number in range(_SWAP_TRIES):
            now_ms = self._clock.now_ms()
            await trio.to_thread.run_sync(move.future.flush, now_ms)
            if move.is_over:
                return True
            if self._table.moves.try_swap(move, now_ms, is_last_try=number == _SWAP_TRIES - 1):
                with contextlib.suppress(StorageFailure):  # the next checkpoint says so again
                    await self._table.checkpoint()
                return True
        return False

    def _rate(self) -> int:
        config = self._config
        text = config.dynamic_texts.get(_THROTTLE) or config.dynamic_default_texts.get(_THROTTLE)
        return max(int(text), 1) if text else _BYTES_PER_SECOND


def _copy(piece: FileSlice, future: FutureLog) -> bool:
    """In a thread. False if the log was cut meanwhile."""
    records = piece.read()
    if not piece.is_valid() or len(records) < len(piece):
        return False
    future.append(records)
    return True
