"""Compares a log with a list as its model, over random operations and crashes."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.log.log_config import LogConfig
from kbroker.log.open_log import OpenLog
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import iter_headers
from kbroker.testing.faulty_filesystem import FaultyFileSystem
from tests.log.batches import (
    NOW,
    append_as_leader,
    append_run,
    make_batch,
    open_log,
    read_bytes,
    read_headers,
    remove_deleted,
)

PATH = "/t-0"


class Batch:
    """Appended batch in the model."""

    def __init__(self, base: int, count: int, timestamp: int, epoch: int, producer: tuple[int, int] | None) -> None:
        self.base = base
        self.last = base + count - 1
        self.timestamp = timestamp
        self.epoch = epoch
        self.producer = producer  # id and first sequence


class LogMachine(RuleBasedStateMachine):
    log: OpenLog

    def __init__(self) -> None:
        super().__init__()
        self.filesystem = FaultyFileSystem()
        self.batches: list[Batch] = []
        self.end = 0
        self.start = 0
        self.high_watermark = 0
        self.epoch = 0
        self.now = NOW

    @initialize(segment_bytes=st.integers(150, 1500), interval=st.integers(0, 400))
    def begin(self, segment_bytes: int, interval: int) -> None:
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            segment_index_bytes=200,
            retention_bytes=2000,
            retention_ms=-1,
            file_delete_delay_ms=0,
        )
        self.log = open_log(self.filesystem, PATH, self.config)

    # Operations of a broker

    @rule(
        counts=st.lists(st.integers(1, 3), min_size=1, max_size=5),
        age=st.integers(-50, 50),
        producer=st.none() | st.integers(0, 2),
    )
    def append(self, counts: list[int], age: int, producer: int | None) -> None:
        self.now += 10
        sequences = []
        next_sequence = 0 if producer is None else self.next_sequence(producer)
        for count in counts:
            sequences.append(next_sequence)
            next_sequence += count
        run = [
            make_batch(
                *[b"x" * 10] * count,
                timestamp=self.now + age,
                producer_id=-1 if producer is None else producer,
                sequence=sequence,
            )
            for count, sequence in zip(counts, sequences, strict=True)
        ]
        results = append_run(self.log, run, self.epoch, self.now)
        for count, sequence, result in zip(counts, sequences, results, strict=True):
            assert result.error == ErrorCode.NONE
            assert result.base_offset == self.end
            name = None if producer is None else (producer, sequence)
            self.batches.append(Batch(self.end, count, self.now + age, self.epoch, name))
            self.end += count

    @precondition(lambda self: any(batch.producer for batch in self.batches if batch.last >= self.start))
    @rule()
    def retry_the_newest_of_a_producer(self) -> None:
        newest = next(batch for batch in reversed(self.batches) if batch.producer)
        assert newest.producer is not None
        producer, sequence = newest.producer
        count = newest.last - newest.base + 1
        batch = make_batch(*[b"x" * 10] * count, producer_id=producer, sequence=sequence)
        result = append_as_leader(self.log, batch, self.epoch, self.now)
        assert result.is_duplicate
        assert (result.base_offset, result.last_offset) == (newest.base, newest.last)

    @rule(amount=st.integers(0, 10))
    def advance_high_watermark(self, amount: int) -> None:
        boundaries = [batch.last + 1 for batch in self.batches if batch.last >= self.high_watermark]
        if boundaries:
            self.high_watermark = boundaries[min(amount, len(boundaries) - 1)]
            self.log.advance_high_watermark(self.high_watermark)

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now)

    @rule()
    def flush(self) -> None:
        self.log.flush(self.now)
        assert self.log.recovery_point == self.end

    @rule(back=st.integers(0, 30))
    def truncate(self, back: int) -> None:
        target = max(self.end - back, self.start)
        self.log.truncate_to(target)
        self.filesystem.sync_all()  # otherwise a power loss restores truncated batches, which the model does not know
        self.drop_from(next((batch.base for batch in self.batches if batch.last >= target), target))

    @rule(ahead=st.integers(0, 10))
    def delete_records(self, ahead: int) -> None:
        target = min(self.start + ahead, self.high_watermark)
        if target >= self.start:
            assert self.log.delete_records_before(target) == target
            self.start = target

    @rule()
    def retention(self) -> None:
        self.log.apply_retention(self.now)
        remove_deleted(self.log, self.filesystem, self.now)
        self.start = max(self.start, self.log.segment_base_offsets[0])
        assert self.start <= self.high_watermark

    # Starts and crashes

    @rule()
    def restart(self) -> None:
        self.log.flush(self.now)
        self.log.close()
        assert self.filesystem.open_files == 0
        self.reopen(is_clean=True)

    @rule()
    def kill(self) -> None:
        """Ends the process but not the machine: no written byte is lost."""
        self.filesystem.kill()
        self.reopen(is_clean=False)
        assert not self.log.was_shortened

    @rule(keep=st.floats(0, 1), garbage=st.binary(max_size=80))
    def lose_power(self, keep: float, garbage: bytes) -> None:
        """Keeps some unsynced bytes of the active segment and adds garbage; other files lose unsynced bytes."""
        active = f"{PATH}/{self.log.segment_base_offsets[-1]:020d}.log"
        written = self.filesystem.read(active)
        recovery_point = self.log.recovery_point
        self.filesystem.crash()
        synced = self.filesystem.size(active)
        survived = written[: synced + int((len(written) - synced) * keep)] if written[:synced] else b""
        self.filesystem.replace(active, survived + garbage if survived else garbage)
        before = self.end
        self.reopen(is_clean=False, recovery_point=recovery_point)
        assert recovery_point <= self.log.log_end_offset <= before
        self.drop_from(self.log.log_end_offset)

    def reopen(self, *, is_clean: bool, recovery_point: int | None = None) -> None:
        self.log = open_log(
            self.filesystem,
            PATH,
            self.config,
            is_clean=is_clean,
            recovery_point=self.log.recovery_point if recovery_point is None else recovery_point,
            high_watermark=self.high_watermark,
            log_start_offset=self.start,
        )

    # The model

    def next_sequence(self, producer: int) -> int:
        for batch in reversed(self.batches):
            if batch.producer and batch.producer[0] == producer:
                return batch.producer[1] + batch.last - batch.base + 1
        return 0

    def drop_from(self, end: int) -> None:
        self.batches = [batch for batch in self.batches if batch.last < end]
        self.end = end
        self.start = min(self.start, end)
        self.high_watermark = min(self.high_watermark, end)

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (
            self.start,
            self.high_watermark,
            self.end,
        )
        visible = [batch for batch in self.batches if batch.last >= self.start]
        found = [
            (header.base_offset, header.last_offset, header.leader_epoch) for header in read_headers(log, self.start)
        ]
        assert found == [(batch.base, batch.last, batch.epoch) for batch in visible]
        committed = [batch.base for batch in visible if batch.last < self.high_watermark]
        assert [header.base_offset for header in read_headers(log, self.start, up_to=self.high_watermark)] == committed
        for batch in visible[:: max(len(visible) // 5, 1)]:
            _position, header = next(iter_headers(read_bytes(log, max(batch.last, self.start), 1)))
            assert header.base_offset == batch.base
            first = next(other for other in visible if other.timestamp >= batch.timestamp)
            by_time = log.offset_for_timestamp(batch.timestamp)
            assert by_time is not None
            assert by_time.offset == max(first.base, self.start)
            assert log.leader_epochs.epoch_at(batch.last) == batch.epoch

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()
            assert self.filesystem.list_names(PATH)


LogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLogMachine = LogMachine.TestCase
