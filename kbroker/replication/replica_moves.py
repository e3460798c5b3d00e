"""Partitions on their way from one data directory of this broker to another: which, how far, and the swap at the end.

    begin -> the copy grows (log_dir_mover.py) -> swap: the copy gets the log's name, then the log is deleted

A crash at any point leaves the log, the copy that has become it, or both alike. Never waits; never reads ahead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from kbroker.errors import StorageFailure
from kbroker.log.checkpoint import TopicPartition
from kbroker.log.directory import DataDirectory
from kbroker.log.file_slice import FileSlice
from kbroker.log.future_log import FutureLog
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.partition import Partition

if TYPE_CHECKING:
    from kbroker.replication.partition_table import PartitionTable

__all__ = ["FutureReplica", "Move", "ReplicaMoves"]

logger = logging.getLogger(__name__)

_TAIL_BYTES: Final = 1 << 20  # what is copied within the swap, while nobody else has a turn
_MOST_PREFERENCES: Final = 10_000


class FutureReplica(NamedTuple):
    """What DescribeLogDirs tells of a partition on its way."""

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
        self.offset = partition.log.log_start_offset  # the next one to copy
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
        """The log has lost what was to be copied next, or what has been copied."""
        self.offset = self.partition.log.log_start_offset
        self._truncations = self.partition.log.truncations
        self.copied_bytes = 0
        self.future.begin(self.offset)

    def next_slice(self, max_bytes: int) -> FileSlice | ErrorCode | None:
        """What is to be copied next; None when all is. Out of range: a follower's log was cut, and what has been copied
        may not be what is there now."""
        if self.partition.log.truncations != self._truncations:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        return self.partition.log.read(self.offset, max_bytes)

    def note_copied(self) -> None:
        end_offset = self.future.end_offset
        if end_offset is not None:
            self.offset = end_offset
            self.copied_bytes = self.future.size_bytes


class ReplicaMoves:
    def __init__(self, table: PartitionTable, random_name: Callable[[], str]) -> None:
        self._table = table
        self._random_name = random_name
        self._moves: dict[TopicPartition, Move] = {}
        self._preferred: dict[TopicPartition, DataDirectory] = {}
        self.on_change: Callable[[Move], None] = lambda move: None
        """Called when a move begins, and when it is given up."""

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

    # Which directory

    def prefer(self, topic: str, index: int, directory: DataDirectory) -> None:
        """For a partition that is not here yet."""
        if len(self._preferred) >= _MOST_PREFERENCES:
            self._preferred.pop(next(iter(self._preferred)))
        self._preferred[topic, index] = directory

    def take_preferred(self, topic: str, index: int) -> DataDirectory | None:
        return self._preferred.pop((topic, index), None)

    def begin(self, partition: Partition, target: DataDirectory) -> ErrorCode:
        """Moves it there. To where it is already: a move that is under way is given up."""
        key = (partition.topic, partition.index)
        move = self._moves.get(key)
        if move is not None:
            if move.target is target:
                return ErrorCode.NONE
            self.cancel(key)
        source = self._table.directory_of(partition)
        if source is target:
            return ErrorCode.NONE
        try:
            partition.log.load()
            path = target.create_future(partition.topic, partition.index, partition.topic_id, self._random_name())
            if path is None:
                return ErrorCode.INVALID_TOPIC_EXCEPTION
            future = FutureLog(target.files.filesystem, path, partition.log.config)
            move = self._moves[key] = Move(partition, source, target, future)
        except StorageFailure as failure:
            logger.error("%s-%d cannot be moved to %s: %s", *key, target.path, failure)
            return ErrorCode.KAFKA_STORAGE_ERROR
        self._table.count_replica(target, 1)
        self.on_change(move)
        return ErrorCode.NONE

    def resume(self) -> None:
        """After a start: what was on its way when the broker stopped is moved from the beginning."""
        for directory in self._table.directories:
            for topic, index in directory.interrupted_moves:
                partition = self._table.replica(topic, index)
                if partition is not None:
                    self.begin(partition, directory)
            directory.interrupted_moves.clear()

    def cancel(self, key: TopicPartition) -> None:
        """The copy is dropped by whoever feeds it (`drop`), since a thread may be writing to it."""
        move = self._moves.pop(key, None)
        if move is not None:
            move.is_over = True
            self._table.count_replica(move.target, -1)
            self.on_change(move)

    def drop(self, move: Move) -> None:
        """The copy of a move that was cancelled, or has failed."""
        if move.has_arrived:
            return
        if self._moves.get(move.key) is move:
            self.cancel(move.key)
        try:
            move.future.close()
            move.target.discard_future(*move.key, move.future.path, self._random_name())
        except StorageFailure as failure:
            logger.error("%s is left behind until the next start: %s", move.future.path, failure)

    def close(self) -> None:
        """The broker stops: what is under way is moved from the beginning at the next start."""
        for move in self:
            move.future.close()

    # The end

    def try_swap(self, move: Move, now_ms: int, *, is_last_try: bool) -> bool:
        """Copies what little is left and puts the copy in the log's place. False: not yet, too much has come.

        What the log has on the disk the copy has to have there as well; the last try waits for that here.
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
        moved = move.target.adopt_future(
            *move.key,
            future.path,
            log.config,
            log_start_offset=log.log_start_offset,
            recovery_point=recovery_point,
            high_watermark=log.high_watermark,
        )
        move.is_over = move.has_arrived = True
        del self._moves[move.key]
        self._table.on_moved(move, moved)
        try:
            move.source.delete_log(*move.key, self._random_name())
            move.source.sync()
        except StorageFailure as failure:
            logger.error("%s-%d has moved, but is also still in %s: %s", *move.key, move.source.path, failure)
        logger.info("%s-%d has moved from %s to %s", *move.key, move.source.path, move.target.path)
        return True

    def _copy_tail(self, move: Move) -> bool:
        log, future = move.partition.log, move.future
        room = _TAIL_BYTES
        while room > 0:
            piece = move.next_slice(room)
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
            room -= len(piece)
            move.note_copied()
        return False
