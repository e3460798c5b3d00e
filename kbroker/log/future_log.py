"""A copy of a partition's log in another data directory, growing until it can take the log's place.

Fed with what was read from the log, in order, as a follower is. Belongs to whoever feeds it, a thread or the loop, but
to one at a time: it has a cache of open files of its own.
"""

from __future__ import annotations

from kbroker.log.file_cache import FileCache
from kbroker.log.filesystem import FileSystem
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.log.producer_replay import ProducerSnapshots
from kbroker.log.recovery import LEADER_EPOCH_CHECKPOINT
from kbroker.protocol.record_batch import iter_headers

__all__ = ["FutureLog"]


class FutureLog:
    def __init__(self, filesystem: FileSystem, path: str, config: LogConfig) -> None:
        self.path = path
        self._filesystem = filesystem
        self._config = config
        self._log: PartitionLog | None = None

    @property
    def end_offset(self) -> int | None:
        """None while there is nothing in it."""
        return None if self._log is None else self._log.log_end_offset

    @property
    def recovery_point(self) -> int:
        return 0 if self._log is None else self._log.recovery_point

    @property
    def size_bytes(self) -> int:
        return 0 if self._log is None else self._log.size_bytes

    def begin(self, offset: int) -> None:
        """Whatever it holds goes; the next batch has this offset, or a later one."""
        if self._log is None:
            self._log = PartitionLog(FileCache(self._filesystem), self.path, self._config, log_start_offset=offset)
            self._log.load()
        else:
            self._log.truncate_fully_and_start_at(offset)
        self._log.recovery_point = offset

    def append(self, records: bytes) -> None:
        """Blocks. InvalidBatch: what was read is damaged."""
        if self._log is None:
            first = next(iter_headers(records), None)
            if first is None:
                return
            self.begin(first[1].base_offset)
        assert self._log is not None
        self._log.append_as_follower(records)

    def flush(self, now_ms: int) -> None:
        """Blocks."""
        if self._log is not None:
            self._log.flush(now_ms)

    def finish(self, source: PartitionLog, now_ms: int) -> None:
        """The last step before it is opened as the log: what is known beside the records, and no file open any more.

        The log may end further on than its last batch, where the cleaner took batches away.
        """
        assert self._log is not None
        end_offset = source.log_end_offset
        if self._log.log_end_offset < end_offset:
            self._log.roll(now_ms, base_offset=end_offset)
        self._log.close()
        # Producers and epochs whose batches retention has deleted are known to the source alone.
        snapshots = ProducerSnapshots(self._filesystem, self.path, [])
        snapshots.take(source.producers, end_offset)
        try:
            epochs = self._filesystem.read(f"{source.path}/{LEADER_EPOCH_CHECKPOINT}")
        except FileNotFoundError:
            return
        self._filesystem.replace(f"{self.path}/{LEADER_EPOCH_CHECKPOINT}", epochs)

    def close(self) -> None:
        """It is not wanted any more."""
        if self._log is not None:
            self._log.close_files()
            self._log = None
