"""Appends of a follower: offsets and epochs of the leader, damaged batches, gaps that compaction has left."""

from __future__ import annotations

import contextlib

import pytest

from kbroker.errors import StorageFailure
from kbroker.log.files.filesystem import FileSystem
from kbroker.log.log_config import LogConfig
from kbroker.protocol.record_batch import InvalidBatch, read_header, restamp
from kbroker.testing.faulty_filesystem import FaultyFileSystem
from tests.log.batches import (
    NOW,
    append,
    make_batch,
    open_log,
    read_bytes,
    read_values,
)

Place = tuple[FileSystem, str]
SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200)


def test_a_follower_keeps_offsets_and_epochs_and_ignores_an_incomplete_batch(place: Place) -> None:
    filesystem, path = place
    leader = open_log(filesystem, f"{path}/leader")
    for number in range(6):
        append(leader, make_batch(b"%04d" % number, b"x"), epoch=number // 2)
    content = read_bytes(leader, 0)
    follower = open_log(filesystem, f"{path}/follower", SMALL)
    result = follower.append_as_follower(content[:-3])
    assert (result.base_offset, result.last_offset, follower.log_end_offset) == (0, 9, 10)
    assert follower.append_as_follower(content[-3:]).last_offset == -1
    follower.append_as_follower(read_bytes(leader, 10))
    assert read_values(follower) == read_values(leader)
    assert follower.leader_epochs.entries == leader.leader_epochs.entries
    assert follower.end_offset_for_epoch(1) == (1, 8)
    with pytest.raises(InvalidBatch):
        follower.append_as_follower(content)
    leader.close()
    follower.close()


def test_damaged_bytes_from_a_leader_change_nothing(place: Place) -> None:
    log = open_log(*place)
    batches = bytearray()
    for offset in range(3):
        batch = make_batch(b"a")
        restamp(batch, 0, offset, 0)
        batches += batch
    batches[-1] ^= 1
    with pytest.raises(InvalidBatch):
        log.append_as_follower(batches)
    assert log.log_end_offset == 0
    log.close()


def test_gaps_that_compaction_left_are_read_across(place: Place) -> None:
    log = open_log(*place, LogConfig(segment_bytes=300, index_interval_bytes=100))
    for offset in (0, 5, 6, 40, 41, 90, 200):
        batch = make_batch(b"%04d" % offset + b"x" * 60)
        restamp(batch, 0, offset, 0)
        log.append_as_follower(batch)
    assert [offset for offset, _value in read_values(log)] == [0, 5, 6, 40, 41, 90, 200]
    for wanted, found in ((1, 5), (7, 40), (42, 90), (91, 200)):
        assert read_header(read_bytes(log, wanted)).base_offset == found
    log.close()
    again = open_log(*place)
    assert read_header(read_bytes(again, 42)).base_offset == 90
    again.close()


FAR = 1 << 31
FAR_OFFSETS = {
    "in the first segment": [0, 1, FAR, FAR + 1, FAR * 3, FAR * 3 + 1],
    "as the first batch": [FAR * 2, FAR * 2 + 1],
    "at the limit": [0, FAR - 1, FAR, FAR + FAR - 1, FAR + FAR],
}


def fetched_batch(offset: int, *values: bytes) -> bytearray:
    batch = make_batch(*(values or (b"%d" % offset + b"x" * 60,)))
    restamp(batch, 0, offset, 0)
    return batch


@pytest.mark.parametrize("is_together", [False, True])
@pytest.mark.parametrize("offsets", FAR_OFFSETS.values(), ids=FAR_OFFSETS)
def test_a_follower_copies_gaps_larger_than_a_segments_range(
    place: Place, offsets: list[int], is_together: bool
) -> None:
    config = LogConfig(index_interval_bytes=1)
    log = open_log(*place, config)
    batches = [fetched_batch(offset) for offset in offsets]
    for fetched in [b"".join(batches)] if is_together else batches:
        log.append_as_follower(fetched)
    log.set_high_watermark(1 << 40)
    values = read_values(log)
    assert [offset for offset, _value in values] == offsets
    assert log.log_start_offset == 0
    log.close_files()
    again = open_log(*place, config, is_clean=False, high_watermark=1 << 40)
    assert not again.was_shortened
    assert read_values(again) == values
    for offset in offsets:
        assert read_header(read_bytes(again, offset)).base_offset == offset
    again.close()


def test_a_batch_behind_a_large_gap_leaves_earlier_segments(place: Place) -> None:
    log = open_log(*place)
    log.append_as_follower(fetched_batch(0))
    log.roll(NOW)
    log.append_as_follower(fetched_batch(FAR * 2))
    assert [offset for offset, _value in read_values(log)] == [0, FAR * 2]
    log.close()


def test_recovery_keeps_small_gaps_that_a_follower_copied(place: Place) -> None:
    """The topic was compacted before and is not now, and the segments are new: nothing says that gaps are normal."""
    offsets = [0, 5, 6, 40, 41, 90, 200]
    log = open_log(*place, LogConfig(segment_bytes=300))
    for offset in offsets:
        log.append_as_follower(fetched_batch(offset))
    assert len(log.segment_base_offsets) > 2
    log.close_files()
    again = open_log(*place, LogConfig(segment_bytes=300), is_clean=False, high_watermark=1 << 40)
    assert [offset for offset, _value in read_values(again)] == offsets
    again.close()


def test_a_log_that_is_truncated_in_a_large_gap_continues_there(place: Place) -> None:
    log = open_log(*place)
    log.append_as_follower(fetched_batch(FAR * 4))
    assert log.truncate_to(FAR * 2)
    assert append(log, make_batch(b"next")) == FAR * 2
    log.close_files()
    again = open_log(*place, is_clean=False, high_watermark=1 << 40)
    assert read_values(again) == [(FAR * 2, b"next")]
    again.close()


def test_a_failed_write_behind_a_large_gap_leaves_a_log_that_can_be_appended_to(faulty: FaultyFileSystem) -> None:
    ends = set()
    for free_bytes in range(0, 200, 10):  # the disk gets full at different steps
        path = f"/data-{free_bytes}"
        log = open_log(faulty, path)
        log.append_as_follower(fetched_batch(0))
        faulty.free_bytes = free_bytes
        with contextlib.suppress(StorageFailure):
            log.append_as_follower(fetched_batch(FAR * 2))
        faulty.free_bytes = None
        end = append(log, make_batch(b"next"))
        values = read_values(log)
        assert values[-1] == (end, b"next")
        log.close_files()
        again = open_log(faulty, path, is_clean=False, high_watermark=1 << 40)
        assert read_values(again) == values
        again.close()
        ends.add(end)
    assert ends == {1, FAR * 2, FAR * 2 + 1}
