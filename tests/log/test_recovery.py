"""Opening a log after a crash: incomplete, changed and lost bytes, interrupted rolls, missing and stale side files."""

from __future__ import annotations

import pytest

from kbroker.errors import RecoveryNeeded
from kbroker.log.files.checkpoint import CheckpointedOffsets
from kbroker.log.files.file_cache import FileCache
from kbroker.log.log_config import LogConfig
from kbroker.log.open_log import OpenLog
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.error_codes import ErrorCode
from kbroker.testing.faulty_filesystem import FaultyFileSystem
from tests.log.batches import (
    NOW,
    append,
    append_as_leader,
    make_batch,
    make_marker,
    open_log,
    read_headers,
    read_values,
)

PATH = "/t-0"
SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=300)


def filled(faulty: FaultyFileSystem, count: int = 60, config: LogConfig = SMALL) -> OpenLog:
    log = open_log(faulty, PATH, config)
    for number in range(count):
        append(log, make_batch(b"%04d" % number + b"x" * 40, producer_id=7, sequence=number, timestamp=NOW + number))
    return log


def recover(faulty: FaultyFileSystem, recovery_point: int = 0, config: LogConfig = SMALL) -> OpenLog:
    return open_log(faulty, PATH, config, is_clean=False, recovery_point=recovery_point, high_watermark=1 << 40)


def path_of(base_offset: int, suffix: str = ".log") -> str:
    return f"{PATH}/{base_offset:020d}{suffix}"


def overwrite(faulty: FaultyFileSystem, path: str, content: bytes) -> None:
    faulty.replace(path, content)


def check_indexes(faulty: FaultyFileSystem, log: OpenLog) -> None:
    """Checks that the indexes find the same batches as a read of the whole log, after a clean stop too."""
    headers = read_headers(log, log.log_start_offset)
    log.close()
    again = open_log(faulty, PATH, SMALL)
    for header in headers:
        assert read_headers(again, header.last_offset)[0] == header
        found = again.offset_for_timestamp(header.max_timestamp)
        assert found is not None
        assert found.offset == header.base_offset
    again.close()


@pytest.mark.parametrize("recovery_point", [0, 1, 17, 40, 60])
def test_a_log_that_lost_nothing_is_kept_whole(faulty: FaultyFileSystem, recovery_point: int) -> None:
    log = filled(faulty)
    values = read_values(log)
    again = recover(faulty, recovery_point)
    assert read_values(again) == values
    assert not again.was_shortened
    assert again.producers.entries[7].last_sequence == 59
    assert append(again, make_batch(b"next", producer_id=7, sequence=60, timestamp=NOW + 60)) == 60
    check_indexes(faulty, again)


@pytest.mark.parametrize("cut", [1, 30, 61, 100, 130, 300])
def test_a_torn_tail_is_cut_off_and_the_valid_prefix_kept(faulty: FaultyFileSystem, cut: int) -> None:
    log = filled(faulty)
    values = read_values(log)
    last = path_of(log.segment_base_offsets[-1])
    content = faulty.read(last)
    batch_size = len(make_batch(b"%04d" % 0 + b"x" * 40, producer_id=7))
    overwrite(faulty, last, content[:-cut])
    again = recover(faulty)
    lost = -(-cut // batch_size)
    assert read_values(again) == values[: 60 - lost]
    assert again.was_shortened is (cut % batch_size != 0)
    assert again.producers.entries[7].last_sequence == 59 - lost
    check_indexes(faulty, again)


def test_a_log_that_ends_below_its_recovery_point_was_shortened(faulty: FaultyFileSystem) -> None:
    log = filled(faulty)
    batch_size = len(make_batch(b"%04d" % 0 + b"x" * 40, producer_id=7))
    last = path_of(log.segment_base_offsets[-1])
    overwrite(faulty, last, faulty.read(last)[:-batch_size])
    assert not recover(faulty, recovery_point=59).was_shortened
    assert recover(faulty, recovery_point=60).was_shortened


@pytest.mark.parametrize("garbage", [b"\0" * 500, b"\xff" * 70, bytes(range(200)), b"x"])
def test_garbage_behind_the_last_batch_is_cut_off(faulty: FaultyFileSystem, garbage: bytes) -> None:
    log = filled(faulty)
    values = read_values(log)
    last = path_of(log.segment_base_offsets[-1])
    content = faulty.read(last)
    overwrite(faulty, last, content + garbage)
    again = recover(faulty, recovery_point=60)
    assert again.was_shortened
    assert read_values(again) == values
    assert faulty.read(last) == content
    check_indexes(faulty, again)


def test_garbage_that_recovery_cut_off_does_not_return_with_a_power_loss(faulty: FaultyFileSystem) -> None:
    log = filled(faulty, 10)
    values = read_values(log)
    log.flush(NOW)
    overwrite(faulty, path_of(0), faulty.read(path_of(0)) + bytes(17))
    again = recover(faulty, recovery_point=10)
    again.recovery_point = 0  # or the roll fsyncs
    again.roll(NOW)
    faulty.crash()
    assert read_values(recover(faulty, recovery_point=10)) == values


@pytest.mark.parametrize("preallocate", [False, True])
def test_a_truncation_is_on_disk_before_the_recovery_point_leaves_its_segment(
    faulty: FaultyFileSystem, preallocate: bool
) -> None:
    config = LogConfig(segment_bytes=2000, index_interval_bytes=300, preallocate=preallocate)
    log = filled(faulty, 20, config)
    log.flush(NOW)
    log.truncate_to(15)
    values = read_values(log)
    log.flush(NOW)
    log.roll(NOW)
    assert (log.recovery_point, log.segment_base_offsets[-1]) == (15, 15)
    faulty.crash()
    again = recover(faulty, recovery_point=15, config=config)
    assert read_values(again) == values
    assert append(again, make_batch(b"next")) == 15


def test_recovery_truncates_at_a_valid_batch_with_an_earlier_offset(faulty: FaultyFileSystem) -> None:
    log = filled(faulty, 10)
    values = read_values(log)
    content = faulty.read(path_of(0))
    batch_size = len(make_batch(b"%04d" % 0 + b"x" * 40, producer_id=7))
    overwrite(faulty, path_of(0), content + content[:batch_size])
    again = recover(faulty)
    assert read_values(again) == values
    assert again.was_shortened
    assert faulty.read(path_of(0)) == content


def test_the_closing_entry_of_a_time_index_may_be_lost(faulty: FaultyFileSystem) -> None:
    log = open_log(faulty, PATH)
    append(log, make_batch(b"a", timestamp=NOW))
    append(log, make_batch(b"b", timestamp=NOW + 5))
    log.flush(NOW)
    log.roll(NOW)
    faulty.crash()
    again = recover(faulty, recovery_point=2)
    found = again.offset_for_timestamp(NOW + 1)
    assert found is not None
    assert (found.offset, found.timestamp) == (1, NOW + 5)


@pytest.mark.parametrize("position", [8, 16, 17, 23, 57, 70])
def test_a_flipped_bit_past_the_recovery_point_ends_the_log_there(faulty: FaultyFileSystem, position: int) -> None:
    log = filled(faulty)
    values = read_values(log)
    first, second = log.segment_base_offsets[:2]
    content = bytearray(faulty.read(path_of(second)))
    content[position] ^= 0x40
    overwrite(faulty, path_of(second), bytes(content))
    again = recover(faulty)
    assert again.was_shortened
    assert read_values(again) == values[:second]
    assert again.segment_base_offsets == [first, second]
    assert append(again, make_batch(b"next", producer_id=7, sequence=second, timestamp=NOW + second)) == second
    check_indexes(faulty, again)


def test_recovery_does_not_read_below_the_recovery_point(faulty: FaultyFileSystem) -> None:
    log = filled(faulty)
    log.flush(NOW)
    values = read_values(log)
    content = bytearray(faulty.read(path_of(0)))
    content[70] ^= 1
    overwrite(faulty, path_of(0), bytes(content))
    again = recover(faulty, recovery_point=60)
    assert not again.was_shortened
    assert [offset for offset, _value in read_values(again)] == [offset for offset, _value in values]


def test_recovery_checks_only_the_part_of_a_segment_after_the_recovery_point(faulty: FaultyFileSystem) -> None:
    config = LogConfig(index_interval_bytes=300)
    log = filled(faulty, 40, config)
    log.flush(NOW)
    for number in range(40, 60):
        append(log, make_batch(b"%04d" % number + b"x" * 40, producer_id=7, sequence=number, timestamp=NOW + number))
    content = bytearray(faulty.read(path_of(0)))
    content[70] ^= 1  # rot where everything was fsynced: not recovery's to find
    content[-1] ^= 1
    overwrite(faulty, path_of(0), bytes(content))
    again = recover(faulty, 40, config)
    assert again.log_end_offset == 59
    assert again.was_shortened
    check_indexes(faulty, again)


@pytest.mark.parametrize("bad_entries", [1, 2, 100])
def test_recovery_truncates_to_a_damaged_batch_where_it_starts(faulty: FaultyFileSystem, bad_entries: int) -> None:
    """The batches of the last index entries have good headers and wrong checksums, although they were fsynced."""
    config = LogConfig(index_interval_bytes=300)
    log = filled(faulty, 40, config)
    values = read_values(log)
    log.flush(NOW)
    index = log.segments.active.offset_index
    bad = [*zip(index.keys, index.values, strict=True)][-bad_entries:]
    content = bytearray(faulty.read(path_of(0)))
    for _last_offset, position in bad:
        content[position + 70] ^= 1
    overwrite(faulty, path_of(0), bytes(content))
    again = recover(faulty, 40, config)
    assert again.was_shortened
    assert read_values(again) == values[: bad[0][0]]  # a batch has one record, so its last offset is its first
    assert append(again, make_batch(b"next", timestamp=NOW + 40)) == bad[0][0] > 0
    check_indexes(faulty, again)


def test_a_crash_loses_only_bytes_that_were_not_fsynced(faulty: FaultyFileSystem) -> None:
    log = filled(faulty, 30)
    log.flush(NOW)
    values = read_values(log)
    recovery_point = log.recovery_point
    for number in range(30, 60):
        append(log, make_batch(b"%04d" % number + b"x" * 40, producer_id=7, sequence=number, timestamp=NOW + number))
    faulty.crash()
    again = recover(faulty, recovery_point)
    assert read_values(again)[:30] == values
    assert append(again, make_batch(b"next", timestamp=NOW + 99)) == again.log_end_offset - 1
    check_indexes(faulty, again)


def test_a_hole_between_segments_ends_the_log(faulty: FaultyFileSystem) -> None:
    log = filled(faulty)
    second, third = log.segment_base_offsets[1:3]
    content = faulty.read(path_of(second))
    batch_size = len(make_batch(b"%04d" % 0 + b"x" * 40, producer_id=7))
    overwrite(faulty, path_of(second), content[:-batch_size])
    again = recover(faulty)
    assert again.was_shortened
    assert again.log_end_offset == third - 1
    check_indexes(faulty, again)


def test_missing_and_damaged_indexes_are_rebuilt(faulty: FaultyFileSystem) -> None:
    log = filled(faulty)
    log.close()
    bases = log.segment_base_offsets
    faulty.remove(path_of(bases[0], ".index"))
    faulty.remove(path_of(bases[0], ".timeindex"))
    overwrite(faulty, path_of(bases[1], ".index"), b"\x7f\xff\xff\xff" * 4)
    overwrite(faulty, path_of(bases[-1], ".index"), b"\x00\x00\x00\x02" * 6)
    check_indexes(faulty, recover(faulty))


def test_a_clean_start_rebuilds_an_index_that_is_missing(faulty: FaultyFileSystem) -> None:
    log = filled(faulty)
    log.close()
    for base in log.segment_base_offsets:
        faulty.remove(path_of(base, ".index"))
        faulty.remove(path_of(base, ".timeindex"))
    again = open_log(faulty, PATH, SMALL)
    assert len(read_values(again)) == 60
    check_indexes(faulty, again)


def test_damage_at_the_end_after_a_clean_stop_is_found_and_truncated(faulty: FaultyFileSystem) -> None:
    log = filled(faulty, 10)
    log.close()
    overwrite(faulty, path_of(0), faulty.read(path_of(0))[:-3])
    again = open_log(faulty, PATH, SMALL)
    assert again.log_end_offset == 9
    assert again.was_shortened


def test_loading_leaves_no_file_open_and_touches_no_shared_cache(faulty: FaultyFileSystem) -> None:
    filled(faulty)
    faulty.kill()
    log = open_log(faulty, PATH, SMALL, is_clean=False, high_watermark=7)
    assert log.high_watermark == 7
    assert faulty.open_files == 0


def test_a_crash_in_the_middle_of_a_roll_loses_nothing(faulty: FaultyFileSystem) -> None:
    log = filled(faulty, 10)
    values = read_values(log)
    old = log.segment_base_offsets[-1]
    # The indexes were written and the next file made, but nothing is in it yet, nor in its indexes.
    log.roll(NOW)
    faulty.remove(path_of(10, ".index"))
    again = recover(faulty)
    assert read_values(again) == values
    assert not again.was_shortened
    assert again.segment_base_offsets[-2:] == [old, 10]
    assert append(again, make_batch(b"next")) == 10


def test_files_left_by_deletion_and_cleaning_are_deleted(faulty: FaultyFileSystem) -> None:
    log = filled(faulty)
    for name in ("00000000000000000000.log.deleted", "00000000000000000000.cleaned", "leader-epoch-checkpoint.tmp"):
        faulty.replace(f"{PATH}/{name}", b"x")
    recover(faulty)
    assert not [name for name in faulty.list_names(PATH) if name.endswith((".deleted", ".cleaned", ".tmp"))]
    assert log.log_end_offset == 60


def test_producers_are_read_from_the_newest_valid_snapshot(faulty: FaultyFileSystem) -> None:
    log = filled(faulty)
    newest = log.segment_base_offsets[-1]
    overwrite(faulty, path_of(newest, ".snapshot"), b"\0\1rubbish")
    faulty.replace(path_of(99, ".snapshot"), faulty.read(path_of(log.segment_base_offsets[1], ".snapshot")))
    again = recover(faulty)
    assert again.producers.entries[7].last_sequence == 59
    assert len(again.producers.entries[7].batches) == 5
    assert not faulty.exists(path_of(99, ".snapshot"))
    retried = append_as_leader(again, make_batch(b"x", producer_id=7, sequence=59), 0, NOW)
    assert (retried.is_duplicate, retried.base_offset) == (True, 59)


def test_clean_stops_do_not_accumulate_snapshots(faulty: FaultyFileSystem) -> None:
    filled(faulty, 10).close()
    for number in range(5):
        log = open_log(faulty, PATH, SMALL)
        append(log, make_batch(b"x"))
        log.close()
        assert log.log_end_offset == 11 + number
    log = open_log(faulty, PATH, SMALL)
    assert [name for name in sorted(faulty.list_names(PATH)) if name.endswith(".snapshot")] == [f"{15:020d}.snapshot"]


def test_after_a_clean_stop_the_last_batch_of_each_producer_is_known(faulty: FaultyFileSystem) -> None:
    log = filled(faulty)
    log.close()
    again = open_log(faulty, PATH, SMALL)
    retried = append_as_leader(again, make_batch(b"x", producer_id=7, sequence=59), 0, NOW)
    assert (retried.is_duplicate, retried.base_offset) == (True, 59)
    gap = append_as_leader(again, make_batch(b"x", producer_id=7, sequence=61), 0, NOW)
    assert gap.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_epochs_are_rebuilt_from_the_batches(faulty: FaultyFileSystem) -> None:
    log = open_log(faulty, PATH, SMALL)
    for number in range(40):
        append(log, make_batch(b"x" * 60), epoch=number // 15)
    entries = log.leader_epochs.entries
    faulty.replace(f"{PATH}/leader-epoch-checkpoint", b"")
    assert recover(faulty, recovery_point=40).leader_epochs.entries == entries == [(0, 0), (1, 15), (2, 30)]


def test_recovery_keeps_the_epochs_of_the_checkpoint(faulty: FaultyFileSystem) -> None:
    log = open_log(faulty, PATH, SMALL)
    for number in range(40):
        append(log, make_batch(b"x" * 60), epoch=number // 15)
    log.flush(NOW)
    for recovery_point in (0, 20, 25, 35, 40):
        assert recover(faulty, recovery_point).leader_epochs.entries == [(0, 0), (1, 15), (2, 30)]
    faulty.replace(f"{PATH}/leader-epoch-checkpoint", b"0\n1\n0 0\n")
    assert recover(faulty).leader_epochs.entries == [(0, 0), (1, 15), (2, 30)]


def test_epochs_beyond_the_log_end_offset_are_removed(faulty: FaultyFileSystem) -> None:
    filled(faulty, 10)
    faulty.replace(f"{PATH}/leader-epoch-checkpoint", b"0\n2\n0 0\n4 10\n")
    assert recover(faulty).leader_epochs.entries == [(0, 0)]


def test_a_log_start_offset_beyond_the_recovered_end_makes_an_empty_log(faulty: FaultyFileSystem) -> None:
    filled(faulty, 10).close()
    log = open_log(faulty, PATH, SMALL, is_clean=False, log_start_offset=50)
    assert (log.log_start_offset, log.log_end_offset, log.was_shortened) == (50, 50, True)
    assert append(log, make_batch(b"a")) == 50


def test_aborted_transactions_are_listed_once_after_recovery(faulty: FaultyFileSystem) -> None:
    log = open_log(faulty, PATH, SMALL)
    for number in range(12):
        append(log, make_batch(b"x" * 50, producer_id=1, sequence=number, transactional=True))
        append(log, make_marker(1, commit=number % 2 == 0), internal=True)
    expected = log.aborted_transactions(0, 99)
    assert len(expected) == 6
    again = recover(faulty)
    assert again.aborted_transactions(0, 99) == expected
    assert again.last_stable_offset == 24


@pytest.mark.parametrize("lost", [1, len(make_batch(b"%04d" % 0 + b"x" * 40, producer_id=7)), 100_000])
def test_a_damaged_closed_log_stays_unchanged_until_it_is_recovered(faulty: FaultyFileSystem, lost: int) -> None:
    log = filled(faulty)
    log.close()
    last = path_of(log.segment_base_offsets[-1])
    overwrite(faulty, last, faulty.read(last)[:-lost])
    before = faulty.read(last)
    calls: list[None] = []
    offsets = CheckpointedOffsets(recovery_point=60)
    handle = PartitionLog(FileCache(faulty), PATH, SMALL, offsets, on_unsound=lambda: calls.append(None))
    open_files = faulty.open_files
    for _ in range(2):
        with pytest.raises(RecoveryNeeded):
            handle.open()
    assert len(calls) == 2
    assert (handle.needs_recovery, faulty.read(last), faulty.open_files) == (True, before, open_files)
    again = handle.recover()
    assert again.was_shortened
    assert again.log_end_offset < 60
    check_indexes(faulty, again)


def test_opening_a_sound_log_does_not_call_on_unsound(faulty: FaultyFileSystem) -> None:
    filled(faulty).close()

    def fail() -> None:
        raise AssertionError

    again = PartitionLog(FileCache(faulty), PATH, SMALL, CheckpointedOffsets(recovery_point=60), on_unsound=fail)
    assert again.open().log_end_offset == 60
