"""A partition that this broker has a replica of: its log, how far it is committed, and who waits for that.

    become_leader <-> become_follower, as the image says; leave: it is deleted, or no replica is to be here

As leader: appends are staged while a run of frames is handled and written at its end, one write for each partition:
nothing is visible, and nobody is answered, before. Committed is what every in-sync replica has (`Leadership`; where
there is no other replica, the leader alone), and, with flush.messages=1, on its disk. As follower it takes what its
leader sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from kbroker.config import TopicConfig
from kbroker.controller.image import NO_LEADER
from kbroker.controller.image import Partition as PartitionState
from kbroker.errors import StorageFailure
from kbroker.log.file_slice import FileSlice
from kbroker.log.flush_job import FlushJob
from kbroker.log.leader_epochs import EpochEntry
from kbroker.log.partition_log import AppendResult, PartitionLog
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import MAGIC_POSITION, ReadBuffer
from kbroker.replication.flusher import Flusher
from kbroker.replication.follower_view import Restart, truncation_offset
from kbroker.replication.leadership import Leadership
from kbroker.replication.peers import Peers
from kbroker.replication.storage_gate import StorageGate

__all__ = ["FetchWaiter", "Partition"]

_BATCHES_SINCE = 3
_ZSTD_SINCE = 7
_ZSTD = 4
_CODEC_POSITION = 22  # the lower byte of a batch's attributes
_ALL_REPLICAS = -1

_STORAGE_ERROR = AppendResult(ErrorCode.KAFKA_STORAGE_ERROR)


class FetchWaiter(Protocol):
    def on_visible(self, size: int) -> None:
        """So many bytes more can be read."""
        ...

    def finish(self) -> None:
        """The partition has changed hands or is gone: answer now."""
        ...


class Partition:
    __slots__ = (
        "_dirty",
        "_flusher",
        "_flushing_bytes",
        "_flushing_log",
        "_gate",
        "_is_durable",
        "_is_staged",
        "_min_insync_replicas",
        "_parked",
        "_visible_bytes",
        "commits_at_once",
        "config",
        "fetch_waiters",
        "fetched_bytes",
        "index",
        "insync_replicas",
        "is_gone",
        "is_leader",
        "leader_epoch",
        "leader_id",
        "leadership",
        "log",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: bytes,
        log: PartitionLog,
        config: TopicConfig,
        *,
        gate: StorageGate,
        flusher: Flusher,
        dirty: set[Partition],
    ) -> None:
        """It follows nobody until it is told its role."""
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self.is_leader = False
        self.leader_id = NO_LEADER
        self.leader_epoch = -1
        self.insync_replicas = 0
        self.leadership: Leadership | None = None  # while it is led here and has other replicas
        self.fetch_waiters: set[FetchWaiter] = set()
        self.fetched_bytes = 0  # that have been read for clients since the partition was opened
        self._gate = gate
        self._flusher = flusher
        self._dirty = dirty
        self._parked: deque[tuple[int, Callable[[int], None]]] = deque()
        self._is_staged = False
        self.is_gone = False
        self._flushing_bytes = 0
        self._flushing_log = log
        self._visible_bytes = 0
        self.update_config(config)

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index}>"

    def update_config(self, config: TopicConfig) -> None:
        self.config = config
        self._is_durable = config.flush_messages == 1
        self._settle()
        self.update_high_watermark()

    def _settle(self) -> None:
        """What follows from config and role, for the hot path."""
        leadership = self.leadership
        is_alone = self.is_leader and leadership is None
        self.commits_at_once = is_alone and not (self._is_durable or self.is_gone)  # by writing alone
        self._min_insync_replicas = self.config.min_insync_replicas
        if leadership is not None:
            self._min_insync_replicas = min(self._min_insync_replicas, leadership.view.replica_count)

    @property
    def is_durable(self) -> bool:
        """Whether what is written counts only when it is on the disk."""
        return self._is_durable

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset

    def check_leader_epoch(self, epoch: int) -> ErrorCode:
        """What a client believes; -1 for one that does not say."""
        if epoch < 0 or epoch == self.leader_epoch:
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    def end_offset_for_epoch(self, epoch: int) -> EpochEntry:
        if epoch == self.leader_epoch:
            return EpochEntry(epoch, self.log.log_end_offset)
        return self.log.end_offset_for_epoch(epoch)

    # Roles

    def become_leader(self, state: PartitionState, peers: Peers) -> None:
        """Or stays it, with another in-sync set. StorageFailure: its log cannot be read, or the epoch not written."""
        if self.is_gone or state.leader_epoch < self.leader_epoch:
            return
        was_leader, was_replicated = self.is_leader, self.leadership is not None
        has_begun = not was_leader or state.leader_epoch > self.leader_epoch
        if has_begun and (was_replicated or not was_leader):
            self._end_role()
        if len(state.replicas) == 1:
            self.leadership = None
        elif has_begun or self.leadership is None:
            # Written before anybody fetches: by it followers find where their history and this one part.
            self.log.assign_leader_epoch(state.leader_epoch)
            self.leadership = Leadership(self, state, peers)
        else:
            self.leadership.on_state(state)
        self.is_leader = True
        self.leader_id = peers.broker_id
        self.leader_epoch = state.leader_epoch
        self.insync_replicas = len(state.isr if self.leadership is None else self.leadership.view.isr)
        self._settle()
        if self.leadership is not None:
            peers.replicated[self] = None
            if has_begun or not was_replicated:
                peers.on_replicated()
            self.update_high_watermark()
            return
        peers.replicated.pop(self, None)
        if was_replicated:
            self._advance(self.log.log_end_offset, self.log.appended_bytes)
        elif not was_leader:
            self.log.commit_all()

    def become_follower(self, state: PartitionState, peers: Peers) -> None:
        """Of `state.leader`, or of nobody while there is none."""
        if self.is_gone or state.leader_epoch < self.leader_epoch:
            return
        if self.is_leader:
            assert not self._is_staged, f"{self!r} changes hands with batches staged"
            self._end_role()
            peers.replicated.pop(self, None)
        self.is_leader = False
        self.leadership = None
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch
        self.insync_replicas = len(state.isr)
        self._settle()

    def _end_role(self) -> None:
        """Whoever waits is answered: with what there is, or that somebody else leads now."""
        self._refuse_parked(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        waiters = self.waiters()
        leadership, self.leadership = self.leadership, None
        self.is_leader = False
        self._visible_bytes = self.log.appended_bytes
        if leadership is not None:
            for done in leadership.log_start_waiters:
                done()
        for waiter in waiters:
            waiter.finish()

    def waiters(self) -> list[FetchWaiter]:
        """Fetches that wait here, of consumers and of followers."""
        return [*self.fetch_waiters, *(self.leadership.replica_waiters if self.leadership is not None else ())]

    def update_high_watermark(self) -> None:
        """After anything that it depends on where there are other replicas."""
        leadership = self.leadership
        if leadership is None:
            return
        log = self.log
        own_end = min(log.recovery_point, log.log_end_offset) if self._is_durable else log.log_end_offset
        offset = leadership.high_watermark(own_end, self._min_insync_replicas)
        if offset is not None and offset > log.high_watermark:
            visible_bytes = leadership.bytes_below(offset)
            # Within a write nobody has counted; but something is there, for whoever waits for anything at all.
            self._advance(offset, self._visible_bytes + 1 if visible_bytes is None else visible_bytes)

    # Appending

    def stage(self, records: memoryview | None, version: int, acks: int, now_ms: int) -> AppendResult:
        """What a Produce request of that version holds for this partition. Hot path."""
        if self._gate.is_closed:
            return _STORAGE_ERROR
        if acks == _ALL_REPLICAS and self.insync_replicas < self._min_insync_replicas:
            return AppendResult(ErrorCode.NOT_ENOUGH_REPLICAS)
        try:
            if version >= _ZSTD_SINCE and records is not None:
                result = self.log.stage(records, self.leader_epoch, now_ms)
            else:
                result = self._stage_old(records, version, now_ms)
        except StorageFailure as failure:
            self._gate.close(failure)
            return _STORAGE_ERROR
        if not result.error:
            self._is_staged = True
        return result

    def _stage_old(self, records: memoryview | None, version: int, now_ms: int) -> AppendResult:
        if not records:
            return AppendResult(ErrorCode.INVALID_RECORD, error_message="no record batch at all")
        is_batch = len(records) > _CODEC_POSITION and records[MAGIC_POSITION] == 2
        if version < _BATCHES_SINCE and not is_batch:
            return self.log.stage_message_set(records, self.leader_epoch, now_ms)
        if is_batch and records[_CODEC_POSITION] & 7 == _ZSTD and version < _ZSTD_SINCE:
            return AppendResult(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, error_message="zstd needs Produce v7")
        return self.log.stage(records, self.leader_epoch, now_ms)

    def commit(self) -> None:
        """Write what was staged and show it. If the disk refuses, none of it is in the log (`holds` tells)."""
        if not self._is_staged:
            return
        self._is_staged = False
        log = self.log
        try:
            log.commit()
        except StorageFailure as failure:
            self._gate.close(failure)
            return
        self._gate.on_written()
        self._dirty.add(self)
        if self.commits_at_once:
            self._advance(log.log_end_offset, log.appended_bytes)
        else:
            self._on_written(log)

    def _on_written(self, log: PartitionLog) -> None:
        """Written, and committed only when the disk or the other replicas have it too."""
        if self._is_durable:
            self._flusher.request(self)
        leadership = self.leadership
        if leadership is not None:
            leadership.on_written(log.log_end_offset, log.appended_bytes)
            self.update_high_watermark()
        elif not self._is_durable:
            self._advance(log.log_end_offset, log.appended_bytes)

    def append_internal(self, batch: bytearray, now_ms: int) -> AppendResult:
        """A batch of the broker's own (offsets of groups, states of transactions), written at once."""
        if not self.is_leader:
            return AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._gate.is_closed:
            return _STORAGE_ERROR
        if self.insync_replicas < self._min_insync_replicas:
            return AppendResult(ErrorCode.NOT_ENOUGH_REPLICAS)
        try:
            result = self.log.stage(batch, self.leader_epoch, now_ms, is_internal=True)
        except StorageFailure as failure:
            self._gate.close(failure)
            return _STORAGE_ERROR
        if result.error:
            return result
        self._is_staged = True
        self.commit()
        return result if self.holds(result.last_offset) else _STORAGE_ERROR

    def is_committed(self, last_offset: int) -> bool:
        return self.log.high_watermark > last_offset

    def holds(self, last_offset: int) -> bool:
        """Whether a batch that was staged up to that offset has been written."""
        return self.log.log_end_offset > last_offset

    def wait_committed(self, last_offset: int, done: Callable[[int], None]) -> None:
        """Calls `done` with an error code, 0 when the high watermark has passed the offset."""
        if self.is_gone or not self.is_leader:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self._parked.append((last_offset, done))

    def wait_flushed(self, last_offset: int, done: Callable[[int], None]) -> None:
        """As `wait_committed`, for acks=1 where every write goes to the disk: other replicas are not waited for."""
        leadership = self.leadership
        if leadership is None:
            self.wait_committed(last_offset, done)
        elif self.log.recovery_point > last_offset:
            done(ErrorCode.NONE)
        else:
            leadership.flush_waiters.append((last_offset, done))

    def _advance(self, offset: int, visible_bytes: int) -> None:
        if not self.log.advance_high_watermark(offset):
            return
        size, self._visible_bytes = visible_bytes - self._visible_bytes, visible_bytes
        parked = self._parked
        while parked and parked[0][0] < offset:
            parked.popleft()[1](ErrorCode.NONE)
        if self.fetch_waiters:
            for waiter in list(self.fetch_waiters):
                waiter.on_visible(size)

    # Reading

    def read(self, offset: int, max_bytes: int, bound: int, *, is_first: bool) -> FileSlice | ErrorCode | None:
        return self.log.read(offset, max_bytes, up_to=bound, min_one_batch=is_first)

    # Flushing, for the flusher

    def begin_flush(self) -> FlushJob | None:
        if self.is_gone:
            return None
        log = self.log
        self._flushing_bytes = log.appended_bytes
        self._flushing_log = log
        try:
            job = log.begin_flush()
        except StorageFailure as failure:
            self._on_flush_failed(failure)
            return None
        if job is None and self._is_durable and log.recovery_point >= log.log_end_offset:
            self._on_flushed()  # it was fsynced on its way from another directory
        return job

    def end_flush(self, job: FlushJob, failure: StorageFailure | None, now_ms: int) -> None:
        self._flushing_log.complete_flush(job, now_ms)
        if self._flushing_log is not self.log:
            if self._is_durable:
                self._flusher.request(self)  # it has moved meanwhile, and what it holds now has to be on the disk
        elif failure is not None:
            self._on_flush_failed(failure)
        elif self._is_durable and not self.is_gone:
            self._on_flushed()

    def _on_flushed(self) -> None:
        if self.leadership is not None:
            self.leadership.on_flushed(self.log.recovery_point)
            self.update_high_watermark()
        elif self.is_leader:
            self._advance(self.log.recovery_point, self._flushing_bytes)

    def _on_flush_failed(self, failure: StorageFailure) -> None:
        self._gate.close(failure)
        self._refuse_parked(ErrorCode.KAFKA_STORAGE_ERROR)

    def on_recovered(self) -> None:
        if self.is_leader and self.leadership is None:
            self.log.commit_all()

    def replace_log(self, log: PartitionLog, gate: StorageGate) -> None:
        """The same records in another data directory. Nothing may be staged."""
        assert not self._is_staged, f"{self!r} moves with batches staged"
        log.appended_bytes = self.log.appended_bytes
        log.cleaner_offset = self.log.cleaner_offset
        self.log = log
        self._gate = gate
        self._dirty.add(self)
        if self._is_durable:
            self._flusher.request(self)

    # Following

    def append_fetched(self, records: ReadBuffer, high_watermark: int, log_start_offset: int) -> None:
        """What the leader sent for the end of this log, and what it says of its own.

        InvalidBatch: nothing was appended. StorageFailure: neither, and the directory takes no more for now.
        """
        log = self.log
        try:
            if records:
                log.append_as_follower(records)
                self._gate.on_written()
                self._dirty.add(self)
                if self._is_durable:
                    self._flusher.request(self)
            log.advance_high_watermark(min(high_watermark, log.log_end_offset))
            log.raise_log_start_offset(log_start_offset)
        except StorageFailure as failure:
            self._gate.close(failure)
            raise

    def cut_diverged(self, diverging: EpochEntry) -> int:
        """To where its history and the leader's part, or nearer there; the offset that it was cut to."""
        offset = truncation_offset(self.log, diverging)
        self._cut(Restart(truncate_to=offset))
        return offset

    def restart(self, restart: Restart) -> None:
        self._cut(restart)

    def _cut(self, restart: Restart) -> None:
        assert not self.is_leader, f"{self!r} leads and is not cut"
        try:
            if restart.start_at is not None:
                self.log.truncate_fully_and_start_at(restart.start_at)
            elif restart.truncate_to is not None and not self.log.truncate_to(restart.truncate_to):
                # A leader that never wrote anything has noted its epoch at the end, and nobody else knows of it.
                self.log.leader_epochs.truncate_from_end(self.log.log_end_offset)
        except StorageFailure as failure:
            self._gate.close(failure)
            raise

    @property
    def is_writable(self) -> bool:
        return not self._gate.is_closed

    # Ending

    def leave(self) -> None:
        """Deleted, or no replica of it is to be here: whoever waits is answered."""
        self.is_gone = True
        self.commits_at_once = False
        self._dirty.discard(self)
        self._end_role()

    def _refuse_parked(self, code: ErrorCode) -> None:
        parked, self._parked = self._parked, deque()
        if self.leadership is not None:
            parked += self.leadership.flush_waiters
            self.leadership.flush_waiters.clear()
        for _, done in parked:
            done(code)
