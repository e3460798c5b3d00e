"""Moves of replicas from one data directory of this broker to another: their progress, and the swap at the end.

    begin -> the future log grows (log_dir_mover.py) -> swap: the future log gets the log's name, the old log is deleted

After a crash at any point the log is complete in the old directory, the new one, or both. Nothing here awaits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from kbroker.errors import StorageFailure
from kbroker.log.directory import DataDirectory
from kbroker.log.files.checkpoint import CheckpointedOffsets
from kbroker.log.files.file_slice import FileSlice
from kbroker.log.future_log import FutureLog
from kbroker.names import TopicPartition
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.log_dirs import LogDirs
from kbroker.replication.partition import Partition

__all__ = ["FutureReplica", "Move", "ReplicaMoves"]

logger = logging.getLogger(__name__)

_TAIL_BYTES: Final = 1 << 20
"""Copied at most within the swap, which blocks the event loop."""


class FutureReplica(NamedTuple):
    """A partition that is being moved, as DescribeLogDirs reports it."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int


class Move:
    __slots__ = (
        "_truncations",
        "copied_bytes",
        "future",
        "has_arrived",
        "is_over",
        "offset",
        "partition",
        "source",
        "target",
    )

    def __init__(self, partition: Partition, source: DataDirectory, target: DataDirectory, future: FutureLog) -> None:
        self.partition = partition
        self.source = source
        self.target = target
        self.future = future
        self.offset = partition.log.log_start_offset  # the next offset to copy
        self._truncations = partition.log.truncations
        self.copied_bytes = 0
        self.is_over = False
        self.has_arrived = False

    def __repr__(self) -> str:
        return f"<Move of {self.partition.topic}-{self.partition.index} to {self.target.path}>"

    @property
    def key(self) -> TopicPartition:
        return (self.partition.topic, self.partition.index)

    def start_again(self) -> None:
        """Restarts the copy: retention deleted the next records to copy, or a truncation changed copied ones."""
        self.offset = self.partition.log.log_start_offset
        self._truncations = self.partition.log.truncations
        self.copied_bytes = 0
        self.future.begin(self.offset)

    def next_slice(self, max_bytes: int) -> FileSlice | ErrorCode | None:
        """Returns the next records to copy, or None if all are copied.

        OFFSET_OUT_OF_RANGE also if the log was truncated since the copy began: a follower may have replaced records
        that are in the copy already.
        """
        if self.partition.log.truncations != self._truncations:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        return self.partition.log.read(self.offset, max_bytes)

    def note_copied(self) -> None:
        end_offset = self.future.end_offset
        if end_offset is not None:
            self.offset = end_offset
            self.copied_bytes = self.future.size_bytes


class ReplicaMoves:
    def __init__(self, log_dirs: LogDirs, random_name: Callable[[], str]) -> None:
        self._log_dirs = log_dirs
        self._random_name = random_name
        self._moves: dict[TopicPartition, Move] = {}
        self.on_change: Callable[[Move], None] = lambda move: None
        """Called when a move begins, and when it is cancelled."""

    def __iter__(self) -> Iterator[Move]:
        return iter(list(self._moves.values()))

    def get(self, topic: str, index: int) -> Move | None:
        return self._moves.get((topic, index))

    def futures_in(self, directory: DataDirectory) -> list[FutureReplica]:
        return [
            FutureReplica(*move.key, move.copied_bytes, move.partition.log.log_end_offset - move.offset)
            for move in self._moves.values()
            if move.target is directory
        ]

    def begin(self, partition: Partition, target: DataDirectory) -> ErrorCode:
        """Begins to move the replica to `target`. If the log is in `target` already, cancels a move elsewhere."""
        key = (partition.topic, partition.index)
        move = self._moves.get(key)
        if move is not None:
            if move.target is target:
                return ErrorCode.NONE
            self.cancel(key)
        source = self._log_dirs.directory_of(partition)
        if source is target:
            return ErrorCode.NONE
        try:
            config = partition.log.config
            path = target.create_future(
                partition.topic, partition.index, partition.topic_id, unique=self._random_name()
            )
            if path is None:
                return ErrorCode.INVALID_TOPIC_EXCEPTION
            future = FutureLog(target.files.filesystem, path, config)
            move = self._moves[key] = Move(partition, source, target, future)
        except StorageFailure as failure:
            logger.error("Could not move %s-%d to %s: %s", *key, target.path, failure)
            return ErrorCode.KAFKA_STORAGE_ERROR
        self._log_dirs.count_replica(target, 1)
        self.on_change(move)
        return ErrorCode.NONE

    def resume(self, replica: Callable[[str, int], Partition | None]) -> None:
        """Begins all moves again that the last stop of the broker interrupted. `replica` finds a partition."""
        for directory in self._log_dirs.directories:
            for topic, index in directory.interrupted_moves:
                partition = replica(topic, index)
                if partition is not None:
                    self.begin(partition, directory)
            directory.interrupted_moves.clear()

    def cancel(self, key: TopicPartition) -> None:
        """Cancels a move. The mover deletes the future log later (`drop`): its thread may be writing to it now."""
        move = self._moves.pop(key, None)
        if move is not None:
            move.is_over = True
            self._log_dirs.count_replica(move.target, -1)
            self.on_change(move)

    def drop(self, move: Move) -> None:
        """Deletes the future log of a move that was cancelled or has failed."""
        if move.has_arrived:
            return
        if self._moves.get(move.key) is move:
            self.cancel(move.key)
        try:
            move.future.close()
            move.target.discard_future(*move.key, path=move.future.path, unique=self._random_name())
        except StorageFailure as failure:
            logger.error("Could not delete %s; it is deleted at the next start: %s", move.future.path, failure)

    def close(self) -> None:
        """Closes all future logs before the broker stops. The next start begins these moves again."""
        for move in self:
            move.future.close()

    def try_swap(self, move: Move, now_ms: int, *, is_last_try: bool) -> bool:
        """Copies the last records and replaces the log by the future log. Returns False if too many are left.

        Records that are fsynced in the log must be fsynced in the future log first. If they are not, returns False;
        with `is_last_try` fsyncs here and blocks the event loop.
        """
        partition, future = move.partition, move.future
        log = partition.log
        if move.is_over or not self._copy_tail(move):
            return False
        if log.recovery_point > future.recovery_point:
            if not is_last_try:
                return False
            future.flush(now_ms)
        recovery_point = future.recovery_point
        future.finish(log, now_ms)
        offsets = CheckpointedOffsets(log.log_start_offset, recovery_point, log.high_watermark)
        moved = move.target.adopt_future(*move.key, future.path, log.config, offsets)
        move.is_over = move.has_arrived = True
        del self._moves[move.key]
        gate = self._log_dirs.on_moved(partition, source=move.source, target=move.target)
        partition.replace_log(moved, gate)
        # Deleted last: after a crash in between, both directories hold the whole log, and the start deletes one.
        try:
            move.source.delete_log(*move.key, unique=self._random_name())
            move.source.sync()
        except StorageFailure as failure:
            logger.error(
                "Moved %s-%d, but could not delete its old log in %s: %s", *move.key, move.source.path, failure
            )
        logger.info("Moved %s-%d from %s to %s", *move.key, move.source.path, move.target.path)
        return True

    def _copy_tail(self, move: Move) -> bool:
        """Copies the records that are left. Returns False if they are more than `_TAIL_BYTES` or cannot be read."""
        log, future = move.partition.log, move.future
        bytes_left = _TAIL_BYTES
        while bytes_left > 0:
            piece = move.next_slice(bytes_left)
            if piece is None:
                if future.end_offset is None:
                    future.begin(log.log_start_offset)
                return True
            if isinstance(piece, ErrorCode):
                return False
            try:
                future.append(piece.read())
            finally:
                piece.release()
            bytes_left -= len(piece)
            move.note_copied()
        return False
