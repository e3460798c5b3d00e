"""Task that moves replicas between data directories: copies their logs in pieces, in a thread, at a limited rate.

Moves take turns, one piece each. Beginning and ending a move: replica_moves.py.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Final

import trio

from kbroker.clock import Clock
from kbroker.config.broker import BrokerConfig
from kbroker.errors import StorageFailure
from kbroker.log.files.file_slice import FileSlice
from kbroker.log.future_log import FutureLog
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import InvalidBatch
from kbroker.replication.assigned_replicas import AssignedReplicas
from kbroker.replication.replica_moves import Move

__all__ = ["LogDirMover"]

logger = logging.getLogger(__name__)

_PIECE_BYTES: Final = 1 << 20
_BYTES_PER_SECOND: Final = 64 << 20  # default where Kafka has no limit: a move must not slow down clients
_THROTTLE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
_PAUSE_SECONDS: Final = 0.5
_SWAP_TRIES: Final = 5


class LogDirMover:
    def __init__(self, replicas: AssignedReplicas, config: BrokerConfig, clock: Clock) -> None:
        self._moves = replicas.moves
        self._log_dirs = replicas.log_dirs
        self._config = config
        self._clock = clock
        self._is_due = trio.Event()
        self._is_idle = trio.Event()
        self._known: set[Move] = set()  # includes cancelled moves until their future log is deleted
        replicas.moves.on_change = self._on_change

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
        """Waits until no move is under way and all future logs of cancelled moves are deleted."""
        await self._is_idle.wait()

    def _on_change(self, move: Move) -> None:
        self._known.add(move)
        if self._is_idle.is_set():
            self._is_idle = trio.Event()
        self._is_due.set()

    async def _advance(self, move: Move) -> bool:
        """Performs one step of a move. Returns False if the move is over."""
        try:
            if not move.is_over and await self._copy_piece(move):
                return True
            if not move.is_over and not await self._finish(move):
                return True
        except (StorageFailure, InvalidBatch) as failure:
            logger.error("Could not move %s-%d; it stays in its directory: %s", *move.key, failure)
        self._moves.drop(move)
        return False

    async def _copy_piece(self, move: Move) -> bool:
        """Copies the next piece of the log. Returns False if nothing is left to copy."""
        began = self._clock.monotonic()
        piece = move.next_slice(_PIECE_BYTES)
        if piece is None:
            return False
        if isinstance(piece, ErrorCode):
            if piece is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise StorageFailure(f"could not read the log at offset {move.offset}")
            move.start_again()
            return True
        try:
            is_copied = await trio.to_thread.run_sync(_copy, piece, move.future)
        finally:
            piece.release()
        if not is_copied:
            move.start_again()
            return True
        move.note_copied()
        await self._pause(move, len(piece), began)
        return True

    async def _pause(self, move: Move, size: int, began: float) -> None:
        """Waits until `size` bytes conform to the rate. Waits in steps, since the rate may be changed."""
        while not move.is_over:
            left = size / self._rate() - (self._clock.monotonic() - began)
            if left <= 0:
                return
            await trio.sleep(min(left, _PAUSE_SECONDS))

    async def _finish(self, move: Move) -> bool:
        """Tries to swap the logs. Returns False if producers append faster than the rest can be copied."""
        for number in range(_SWAP_TRIES):
            now_ms = self._clock.now_ms()
            await trio.to_thread.run_sync(move.future.flush, now_ms)
            if move.is_over:
                return True
            if self._moves.try_swap(move, now_ms, is_last_try=number == _SWAP_TRIES - 1):
                with contextlib.suppress(StorageFailure):  # the periodic checkpoint retries, and logs the failure
                    await self._log_dirs.checkpoint()
                return True
        return False

    def _rate(self) -> int:
        config = self._config
        text = config.dynamic_texts.get(_THROTTLE) or config.dynamic_default_texts.get(_THROTTLE)
        return max(int(text), 1) if text else _BYTES_PER_SECOND


def _copy(piece: FileSlice, future: FutureLog) -> bool:
    """Copies a piece, in a thread. Returns False if the log was truncated while the piece was read."""
    records = piece.read()
    if not piece.is_valid() or len(records) < len(piece):
        return False
    future.append(records)
    return True
