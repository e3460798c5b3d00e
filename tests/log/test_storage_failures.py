"""Disks that are full, broken, or fail to fsync: no acknowledged record is lost, no other record is visible."""

from __future__ import annotations

import errno

import pytest

from kbroker.errors import StorageFailure
from kbroker.log.log_config import LogConfig
from kbroker.testing.faulty_filesystem import FaultyFileSystem
from tests.log.batches import NOW, append, append_as_leader, append_run, make_batch, make_marker, open_log, read_values

PATH = "/t-0"


@pytest.mark.parametrize("free_bytes", [0, 1, 60, 100])
def test_a_full_disk_rejects_the_whole_run_until_it_has_space(faulty: FaultyFileSystem, free_bytes: int) -> None:
    log = open_log(faulty, PATH, LogConfig(index_interval_bytes=100))
    for number in range(5):
        append(log, make_batch(b"%04d" % number, producer_id=1, sequence=number, timestamp=NOW + number))
    size = faulty.size(f"{PATH}/{0:020d}.log")
    for _attempt in range(3):
        faulty.free_bytes = free_bytes
        run = [make_batch(b"a" * 40, producer_id=1, sequence=5, timestamp=NOW + 99), make_batch(b"b")]
        with pytest.raises(StorageFailure) as caught:
            append_run(log, run, 0, NOW)
        assert caught.value.is_full
        assert faulty.size(f"{PATH}/{0:020d}.log") == size
        assert log.log_end_offset == 5
        assert len(read_values(log)) == 5
        assert log.offset_for_timestamp(NOW + 50) is None
        assert log.producers.entries[1].last_sequence == 4
    faulty.free_bytes = None
    assert append(log, make_batch(b"a" * 40, producer_id=1, sequence=5)) == 5
    log.close()
    assert len(read_values(open_log(faulty, PATH))) == 6


def test_a_full_disk_while_rolling_leaves_the_old_segment_in_use(faulty: FaultyFileSystem) -> None:
    log = open_log(faulty, PATH, LogConfig(segment_bytes=200, index_interval_bytes=50))
    append(log, make_batch(b"a" * 80))
    faulty.free_bytes = 0
    with pytest.raises(StorageFailure) as caught:
        append_as_leader(log, make_batch(b"b" * 80), 0, NOW)
    assert caught.value.is_full
    assert log.segment_base_offsets == [0]
    faulty.free_bytes = None
    assert append(log, make_batch(b"b" * 80)) == 1
    assert [offset for offset, _value in read_values(log)] == [0, 1]
    log.close()


@pytest.mark.parametrize("free_bytes", range(0, 420, 20))
def test_a_roll_that_stops_anywhere_loses_nothing_acknowledged(faulty: FaultyFileSystem, free_bytes: int) -> None:
    """The disk is full at a different step each time: the batch, an index, the snapshot, the new file."""
    config = LogConfig(segment_bytes=500, index_interval_bytes=50)
    log = open_log(faulty, PATH, config)
    acknowledged: list[tuple[int, bytes]] = []
    for number in range(8):
        if number == 3:
            faulty.free_bytes = free_bytes
        try:
            offset = append(log, make_batch(b"%04d" % number + b"x" * 60, producer_id=1, sequence=len(acknowledged)))
        except StorageFailure:
            continue
        acknowledged.append((offset, b"%04d" % number + b"x" * 60))
    assert len(acknowledged) >= 3
    assert read_values(log) == acknowledged
    faulty.kill()
    faulty.free_bytes = None
    again = open_log(faulty, PATH, config, is_clean=False)
    assert read_values(again) == acknowledged
    assert not again.was_shortened
    assert append(again, make_batch(b"next", producer_id=1, sequence=len(acknowledged))) == len(acknowledged)


def test_an_undone_marker_leaves_the_transaction_open(faulty: FaultyFileSystem) -> None:
    log = open_log(faulty, PATH)
    append(log, make_batch(b"a", producer_id=1, transactional=True))
    faulty.free_bytes = 10
    with pytest.raises(StorageFailure):
        append_as_leader(log, make_marker(1, commit=False), 0, NOW, is_internal=True)
    assert log.last_stable_offset == 0
    assert log.aborted_transactions(0, 99) == []
    faulty.free_bytes = None
    append(log, make_marker(1, commit=False), internal=True)
    assert log.last_stable_offset == 2
    assert len(log.aborted_transactions(0, 99)) == 1
    log.close()


def test_an_abort_whose_index_cannot_be_written_counts_and_is_written_with_the_next_flush(
    faulty: FaultyFileSystem,
) -> None:
    log = open_log(faulty, PATH)
    append(log, make_batch(b"a", producer_id=1, transactional=True))
    marker = make_marker(1, commit=False)
    faulty.free_bytes = len(marker)
    append(log, marker, internal=True)
    assert len(log.aborted_transactions(0, 99)) == 1
    with pytest.raises(StorageFailure):
        log.begin_flush()
    assert log.recovery_point == 0
    faulty.free_bytes = None
    log.flush(NOW)
    faulty.crash()
    again = open_log(faulty, PATH, is_clean=False, recovery_point=2, high_watermark=2)
    assert len(again.aborted_transactions(0, 99)) == 1


def test_an_epoch_that_cannot_be_written_rejects_the_whole_run(faulty: FaultyFileSystem) -> None:
    log = open_log(faulty, PATH)
    append(log, make_batch(b"a"), epoch=1)
    log.stage(make_batch(b"b"), 1, NOW)
    faulty.free_bytes = 0
    with pytest.raises(StorageFailure):
        log.stage(make_batch(b"c"), 2, NOW)
    faulty.free_bytes = None
    log.commit()
    assert read_values(log) == [(0, b"a")]
    assert log.leader_epochs.entries == [(1, 0)]
    assert append(log, make_batch(b"c"), epoch=2) == 1
    assert log.leader_epochs.entries == [(1, 0), (2, 1)]


def test_a_broken_disk_differs_from_a_full_one(faulty: FaultyFileSystem) -> None:
    log = open_log(faulty, PATH)
    append(log, make_batch(b"a"))
    faulty.write_error = errno.EIO
    with pytest.raises(StorageFailure) as caught:
        append_as_leader(log, make_batch(b"b"), 0, NOW)
    assert not caught.value.is_full
    assert read_values(log) == [(0, b"a")]


@pytest.mark.parametrize("longest", [1, 7, 64])
def test_short_writes_are_completed(faulty: FaultyFileSystem, longest: int) -> None:
    log = open_log(faulty, PATH, LogConfig(segment_bytes=400, index_interval_bytes=50))
    faulty.longest_write = longest
    append_run(log, [make_batch(b"%04d" % number + b"x" * 30) for number in range(10)], 0, NOW)
    expected = read_values(log)
    assert len(expected) == 10
    log.close()
    assert read_values(open_log(faulty, PATH)) == expected


def test_a_failed_fsync_moves_no_recovery_point(faulty: FaultyFileSystem) -> None:
    log = open_log(faulty, PATH)
    append(log, make_batch(b"a"))
    faulty.sync_error = errno.EIO
    job = log.begin_flush()
    assert job is not None
    with pytest.raises(StorageFailure) as caught:
        job.run()
    assert not caught.value.is_full
    log.complete_flush(job, NOW)
    assert log.recovery_point == 0


def test_a_flush_covers_the_records_at_its_begin(faulty: FaultyFileSystem) -> None:
    log = open_log(faulty, PATH, LogConfig(flush_messages=1))
    assert not log.is_flush_due(NOW)
    append(log, make_batch(b"a"))
    assert log.is_flush_due(NOW)
    job = log.begin_flush()
    assert job is not None
    append(log, make_batch(b"b"))
    assert log.begin_flush() is None
    job.run()
    log.complete_flush(job, NOW)
    assert log.recovery_point == 1
    assert log.is_flush_due(NOW)
    log.flush(NOW)
    assert log.recovery_point == 2
    assert not log.is_flush_due(NOW)
    assert log.begin_flush() is None


def test_a_truncation_during_a_flush_keeps_the_recovery_point(faulty: FaultyFileSystem) -> None:
    log = open_log(faulty, PATH)
    append(log, make_batch(b"a"))
    append(log, make_batch(b"b"))
    job = log.begin_flush()
    assert job is not None
    log.truncate_to(1)
    append(log, make_batch(b"c"))
    job.run()
    log.complete_flush(job, NOW)
    assert log.recovery_point == 0


def test_flush_is_due_by_time_and_after_a_roll(faulty: FaultyFileSystem) -> None:
    log = open_log(faulty, PATH, LogConfig(flush_ms=1000))
    append(log, make_batch(b"a"))
    assert not log.is_flush_due(NOW)
    assert not log.is_flush_due(NOW + 999)
    assert log.is_flush_due(NOW + 1000)
    log.flush(NOW + 1000)
    append(log, make_batch(b"b"))
    log.roll(NOW)
    append(log, make_batch(b"c"))
    assert log.is_flush_due(NOW + 1001)
    job = log.begin_flush(only_rolled=True)
    assert job is not None
    job.run()
    log.complete_flush(job, NOW + 1001)
    assert log.recovery_point == 2
    assert not log.is_flush_due(NOW + 1002)


def test_flushed_records_survive_a_power_loss(faulty: FaultyFileSystem) -> None:
    log = open_log(faulty, PATH, LogConfig(flush_messages=1, segment_bytes=300, index_interval_bytes=50))
    acknowledged = []
    for number in range(20):
        offset = append(log, make_batch(b"%04d" % number))
        log.flush(NOW)
        acknowledged.append((offset, b"%04d" % number))
    append(log, make_batch(b"lost"))
    recovery_point = log.recovery_point
    faulty.crash()
    again = open_log(faulty, PATH, is_clean=False, recovery_point=recovery_point)
    assert read_values(again) == acknowledged
    assert not again.was_shortened


def test_a_failed_preallocation_leaves_no_segment_behind(faulty: FaultyFileSystem) -> None:
    config = LogConfig(segment_bytes=400, preallocate=True)
    log = open_log(faulty, PATH, config)
    faulty.free_bytes = 500
    acknowledged = 2
    for _ in range(acknowledged):
        append(log, make_batch(b"a" * 80))
    with pytest.raises(StorageFailure):
        append(log, make_batch(b"a" * 80))
    assert [name for name in faulty.list_names(PATH) if name.endswith(".log")] == [f"{0:020d}.log"]
    faulty.kill()
    faulty.free_bytes = None
    again = open_log(faulty, PATH, config, is_clean=False)
    assert again.log_end_offset == acknowledged
    assert not again.was_shortened


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failed_fsync_is_never_taken_for_a_full_disk(faulty: FaultyFileSystem, number: int) -> None:
    log = open_log(faulty, PATH)
    append(log, make_batch(b"a"))
    faulty.sync_error = number
    with pytest.raises(StorageFailure) as caught:
        log.flush(NOW)
    assert not caught.value.is_full
