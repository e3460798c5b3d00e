"""A partition that this broker has a replica of: its log, its role, its high watermark, and requests that wait.

    become_leader <-> become_follower, as the image says -> leave: the replica is deleted, or its directory is offline

Leader: batches are staged while a run of frames is handled, and written at its end with one write for each partition.
Before the write no record is visible, and no producer gets a response. A record is committed when all replicas of the
maximal ISR have it (`LeaderState`; without other replicas, when the leader has it); with flush.messages=1, fsynced.
Follower: appends records that it fetched from the leader. Consumers may read them up to its own high watermark.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import itemgetter

from kbroker.config.key import MAX_INT
from kbroker.config.topic import TopicConfig
from kbroker.controller.image import NO_LEADER, PartitionState
from kbroker.errors import StorageFailure
from kbroker.log.append_result import AppendResult
from kbroker.log.append_rules import CheckedBatch
from kbroker.log.files.file_slice import FileSlice
from kbroker.log.files.flush_job import FlushJob
from kbroker.log.leader_epochs import UNDEFINED_EPOCH, EpochEntry
from kbroker.log.open_log import OpenLog
from kbroker.log.partition_log import PartitionLog
from kbroker.log.producers.refused_batches import RefusedBatches
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import ReadBuffer
from kbroker.replication.fetch_waiters import FetchWaiter, FetchWaiters, FetchWakeups
from kbroker.replication.flusher import Flusher
from kbroker.replication.follower_view import Restart, truncation_offset
from kbroker.replication.leader_state import LeaderState
from kbroker.replication.leader_writes import LeaderWrites
from kbroker.replication.peers import Peers
from kbroker.replication.produced_records import ZSTD_SINCE, is_early_zstd, is_message_set, no_batch, no_zstd
from kbroker.replication.storage_gate import StorageGate

__all__ = ["Partition"]

_ALL_REPLICAS = -1
_NOT_ENOUGH_REPLICAS = AppendResult(ErrorCode.NOT_ENOUGH_REPLICAS)


def _size_between(log: OpenLog, start_offset: int, end_offset: int) -> int:
    """Returns the bytes of the batches in [start, end), at most to the end of a segment, and at least 1."""
    try:
        slice_ = log.read(start_offset, MAX_INT, up_to=end_offset)
    except StorageFailure:
        return 1  # the delayed fetches read too, and answer with the error
    if not isinstance(slice_, FileSlice):
        return 1
    slice_.release()
    return slice_.size


class Partition:
    __slots__ = (
        "_dirty",
        "_flusher",
        "_flushing_bytes",
        "_flushing_log",
        "_is_durable",
        "_is_staged",
        "_parked",
        "_visible_bytes",
        "adding_replicas",
        "commits_at_once",
        "config",
        "fetch_waiters",
        "fetched_bytes",
        "gate",
        "index",
        "insync_replicas",
        "is_gone",
        "is_leader",
        "leader_epoch",
        "leader_id",
        "leader_writes",
        "leadership",
        "log_handle",
        "min_insync_replicas",
        "opened_log",
        "reassignment_bytes_in",
        "reassignment_bytes_out",
        "refused",
        "rejected_bytes",
        "replicated_bytes",
        "topic",
        "topic_id",
    )

    def __init__(
        self,
        topic: str,
        index: int,
        topic_id: bytes,
        log_handle: PartitionLog,
        config: TopicConfig,
        *,
        gate: StorageGate,
        flusher: Flusher,
        dirty: set[Partition],
        refused: RefusedBatches | None = None,
        wakeups: FetchWakeups | None = None,
    ) -> None:
        """Creates a partition without a role: it neither leads nor follows."""
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.log_handle = log_handle
        self.opened_log: OpenLog | None = None  # `log` once it has been used: the hot path saves a property
        self.is_leader = False
        self.leader_id = NO_LEADER
        self.leader_epoch = -1
        self.insync_replicas = 0
        self.leadership: LeaderState | None = None  # only while leader, and with other replicas
        self.fetch_waiters = FetchWaiters(wakeups)
        self.fetched_bytes = 0  # read for clients since the partition was opened
        self.replicated_bytes = 0  # read for followers
        self.adding_replicas: tuple[int, ...] = ()  # brokers that a reassignment adds
        self.reassignment_bytes_in = 0  # fetched while a reassignment adds this replica
        self.reassignment_bytes_out = 0  # part of replicated_bytes that was read for them
        self.rejected_bytes = 0  # of clients, larger than max.message.bytes
        self.leader_writes = LeaderWrites()
        self.gate = gate
        self._flusher = flusher
        self._dirty = dirty
        self.refused = RefusedBatches() if refused is None else refused
        self._parked: deque[tuple[int, Callable[[int], None]]] = deque()
        self._is_staged = False
        self.is_gone = False
        self._flushing_bytes = 0
        self._flushing_log: OpenLog | None = None
        self._visible_bytes = 0
        self.update_config(config)

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index}>"

    def update_config(self, config: TopicConfig) -> None:
        self.config = config
        self._is_durable = config.flush_messages == 1
        self._update_hot_state()
        self.update_high_watermark()

    def _update_hot_state(self) -> None:
        """Computes the attributes that the hot path reads, from config and role."""
        leadership = self.leadership
        is_alone = self.is_leader and leadership is None
        self.commits_at_once = is_alone and not (self._is_durable or self.is_gone)
        # Never more than there are replicas, as in Kafka since 3.7 (KAFKA-15583).
        replica_count = 1 if leadership is None else leadership.view.replica_count
        self.min_insync_replicas = min(self.config.min_insync_replicas, replica_count)

    @property
    def is_durable(self) -> bool:
        """Whether records count only when they are fsynced (flush.messages=1)."""
        return self._is_durable

    @property
    def log(self) -> OpenLog:
        """Returns the log, opened at the first use.

        Raises StorageFailure if its files cannot be read, RecoveryNeeded if it is damaged.
        """
        log = self.opened_log
        if log is None:
            log = self.opened_log = self.log_handle.open()
        return log

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset

    def check_leader_epoch(self, epoch: int) -> ErrorCode:
        """Compares a client's current leader epoch with this one; -1 if the client sent none."""
        if epoch < 0 or epoch == self.leader_epoch:
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    def end_offset_for_epoch(self, epoch: int) -> EpochEntry:
        """Returns the largest known epoch up to `epoch`, and its end offset, as in OffsetForLeaderEpoch.

        Without other replicas the log gets the current epoch with the first batch. Until then the epoch starts at the
        log end offset, and so it ends all earlier epochs: also those whose records a crash lost. A follower knows
        only the epochs in its log.
        """
        log = self.log
        if not self.is_leader:
            return log.end_offset_for_epoch(epoch)
        if epoch == self.leader_epoch:
            return EpochEntry(epoch, log.log_end_offset)
        latest = log.leader_epochs.latest
        if latest < epoch < self.leader_epoch:
            return EpochEntry(epoch if latest == UNDEFINED_EPOCH else latest, log.log_end_offset)
        return log.end_offset_for_epoch(epoch)

    # Roles

    def become_leader(self, state: PartitionState, peers: Peers) -> None:
        """Becomes leader, or applies a newer state as leader. Ignores states of older epochs.

        Raises StorageFailure if the log cannot be read or the leader epoch cannot be written.
        """
        if self.is_gone or state.leader_epoch < self.leader_epoch:
            return
        was_leader, leadership = self.is_leader, self.leadership
        has_begun = not was_leader or state.leader_epoch > self.leader_epoch
        if not was_leader:
            self._end_role()
        if len(state.replicas) == 1:
            self._end_replication()
        elif has_begun or leadership is None:
            self._assign_leader_epoch(state.leader_epoch)
            if leadership is None:
                self.leadership = LeaderState(self, state, peers)
            else:
                # The log stays, so producers, consumers and DeleteRecords requests that wait go on waiting.
                leadership.on_new_epoch(state)
        else:
            leadership.on_state(state)
        self.is_leader = True
        self.leader_writes.begin(self.log_handle)
        self.leader_id = peers.broker_id
        self.leader_epoch = state.leader_epoch
        self.adding_replicas = state.adding_replicas
        self.insync_replicas = len(state.isr if self.leadership is None else self.leadership.view.isr)
        self._update_hot_state()
        if self.leadership is not None:
            peers.replicated[self] = None
            if has_begun or leadership is None:
                peers.on_replicated()
            self.update_high_watermark()
            return
        peers.replicated.pop(self, None)
        if not was_leader:
            self.log_handle.commit_all()
        elif leadership is not None and self._is_durable:
            self._flusher.request(self)
        elif leadership is not None:
            self._advance(self.log.log_end_offset, self.log.appended_bytes)

    def _assign_leader_epoch(self, leader_epoch: int) -> None:
        """Writes the start of the epoch, before the first fetch: followers find the point of divergence by it.

        Raises StorageFailure if the log cannot be opened; then the partition leads no longer.
        """
        try:
            self.log.assign_leader_epoch(leader_epoch)
        except StorageFailure:
            if self.is_leader:
                self._end_role()
            raise

    def _end_replication(self) -> None:
        """Ends the work for followers, because the partition has none any more. Producers go on waiting for the log."""
        leadership, self.leadership = self.leadership, None
        if leadership is None:
            return
        self._parked = deque(sorted((*self._parked, *leadership.flush_waiters), key=itemgetter(0)))
        for done in leadership.log_start_waiters:
            done()
        leadership.finish_waiters()

    def become_follower(self, state: PartitionState, peers: Peers) -> None:
        """Becomes follower of `state.leader`, or of no broker if there is no leader. Ignores states of older epochs."""
        if self.is_gone or state.leader_epoch < self.leader_epoch:
            return
        has_new_epoch = state.leader_epoch > self.leader_epoch
        self.leader_id = state.leader
        self.leader_epoch = state.leader_epoch  # before delayed fetches are completed: they are fenced by it
        self.insync_replicas = len(state.isr)
        self.adding_replicas = state.adding_replicas
        if self.is_leader:
            assert not self._is_staged, f"{self!r} stops leading with batches staged"
            self._end_role()
            peers.replicated.pop(self, None)
        elif has_new_epoch:
            self.fetch_waiters.finish_all()
        self.is_leader = False
        self.leadership = None
        self._update_hot_state()

    def _end_role(self) -> None:
        """Ends the leader role: fails waiting producers with NOT_LEADER_OR_FOLLOWER, completes delayed fetches.

        The role is cleared before the waiters are called: they look at the partition again.
        """
        self._refuse_parked(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        leadership, self.leadership = self.leadership, None
        self.is_leader = False
        self.leader_writes.end(self.log_handle)
        self._visible_bytes = self.log_handle.appended_bytes
        if leadership is not None:
            for done in leadership.log_start_waiters:
                done()
            leadership.finish_waiters()
        self.fetch_waiters.finish_all()

    def waiters(self) -> list[FetchWaiter]:
        """Returns the delayed fetches of consumers and followers."""
        return [*self.fetch_waiters, *(self.leadership.waiters() if self.leadership is not None else ())]

    def update_high_watermark(self) -> None:
        """Advances the high watermark if the followers allow it. No-op without other replicas.

        Call it after every change of its inputs: a write, an fsync, a follower's fetch, the ISR, live brokers.
        """
        leadership = self.leadership
        if leadership is None:
            return
        log = self.log
        own_end = min(log.recovery_point, log.log_end_offset) if self._is_durable else log.log_end_offset
        offset = leadership.high_watermark(own_end, self.min_insync_replicas)
        if offset is not None and offset > log.high_watermark:
            visible_bytes = leadership.bytes_below(offset)
            # Bytes are counted by write. In the middle of a write, one byte completes fetches with min_bytes=1.
            self._advance(offset, self._visible_bytes + 1 if visible_bytes is None else visible_bytes)
            leadership.disturb()

    # Appending

    def stage(
        self,
        records: memoryview | None,
        version: int,
        acks: int,
        now_ms: int,
        checked: CheckedBatch | None = None,
    ) -> AppendResult:
        """Validates and stages the records of a Produce request of this version. Hot path.

        `checked` is the result of their `long_check`, if this method has returned CHECK_IN_THREAD before.
        """
        if self.gate.is_closed:
            return self.refuse(records, self.gate.refusal, now_ms)
        if acks == _ALL_REPLICAS and self.insync_replicas < self.min_insync_replicas:
            return self.refuse(records, _NOT_ENOUGH_REPLICAS, now_ms)
        try:
            if self.refused.entries:
                held_back = self.refused.check(self.topic_id, self.index, records, self.log.producers, now_ms)
                if held_back is not None:
                    return AppendResult(held_back)
            if checked is not None:
                result = self.log.stage_checked(checked, self.leader_epoch, now_ms)
            elif version >= ZSTD_SINCE and records is not None:
                log = self.opened_log
                if log is None:
                    log = self.log
                result = log.stage(records, self.leader_epoch, now_ms)
            else:
                result = self._stage_old(records, version, now_ms)
        except StorageFailure as failure:
            self.gate.close(failure)
            return self.refuse(records, self.gate.refusal, now_ms)
        if not result.error:
            self._is_staged = True
        elif result.error == ErrorCode.MESSAGE_TOO_LARGE and records is not None:
            self.rejected_bytes += len(records)
        return result

    def refuse(self, records: memoryview | None, result: AppendResult, now_ms: int) -> AppendResult:
        """Remembers that a batch is refused with a retriable error: later ones of its producer must wait for it."""
        self.refused.note(self.topic_id, self.index, records, result.error, now_ms)
        return result

    def _stage_old(self, records: memoryview | None, version: int, now_ms: int) -> AppendResult:
        if not records:
            return AppendResult(ErrorCode.INVALID_RECORD, error_message=no_batch(version))
        if is_message_set(records, version):
            return self.log.stage_message_set(records, self.leader_epoch, now_ms)
        if is_early_zstd(records, version):
            return AppendResult(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, error_message=no_zstd(version))
        return self.log.stage(records, self.leader_epoch, now_ms)

    def commit(self) -> None:
        """Writes the staged batches. If the write fails, none of them is in the log: check with `holds`."""
        if not self._is_staged:
            return
        self._is_staged = False
        log = self.opened_log
        assert log is not None
        try:
            log.commit()
        except StorageFailure as failure:
            self.gate.close(failure)
            return
        self._dirty.add(self)
        if self.commits_at_once:
            self._advance(log.log_end_offset, log.appended_bytes)
        else:
            self._on_written(log)

    def _on_written(self, log: OpenLog) -> None:
        """Continues a commit that has to wait for an fsync or for followers."""
        if self._is_durable:
            self._flusher.request(self)
        leadership = self.leadership
        if leadership is not None:
            leadership.on_written(log.log_end_offset, log.appended_bytes)
            self.update_high_watermark()
        elif not self._is_durable:
            self._advance(log.log_end_offset, log.appended_bytes)

    def append_internal(self, batch: bytearray, now_ms: int) -> AppendResult:
        """Appends a batch of the broker itself (group offsets, transaction states) and writes it at once."""
        if not self.is_leader:
            return AppendResult(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.gate.is_closed:
            return self.gate.refusal
        if self.insync_replicas < self.min_insync_replicas:
            return AppendResult(ErrorCode.NOT_ENOUGH_REPLICAS)
        try:
            result = self.log.stage(batch, self.leader_epoch, now_ms, is_internal=True)
        except StorageFailure as failure:
            self.gate.close(failure)
            return self.gate.refusal
        if result.error:
            return result
        self._is_staged = True
        self.commit()
        return result if self.holds(result.last_offset) else self.gate.refusal

    def is_committed(self, last_offset: int) -> bool:
        log = self.opened_log  # not `log`: a property costs more than the comparison. Hot path.
        return (self.log if log is None else log).high_watermark > last_offset

    def holds(self, last_offset: int) -> bool:
        """Whether a staged batch with this last offset was written."""
        return self.log.log_end_offset > last_offset

    def when_committed(self, last_offset: int, done: Callable[[int], None]) -> None:
        """Calls `done` with 0 when the high watermark has passed the offset, or with an error code."""
        if self.is_gone or not self.is_leader:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self._parked.append((last_offset, done))

    def when_flushed(self, last_offset: int, done: Callable[[int], None]) -> None:
        """Like `when_committed`, for acks=1 with flush.messages=1: waits for the fsync here, not for followers."""
        leadership = self.leadership
        if leadership is None:
            self.when_committed(last_offset, done)
        elif self.log.recovery_point > last_offset:
            done(ErrorCode.NONE)
        else:
            leadership.flush_waiters.append((last_offset, done))

    def _advance(self, offset: int, visible_bytes: int) -> None:
        log = self.opened_log
        if log is None:
            log = self.log
        if not log.advance_high_watermark(offset):
            return
        size, self._visible_bytes = visible_bytes - self._visible_bytes, visible_bytes
        parked = self._parked
        while parked and parked[0][0] < offset:
            parked.popleft()[1](ErrorCode.NONE)
        waiters = self.fetch_waiters
        if waiters.waiting or waiters.due:
            waiters.on_visible(size)

    # Reading

    def read(self, offset: int, max_bytes: int, bound: int, *, is_first: bool) -> FileSlice | ErrorCode | None:
        log = self.opened_log
        if log is None:
            log = self.log
        return log.read(offset, max_bytes, up_to=bound, min_one_batch=is_first)

    # Flushing, for the flusher

    def begin_flush(self) -> FlushJob | None:
        log = self.log_handle.opened
        if self.is_gone or log is None:
            return None
        self._flushing_bytes = log.appended_bytes
        self._flushing_log = log
        try:
            job = log.begin_flush()
        except StorageFailure as failure:
            self._on_flush_failed(failure)
            return None
        if job is None and self._is_durable and log.recovery_point >= log.log_end_offset:
            self._on_flushed()  # the move from another directory fsynced it
        return job

    def end_flush(self, job: FlushJob, failure: StorageFailure | None, now_ms: int) -> None:
        assert self._flushing_log is not None
        self._flushing_log.complete_flush(job, now_ms)
        if self._flushing_log is not self.log_handle.opened:
            if self._is_durable:
                self._flusher.request(self)  # moved during the fsync: the new log must be fsynced too
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
        self.gate.close(failure)
        self._refuse_parked(ErrorCode.KAFKA_STORAGE_ERROR)

    def on_recovered(self) -> None:
        if self.is_leader and self.leadership is None:
            self.log_handle.commit_all()

    def replace_log(self, log_handle: PartitionLog, gate: StorageGate) -> None:
        """Replaces the log by its copy in another data directory. No batches may be staged."""
        assert not self._is_staged, f"{self!r} moves with batches staged"
        log = log_handle.open()
        log.appended_bytes = self.log.appended_bytes
        log.cleaner_offset = self.log.cleaner_offset
        self.log_handle = log_handle
        self.opened_log = log
        self.gate = gate
        self._dirty.add(self)
        if self._is_durable:
            self._flusher.request(self)

    # Following

    def append_fetched(self, records: ReadBuffer, high_watermark: int, log_start_offset: int) -> None:
        """Appends fetched records, and applies the leader's high watermark and log start offset.

        The high watermark is limited to this log's end: the leader's may be ahead. Raises InvalidBatch if a batch is
        corrupt, and StorageFailure if the disk fails, after closing the directory's gate; then nothing was appended.
        """
        try:
            log = self.log
            before = log.high_watermark
            if records:
                log.append_as_follower(records)
                self._dirty.add(self)
                if self._is_durable:
                    self._flusher.request(self)
            log.advance_high_watermark(min(high_watermark, log.log_end_offset))
            log.raise_log_start_offset(log_start_offset)
        except StorageFailure as failure:
            self.gate.close(failure)
            raise
        waiters = self.fetch_waiters
        if (waiters.waiting or waiters.due) and log.high_watermark > before:
            waiters.on_visible(_size_between(log, before, log.high_watermark))

    def truncate_diverged(self, diverging: EpochEntry) -> int:
        """Truncates towards the point of divergence; may take several rounds. Returns the target offset."""
        offset = truncation_offset(self.log, diverging)
        self.restart(Restart(truncate_to=offset))
        return offset

    def restart(self, restart: Restart) -> None:
        """Truncates the log, or restarts it at another offset. Raises StorageFailure if the disk fails."""
        assert not self.is_leader, f"{self!r} leads and must not be truncated"
        try:
            if restart.start_at is not None:
                self.log.truncate_fully_and_start_at(restart.start_at)
            elif restart.truncate_to is not None and not self.log.truncate_to(restart.truncate_to):
                # Nothing to truncate. But as leader this broker may have started an epoch without writing in it.
                self.log.leader_epochs.truncate_from_end(self.log.log_end_offset)
        except StorageFailure as failure:
            self.gate.close(failure)
            raise

    # Ending

    def leave(self) -> None:
        """Ends the role for ever and completes all waiting requests: the replica is deleted or offline."""
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
