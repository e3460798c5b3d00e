"""Open log: append, read, roll, find by timestamp, truncate, delete."""

from __future__ import annotations

from kbroker.log.files.file_cache import FileCache
from kbroker.log.files.file_slice import FileSlice
from kbroker.log.files.filesystem import FileSystem
from kbroker.log.log_config import LogConfig
from kbroker.log.open_log import OpenLog
from kbroker.log.partition_log import PartitionLog
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.legacy_message_set import build_message_set
from kbroker.protocol.record_batch import pack_batch, read_header
from kbroker.protocol.records import Record
from kbroker.testing.faulty_filesystem import FaultyFileSystem
from tests.log.batches import (
    NOW,
    append,
    append_as_leader,
    append_run,
    make_batch,
    make_marker,
    open_log,
    read_bytes,
    read_headers,
    read_values,
    remove_deleted,
)

Place = tuple[FileSystem, str]
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


def fill(log: OpenLog, count: int, *, size: int = 20, step_ms: int = 1) -> None:
    for number in range(count):
        append(log, make_batch(b"%04d" % number + b"x" * size, timestamp=NOW + number * step_ms))


def test_batches_get_consecutive_offsets_and_the_leaders_epoch(place: Place) -> None:
    log = open_log(*place)
    assert append(log, make_batch(b"a", b"b"), epoch=3) == 0
    assert append(log, make_batch(b"c"), epoch=3) == 2
    assert log.log_end_offset == 3
    assert read_values(log) == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert {header.leader_epoch for header in read_headers(log)} == {3}
    assert log.leader_epochs.entries == [(3, 0)]
    log.close()


def test_a_run_is_one_write_and_each_batch_is_checked_by_itself(place: Place) -> None:
    log = open_log(*place)
    bad = make_batch(b"b")
    bad[-1] ^= 1
    results = append_run(log, [make_batch(b"a"), bad, make_batch(b"c", b"d")], 0, NOW)
    assert [(result.error, result.base_offset) for result in results] == [
        (ErrorCode.NONE, 0),
        (ErrorCode.CORRUPT_MESSAGE, -1),
        (ErrorCode.NONE, 1),
    ]
    assert read_values(log) == [(0, b"a"), (1, b"c"), (2, b"d")]
    log.close()


def test_a_run_may_cross_a_roll(place: Place) -> None:
    log = open_log(*place, SMALL)
    results = append_run(log, [make_batch(b"x" * 200) for _ in range(12)], 0, NOW)
    assert [result.base_offset for result in results] == list(range(12))
    assert len(log.segment_base_offsets) > 2
    assert [offset for offset, _value in read_values(log)] == list(range(12))
    log.close()


def test_staged_batches_are_not_visible_before_the_commit(place: Place) -> None:
    log = open_log(*place)
    append(log, make_batch(b"a"))
    log.stage(make_batch(b"b"), 0, NOW)
    assert log.log_end_offset == 1
    assert read_values(log) == [(0, b"a")]
    log.commit()
    assert read_values(log) == [(0, b"a"), (1, b"b")]
    log.close()


def test_a_batch_larger_than_a_segment_is_refused(place: Place) -> None:
    log = open_log(*place, LogConfig(segment_bytes=100))
    assert append_as_leader(log, make_batch(b"x" * 100), 0, NOW).error == ErrorCode.RECORD_LIST_TOO_LARGE


def test_old_messages_are_stored_as_a_batch(place: Place) -> None:
    log = open_log(*place)
    old = build_message_set([Record(0, NOW, None, b"a"), Record(1, NOW, None, b"b")], magic=0)
    assert log.stage_message_set(old, 0, NOW).last_offset == 1
    log.commit()
    assert log.stage_message_set(b"rubbish that is long enough to be read", 0, NOW).error != ErrorCode.NONE
    assert read_values(log) == [(0, b"a"), (1, b"b")]
    log.close()


def test_old_messages_can_be_staged_among_others(place: Place) -> None:
    log = open_log(*place)
    log.stage(make_batch(b"a"), 0, NOW)
    old = build_message_set([Record(0, NOW, None, b"b")], magic=1)
    assert log.stage_message_set(old, 0, NOW).base_offset == 1
    assert log.appended_bytes == 0
    log.commit()
    assert log.appended_bytes == log.size_bytes > 0
    assert read_values(log) == [(0, b"a"), (1, b"b")]
    log.close()


def test_the_result_has_the_log_append_time(place: Place) -> None:
    log = open_log(*place, LogConfig(message_timestamp_type="LogAppendTime"))
    assert append_as_leader(log, make_batch(b"a", timestamp=3), 0, NOW).log_append_time == NOW
    assert read_headers(log)[0].max_timestamp == NOW
    log.close()


def test_idempotent_retries_within_one_run_and_across_runs(place: Place) -> None:
    log = open_log(*place)
    first = [make_batch(b"a", b"b", producer_id=1), make_batch(b"c", producer_id=1, sequence=2)]
    again = [bytearray(batch) for batch in first]
    twice = append_run(log, [*first, make_batch(b"a", b"b", producer_id=1)], 0, NOW)
    assert [result.is_duplicate for result in twice] == [False, False, True]
    repeated = append_run(log, again, 0, NOW)
    assert [(result.base_offset, result.last_offset, result.is_duplicate) for result in repeated] == [
        (0, 1, True),
        (2, 2, True),
    ]
    gap = append_as_leader(log, make_batch(b"x", producer_id=1, sequence=9), 0, NOW)
    assert gap.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == 3
    log.close()


# Reading


def test_an_offset_within_a_batch_returns_the_whole_batch(place: Place) -> None:
    log = open_log(*place)
    append(log, make_batch(b"a", b"b", b"c"))
    append(log, make_batch(b"d"))
    assert read_headers(log, 2)[0].base_offset == 0
    assert read_values(log, 2) == [(2, b"c"), (3, b"d")]
    log.close()


def test_a_read_never_passes_its_bound(place: Place) -> None:
    log = open_log(*place, SMALL)
    for number in range(40):
        append_as_leader(log, make_batch(b"%04d" % number), 0, NOW)
    assert read_bytes(log, 0, up_to=0) == b""
    for high_watermark in (1, 5, 17, 39, 40):
        log.set_high_watermark(high_watermark)
        assert [offset for offset, _ in read_values(log, 0, up_to=high_watermark)] == list(range(high_watermark))
        assert log.read(high_watermark, 100, up_to=high_watermark) is None
    assert [offset for offset, _ in read_values(log, 0, up_to=7)] == list(range(7))
    log.close()


def test_a_bound_within_a_batch_leaves_the_batch_out(place: Place) -> None:
    log = open_log(*place)
    append(log, make_batch(b"a"))
    append(log, make_batch(b"b", b"c"))
    assert read_values(log, 0, up_to=2) == [(0, b"a")]
    log.close()


def test_the_high_watermark_keeps_its_position_when_the_log_rolls(place: Place) -> None:
    log = open_log(*place)
    append(log, make_batch(b"a"))
    log.roll(NOW)
    append_as_leader(log, make_batch(b"b"), 0, NOW)
    assert read_values(log, 0, up_to=log.high_watermark) == [(0, b"a")]
    assert log.read(1, 100, up_to=log.high_watermark) is None
    log.close()


def test_a_read_returns_at_least_one_batch_of_any_size(place: Place) -> None:
    log = open_log(*place)
    append(log, make_batch(b"x" * 500))
    append(log, make_batch(b"y"))
    whole = len(make_batch(b"x" * 500))
    assert len(read_bytes(log, 0, 10)) == whole
    assert len(read_bytes(log, 0, whole + 5)) == whole + 5
    assert log.read(0, 10, min_one_batch=False) is None
    log.close()


def test_offsets_out_of_range(place: Place) -> None:
    log = open_log(*place)
    append(log, make_batch(b"a", b"b"))
    assert log.read(2, 100) is None
    assert log.read(3, 100) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.read(3, 100, up_to=1) == ErrorCode.OFFSET_OUT_OF_RANGE
    log.delete_records_before(1)
    assert log.read(0, 100) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert read_values(log, 1) == [(1, b"b")]
    log.close()


def test_every_offset_is_found_through_the_index_after_a_reopening(place: Place) -> None:
    log = open_log(*place, SMALL)
    for number in range(120):
        append(log, make_batch(*[b"%04d" % number] * (1 + number % 3)))
    expected = read_values(log)
    log.close()
    again = open_log(*place, SMALL)
    for offset, _value in expected:
        header = read_header(read_bytes(again, offset))
        assert header.base_offset <= offset <= header.last_offset
    assert read_values(again) == expected
    again.close()


def test_more_batches_than_the_tail_remembers_are_still_found(place: Place) -> None:
    log = open_log(*place)
    fill(log, 1300)
    for offset in (0, 1, 255, 256, 700, 1043, 1044, 1045, 1299):
        assert read_header(read_bytes(log, offset)).base_offset == offset
    log.close()


def test_a_slice_keeps_its_file_though_the_segment_is_deleted(place: Place) -> None:
    filesystem, path = place
    config = LogConfig(segment_bytes=300, retention_bytes=0, file_delete_delay_ms=0)
    log = open_log(filesystem, path, config)
    fill(log, 9)
    slice_ = log.read(0, 1000)
    assert isinstance(slice_, FileSlice)
    assert log.apply_retention(NOW) > 0
    remove_deleted(log, filesystem, NOW)
    assert [name for name in filesystem.list_names(path) if name.endswith(".log.deleted")]
    assert read_header(slice_.read()).base_offset == 0
    assert slice_.is_valid()
    slice_.release()
    slice_.release()
    remove_deleted(log, filesystem, NOW)
    assert not [name for name in filesystem.list_names(path) if name.endswith(".deleted")]
    log.close()


def test_a_slice_is_invalid_once_the_log_was_truncated(place: Place) -> None:
    log = open_log(*place)
    fill(log, 3)
    slice_ = log.read(0, 1000)
    assert isinstance(slice_, FileSlice)
    log.truncate_to(1)
    assert not slice_.is_valid()
    slice_.release()
    log.close()


def test_descriptors_are_bounded_and_pinned_files_stay_open() -> None:
    filesystem = FaultyFileSystem()
    files = FileCache(filesystem, limit=5)
    logs = []
    for number in range(20):
        filesystem.make_directory(f"/t-{number}")
        log = PartitionLog(files, f"/t-{number}", LogConfig()).open()
        append(log, make_batch(b"%04d" % number))
        logs.append(log)
    assert filesystem.open_files <= 5
    pinned = logs[0].read(0, 1000)
    assert isinstance(pinned, FileSlice)
    handle = pinned.file.handle
    for log in logs * 3:
        append(log, make_batch(b"more"))
    assert filesystem.open_files <= 5
    assert pinned.file.handle is handle
    assert read_header(pinned.read()).base_offset == 0
    pinned.release()
    assert [len(read_values(log)) for log in logs] == [4] * 20
    for log in logs:
        log.close()
    assert filesystem.open_files == 0


# Rolling


def test_a_segment_rolls_by_size(place: Place) -> None:
    log = open_log(*place, LogConfig(segment_bytes=250))
    fill(log, 10)
    filesystem, path = place
    sizes = [filesystem.size(f"{path}/{base:020d}.log") for base in log.segment_base_offsets]
    assert len(sizes) > 3
    assert max(sizes) <= 250
    log.close()


def test_a_segment_rolls_by_the_time_between_its_timestamps(place: Place) -> None:
    log = open_log(*place, LogConfig(segment_ms=1000))
    for timestamp in (NOW, NOW + 1000, NOW + 1001, NOW + 1002):
        append(log, make_batch(timestamp=timestamp))
    assert log.segment_base_offsets == [0, 2]
    log.close()


def test_batches_without_timestamps_roll_by_the_clock(place: Place) -> None:
    log = open_log(*place, LogConfig(segment_ms=1000))
    for now_ms in (NOW, NOW + 10, NOW + 1010, NOW + 1011):
        append(log, make_batch(timestamp=-1), now_ms=now_ms)
    assert log.segment_base_offsets == [0, 3]
    log.close()


def test_jitter_rolls_earlier(place: Place) -> None:
    filesystem, path = place
    config = LogConfig(segment_ms=1000, segment_jitter_ms=400)
    log = PartitionLog(FileCache(filesystem), path, config, random_below=lambda bound: bound - 1).open()
    for timestamp in (NOW, NOW + 601, NOW + 602):
        append(log, make_batch(timestamp=timestamp))
    assert log.segment_base_offsets == [0, 2]
    log.close()


def test_a_segment_rolls_when_its_index_is_full(place: Place) -> None:
    log = open_log(*place, LogConfig(index_interval_bytes=0, segment_index_bytes=60))
    fill(log, 12)
    assert log.segment_base_offsets == [0, 5, 10]
    log.close()


def test_preallocated_segments_are_trimmed_when_they_close(place: Place) -> None:
    filesystem, path = place
    config = LogConfig(segment_bytes=2000, preallocate=True)
    log = open_log(filesystem, path, config)
    fill(log, 30)
    last = f"{path}/{log.segment_base_offsets[-1]:020d}.log"
    assert filesystem.size(last) == 2000
    expected = read_values(log)
    log.close()
    assert filesystem.size(last) < 2000
    assert read_values(open_log(filesystem, path, config)) == expected


# By timestamp


def test_the_first_record_that_is_not_older_is_found(place: Place) -> None:
    log = open_log(*place, SMALL)
    times = [NOW + (number * 37) % 500 + number * 10 for number in range(120)]
    for number in range(0, 120, 3):
        append(log, make_batch(b"a" * 30, b"b", b"c", timestamps=times[number : number + 3]))
    for target in range(NOW - 5, max(times) + 20, 7):
        expected = next(((time, offset) for offset, time in enumerate(times) if time >= target), None)
        found = log.offset_for_timestamp(target)
        assert (found and (found.timestamp, found.offset)) == expected
    latest = log.offset_of_max_timestamp()
    assert latest is not None
    assert (latest.timestamp, latest.offset) == (max(times), times.index(max(times)))
    log.close()


def test_an_empty_log_has_no_timestamps(place: Place) -> None:
    log = open_log(*place)
    assert log.offset_for_timestamp(0) is None
    assert log.offset_of_max_timestamp() is None
    log.close()


def test_a_timestamp_in_an_unparsable_batch_is_found_at_its_base_offset_and_counted(place: Place) -> None:
    log = open_log(*place)
    append(log, pack_batch(read_header(make_batch(b"a", b"b")), b"\x7f" * 14))
    found = log.offset_for_timestamp(NOW)
    assert found is not None
    assert (found.offset, found.is_exact, log.unparsable_batches) == (0, False, 1)
    log.close()


# Truncating and deleting


def test_truncating_removes_whole_batches_and_everything_after_them(place: Place) -> None:
    log = open_log(*place, SMALL)
    for number in range(40):
        append(log, make_batch(b"%04d" % number, b"x" * 60), epoch=number // 10)
    before = read_values(log)
    assert log.truncate_to(33)
    assert log.log_end_offset == log.high_watermark == 32
    assert read_values(log) == before[:32]
    assert log.leader_epochs.entries == [(0, 0), (1, 20)]
    assert not log.truncate_to(32)
    assert append(log, make_batch(b"new"), epoch=9) == 32
    assert read_values(log)[-1] == (32, b"new")
    log.close()
    assert read_values(open_log(*place, SMALL))[-1] == (32, b"new")


def test_truncating_to_every_offset_and_appending_again(place: Place) -> None:
    log = open_log(*place, SMALL)
    fill(log, 50)
    for offset in range(49, -1, -7):
        log.truncate_to(offset)
        assert log.log_end_offset == offset
        assert append(log, make_batch(b"new", timestamp=NOW + 10_000 + offset)) == offset
        found = log.offset_for_timestamp(NOW + 10_000)
        assert found is not None
        assert found.offset == offset
    log.close()


def test_truncating_lowers_the_recovery_point_and_the_largest_timestamp(place: Place) -> None:
    log = open_log(*place, LogConfig(index_interval_bytes=0))
    for timestamp in (NOW, NOW + 5, NOW + 900, NOW + 800):
        append(log, make_batch(timestamp=timestamp))
    log.flush(NOW)
    log.truncate_to(2)
    assert log.recovery_point == 2
    append(log, make_batch(timestamp=NOW + 7))
    latest = log.offset_of_max_timestamp()
    assert latest is not None
    assert (latest.timestamp, latest.offset) == (NOW + 7, 2)
    log.close()


def test_producers_are_as_they_were_at_the_offset_truncated_to(place: Place) -> None:
    log = open_log(*place, SMALL)
    for number in range(30):
        append(log, make_batch(b"x" * 40, producer_id=number % 2, sequence=number // 2))
    log.truncate_to(11)
    assert {producer: entry.last_sequence for producer, entry in log.producers.entries.items()} == {0: 5, 1: 4}
    assert append(log, make_batch(producer_id=1, sequence=5)) == 11
    log.close()


def test_a_fully_truncated_log_is_empty_and_starts_at_the_offset(place: Place) -> None:
    log = open_log(*place, SMALL)
    fill(log, 40)
    log.truncate_fully_and_start_at(1000)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (1000, 1000, 1000)
    assert append(log, make_batch(b"a")) == 1000
    log.truncate_to(500)
    assert (log.log_start_offset, log.log_end_offset) == (500, 500)
    log.truncate_fully_and_start_at(500)
    assert append(log, make_batch(b"b")) == 500
    log.close()
    assert read_values(open_log(*place, SMALL)) == [(500, b"b")]


def test_deleting_records_raises_the_start_and_retention_deletes_the_segments(place: Place) -> None:
    log = open_log(*place, SMALL)
    fill(log, 60)
    assert log.delete_records_before(61) is None
    assert log.delete_records_before(-2) is None
    assert log.delete_records_before(25) == 25
    assert log.delete_records_before(10) == 25
    assert log.apply_retention(NOW) > 0
    first = log.segment_base_offsets
    assert first[0] <= 25 < first[1]
    assert log.log_start_offset == 25
    assert read_values(log)[0][0] == 25
    assert log.leader_epochs.entries == [(0, 25)]
    assert log.delete_records_before(-1) == 60
    assert log.read(60, 100) is None
    log.close()


def test_retention_by_time_deletes_the_active_segment_after_a_roll(place: Place) -> None:
    log = open_log(*place, LogConfig(segment_bytes=1000, retention_ms=100))
    fill(log, 30)
    assert log.apply_retention(NOW + 100) == 0
    count = len(log.segment_base_offsets)
    assert log.apply_retention(NOW + 1000) == count
    assert (log.log_start_offset, log.log_end_offset) == (30, 30)
    assert log.apply_retention(NOW + 5000) == 0
    assert append(log, make_batch(b"a")) == 30
    log.close()


def test_retention_by_size_keeps_at_least_retention_bytes(place: Place) -> None:
    log = open_log(*place, LogConfig(segment_bytes=500, retention_bytes=1200))
    fill(log, 40)
    log.apply_retention(NOW)
    assert 1200 <= log.size_bytes < 1200 + 500
    log.close()


def test_retention_keeps_everything_above_the_high_watermark(place: Place) -> None:
    log = open_log(*place, LogConfig(segment_bytes=500, retention_ms=0))
    for _ in range(20):
        append_as_leader(log, make_batch(b"x" * 30), 0, NOW)
    log.set_high_watermark(8)
    log.apply_retention(NOW + 10_000)
    assert log.segment_base_offsets[0] <= 8 < log.segment_base_offsets[1]
    log.close()


def test_retention_by_time_or_size_does_not_apply_to_a_compacted_topic(place: Place) -> None:
    config = LogConfig(segment_bytes=500, retention_ms=0, retention_bytes=0, cleanup_policy=frozenset({"compact"}))
    log = open_log(*place, config)
    fill(log, 20)
    assert log.apply_retention(NOW + 10_000) == 0
    log.close()


def test_deleted_files_stay_for_the_delay(place: Place) -> None:
    filesystem, path = place
    log = open_log(filesystem, path, LogConfig(segment_bytes=500, retention_bytes=0, file_delete_delay_ms=50))
    fill(log, 20)
    log.apply_retention(NOW)
    assert remove_deleted(log, filesystem, NOW + 49) == []
    assert [name for name in filesystem.list_names(path) if name.endswith(".deleted")]
    assert remove_deleted(log, filesystem, NOW + 50)
    assert not [name for name in filesystem.list_names(path) if name.endswith(".deleted")]
    log.close()


# Transactions


def test_the_last_stable_offset_waits_for_the_marker_and_aborts_are_listed(place: Place) -> None:
    log = open_log(*place)
    append(log, make_batch(b"a"))
    append(log, make_batch(b"b", producer_id=1, transactional=True))
    append(log, make_batch(b"c"))
    assert log.last_stable_offset == 1
    assert read_values(log, 0, up_to=log.last_stable_offset) == [(0, b"a")]
    assert append_as_leader(log, make_marker(1, commit=False), 0, NOW).error == ErrorCode.INVALID_RECORD
    append(log, make_marker(1, commit=False), internal=True)
    assert log.last_stable_offset == 4
    assert log.aborted_transactions(0, 4) == [(1, 1, 3, 4)]
    assert log.aborted_transactions(0, 1) == []
    append(log, make_batch(b"d", producer_id=1, sequence=1, transactional=True))
    append(log, make_marker(1, commit=True), internal=True)
    assert len(log.aborted_transactions(0, 99)) == 1
    log.close()
    again = open_log(*place, high_watermark=99)
    assert again.last_stable_offset == again.log_end_offset == 6
    assert len(again.aborted_transactions(0, 99)) == 1
    again.close()


def test_an_open_transaction_survives_a_restart(place: Place) -> None:
    log = open_log(*place)
    append(log, make_batch(b"a", producer_id=1, transactional=True))
    append(log, make_batch(b"b"))
    log.close()
    again = open_log(*place, high_watermark=2)
    assert again.last_stable_offset == 0
    append(again, make_marker(1, commit=True), internal=True)
    assert again.last_stable_offset == 3
    again.close()
