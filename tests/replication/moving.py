"""Partitions in two data directories of an in-memory file system that can crash at any step."""

from __future__ import annotations

import itertools

import trio

from kbroker.config.broker import BrokerConfig
from kbroker.controller.changes import PartitionsChanged, TopicAdded, TopicRemoved
from kbroker.controller.image import Image, PartitionState, TopicImage
from kbroker.log.directory import DataDirectory
from kbroker.log.files.file_cache import FileCache
from kbroker.log.future_log import FutureLog
from kbroker.protocol.error_codes import ErrorCode
from kbroker.replication.assigned_replicas import AssignedReplicas
from kbroker.replication.flusher import Flusher
from kbroker.replication.log_dir_mover import LogDirMover
from kbroker.replication.log_dirs import LogDirs
from kbroker.replication.partition import Partition
from kbroker.replication.replica_moves import Move
from kbroker.testing.faulty_filesystem import FaultyFileSystem
from tests.log.batches import NOW, make_batch, read_values

PATHS = ("/one", "/two")

_numbers = itertools.count()


class HandClock:
    def now_ms(self) -> int:
        return NOW

    def monotonic(self) -> float:
        return trio.current_time()


def topic_of(name: str, partitions: int = 1, *, number: int = 7, configs: dict[str, str] | None = None) -> TopicImage:
    state = PartitionState(1, 0, (1,), (1,), 0)
    return TopicImage(name, bytes([number]) * 16, (state,) * partitions, configs or {})


def _random_name() -> str:
    return f"{next(_numbers):032x}"


class Broker:
    def __init__(self, filesystem: FaultyFileSystem, *topics: TopicImage, paths: tuple[str, ...] = PATHS) -> None:
        files = FileCache(filesystem)
        self.filesystem = filesystem
        self.directories = [DataDirectory.open(files, path, broker_id=1) for path in paths]
        self.config = BrokerConfig.from_properties({})
        self.flusher = Flusher(HandClock())
        self.replicas = AssignedReplicas(
            LogDirs(self.directories, clock=HandClock(), random_name=_random_name),
            broker_id=1,
            config=self.config,
            flusher=self.flusher,
            clock=HandClock(),
            random_name=_random_name,
        )
        self.table, self.log_dirs, self.moves = self.replicas.table, self.replicas.log_dirs, self.replicas.moves
        self.mover = LogDirMover(self.replicas, self.config, HandClock())
        self.add(*topics)

    def add(self, *topics: TopicImage) -> None:
        image = Image(topics={topic.name: topic for topic in topics})
        self.replicas.on_image(image, [TopicAdded(topic) for topic in topics])

    def change(self, topic: TopicImage) -> None:
        changes = PartitionsChanged(topic.name, dict(enumerate(topic.partitions)))
        self.replicas.on_image(Image(topics={topic.name: topic}), [changes])

    def remove(self, topic: TopicImage) -> None:
        self.replicas.on_image(Image(), [TopicRemoved(topic)])

    def partition(self, topic: str = "orders", index: int = 0) -> Partition:
        partition = self.table.get(topic, index)
        assert partition is not None
        return partition

    def directory(self, topic: str = "orders", index: int = 0) -> str:
        return self.log_dirs.directory_of(self.partition(topic, index)).path

    def other(self, topic: str = "orders", index: int = 0) -> DataDirectory:
        (other,) = [directory for directory in self.directories if directory.path != self.directory(topic, index)]
        return other

    def write(self, *values: bytes, topic: str = "orders") -> None:
        for value in values:
            result = self.partition(topic).append_internal(make_batch(value), NOW)
            assert result.error == ErrorCode.NONE

    def values(self, topic: str = "orders") -> list[bytes]:
        return [value for _, value in read_values(self.partition(topic).log)]

    def begin(self, topic: str = "orders") -> Move:
        assert self.moves.begin(self.partition(topic), self.other(topic)) == ErrorCode.NONE
        move = self.moves.get(topic, 0)
        assert move is not None
        return move

    def copy(self, move: Move, pieces: int = 1000, size: int = 300) -> None:
        for _ in range(pieces):
            piece = move.next_slice(size)
            if piece is None:
                return
            assert not isinstance(piece, ErrorCode)
            move.future.append(piece.read())
            piece.release()
            move.note_copied()

    def swap(self, move: Move, *, is_last_try: bool = True) -> bool:
        move.future.flush(NOW)
        return self.moves.try_swap(move, NOW, is_last_try=is_last_try)

    def move(self, topic: str = "orders") -> None:
        move = self.begin(topic)
        self.copy(move)
        assert self.swap(move)

    def names(self) -> dict[str, list[str]]:
        return {
            directory.path: sorted(
                name.split(".")[0] + name[-7:] if "." in name else name
                for name in self.filesystem.list_directories(directory.path)
            )
            for directory in self.directories
        }


def closed(future: FutureLog) -> bool:
    return future.end_offset is None
