"""A compacted log against a list: whatever is done to it in whatever order, and at whichever change of a file it dies.

After a round, the records up to its end are exactly the newest of each key, with their offsets. Records after it are
unchanged. Tombstones are removed only after their delete horizon, and never before the records that they delete.
"""

from __future__ import annotations

from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kbroker.log.cleaning.compaction import Limits
from kbroker.log.log_compaction import cleanable_of
from kbroker.log.log_config import LogConfig
from kbroker.log.open_log import OpenLog
from kbroker.protocol.compression import Codec
from kbroker.protocol.error_codes import ErrorCode
from tests.log.batches import NOW, append_as_leader, open_log, read_headers, remove_deleted
from tests.log.compacting import compact, keyed_batch, records_of
from tests.log.crashing import Crashed, CrashingFileSystem

PATH = "/t-0"
KEYS = [f"k{number}" for number in range(6)]


class Written(NamedTuple):
    key: str
    value: str | None


class CompactionMachine(RuleBasedStateMachine):
    log: OpenLog

    def __init__(self) -> None:
        super().__init__()
        self.filesystem = CrashingFileSystem()
        self.records: list[Written] = []  # by offset, all that were ever written
        self.now = NOW
        self.may_be_gone: set[int] = set()  # tombstones whose delete horizon has passed in a round
        self.horizons: dict[int, int] = {}  # the earliest at which a tombstone may go
        self.sequences: dict[int, int] = {}
        self.lost: set[int] = set()

    @initialize(
        segment_bytes=st.integers(300, 2000),
        interval=st.integers(0, 400),
        retention=st.integers(0, 60),
        room=st.integers(1, 40),
    )
    def begin(self, segment_bytes: int, interval: int, retention: int, room: int) -> None:
        self.config = LogConfig(
            segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            segment_index_bytes=400,
            cleanup_policy=frozenset({"compact"}),
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=retention,
            file_delete_delay_ms=0,
        )
        # Sometimes too small for all keys, never for those of a batch.
        self.limits = Limits(dedupe_buffer_size=24 * (room + len(KEYS)), load_factor=1.0, io_buffer_size=300)
        self.log = open_log(self.filesystem, PATH, self.config)

    @rule(
        pairs=st.lists(st.tuples(st.sampled_from(KEYS), st.booleans()), min_size=1, max_size=4),
        codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4]),
        producer=st.none() | st.integers(0, 1),
    )
    def append(self, pairs: list[tuple[str, bool]], codec: int, producer: int | None) -> None:
        self.now += 10
        written = [
            Written(key, f"{len(self.records) + number}-" + "x" * 20 if has_value else None)
            for number, (key, has_value) in enumerate(pairs)
        ]
        sequence = 0 if producer is None else self.sequences.get(producer, 0)
        batch = keyed_batch(
            *written,
            timestamp=self.now,
            codec=codec,
            producer_id=-1 if producer is None else producer,
            sequence=sequence,
        )
        result = append_as_leader(self.log, batch, 0, self.now)
        assert result.error == ErrorCode.NONE
        assert result.base_offset == len(self.records)
        self.log.advance_high_watermark(self.log.log_end_offset)
        self.records += written
        if producer is not None:
            self.sequences[producer] = sequence + len(written)

    @rule()
    def roll(self) -> None:
        self.log.roll(self.now)

    @rule()
    def flush(self) -> None:
        self.log.flush(self.now)

    @rule()
    def pass_time(self) -> None:
        self.now += 50

    @rule()
    def collect(self) -> None:
        remove_deleted(self.log, self.filesystem, self.now)

    @rule()
    def compact(self) -> None:
        cleanable = cleanable_of(self.log, self.now)
        if cleanable.cleanable_bytes:
            self.note_round()
            compact(self.log, self.now, limits=self.limits)
            assert (self.log.cleaner_offset or 0) > cleanable.first_dirty_offset
            self.check_newest_alone(self.log.cleaner_offset or 0)

    @precondition(lambda self: cleanable_of(self.log, self.now).cleanable_bytes > 0)
    @rule(changes=st.integers(0, 60), is_power_lost=st.booleans())
    def die_while_compacting(self, changes: int, is_power_lost: bool) -> None:
        self.note_round()
        self.filesystem.changes, self.filesystem.crash_at = 0, changes + 1
        try:
            compact(self.log, self.now, limits=self.limits)
        except Crashed:
            pass
        finally:
            self.filesystem.crash_at = None
        self.die(is_power_lost=is_power_lost)

    @rule(is_power_lost=st.booleans())
    def die(self, is_power_lost: bool) -> None:
        recovery_point, cleaner_offset = self.log.recovery_point, self.log.cleaner_offset
        if is_power_lost:
            self.filesystem.crash()
        else:
            self.filesystem.kill()
        before = len(self.records)
        self.reopen(is_clean=False, recovery_point=recovery_point, cleaner_offset=cleaner_offset)
        end = self.log.log_end_offset
        assert recovery_point <= end <= before
        assert is_power_lost or end == before
        if is_power_lost:
            self.lose_what_was_not_synced(recovery_point)

    @rule()
    def restart(self) -> None:
        self.log.flush(self.now)
        self.log.close()
        assert self.filesystem.open_files == 0
        assert not [name for name in self.filesystem.list_names(PATH) if name.endswith((".cleaned", ".swap"))]
        recovery_point, cleaner_offset = self.log.recovery_point, self.log.cleaner_offset
        self.reopen(is_clean=True, recovery_point=recovery_point, cleaner_offset=cleaner_offset)

    def reopen(self, *, is_clean: bool, recovery_point: int, cleaner_offset: int | None) -> None:
        self.log = open_log(
            self.filesystem,
            PATH,
            self.config,
            is_clean=is_clean,
            recovery_point=recovery_point,
            high_watermark=1 << 60,
            cleaner_offset=cleaner_offset,
        )

    # The model

    def note_round(self) -> None:
        """Updates the tombstones that this round may see for the first time, and those that it may remove."""
        self.may_be_gone |= {offset for offset, horizon in self.horizons.items() if horizon <= self.now}
        for offset, written in enumerate(self.records[: self.log.log_end_offset]):
            if written.value is None:
                self.horizons.setdefault(offset, self.now + self.config.delete_retention_ms)

    def lose_what_was_not_synced(self, recovery_point: int) -> None:
        """Compaction has not been there: whatever of it is not there now, the power took."""
        del self.records[self.log.log_end_offset :]
        present = {record.offset for record in records_of(self.log, recovery_point)}
        end = len(self.records)
        self.lost = {offset for offset in self.lost if offset < end} | set(range(recovery_point, end)) - present
        self.may_be_gone = {offset for offset in self.may_be_gone if offset < end}
        self.horizons = {offset: horizon for offset, horizon in self.horizons.items() if offset < end}
        self.sequences = {producer: entry.last_sequence + 1 for producer, entry in self.log.producers.entries.items()}

    def newest(self, end: int) -> dict[str, int]:
        return {written.key: offset for offset, written in enumerate(self.records[:end]) if offset not in self.lost}

    def check_newest_alone(self, end: int) -> None:
        wanted = set(self.newest(end).values())
        assert {record.offset for record in records_of(self.log) if record.offset < end} <= wanted

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "log"):
            return
        found = records_of(self.log)
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets))
        for record in found:
            key, value = self.records[record.offset]
            assert record.key == key.encode()
            assert record.value == (None if value is None else value.encode())
        present = set(offsets)
        newest = self.newest(len(self.records))
        for offset in newest.values():
            assert offset in present or offset in self.may_be_gone
        for record in found:
            last = newest[self.records[record.offset].key]
            # A record that a tombstone deleted is never visible again after the tombstone is removed.
            assert last in present or self.records[last].value is not None
        ends = [header.last_offset for header in read_headers(self.log)]
        assert ends == sorted(set(ends))
        assert self.log.log_end_offset == len(self.records)
        assert self.log.high_watermark == len(self.records)
        for offset in offsets[:: max(len(offsets) // 5, 1)]:
            assert records_of(self.log, offset)[0].offset == offset
        for producer, sequence in self.sequences.items():
            assert self.log.producers.entries[producer].last_sequence + 1 == sequence

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()


CompactionMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestCompactionMachine = CompactionMachine.TestCase
