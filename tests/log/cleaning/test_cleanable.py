"""The part of a log that may be compacted, and when compaction is due."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbroker.log.log_compaction import cleanable_of
from kbroker.log.log_config import LogConfig
from kbroker.log.open_log import OpenLog
from kbroker.testing.faulty_filesystem import FaultyFileSystem
from tests.log.batches import NOW, append, open_log
from tests.log.compacting import SMALL, compact, keyed_batch, seal


def ten_segments(faulty: FaultyFileSystem, config: LogConfig = SMALL) -> OpenLog:
    """Returns a log with offsets 0 to 9, a second apart, each in its own segment; the active one is empty."""
    log = open_log(faulty, "/t", config)
    for number in range(10):
        append(log, keyed_batch(("k", "x" * 300), timestamp=NOW + 1000 * number))
    seal(log, NOW)
    assert log.segment_base_offsets == list(range(11))
    return log


def test_everything_but_the_active_segment_is_dirty_at_first(faulty: FaultyFileSystem) -> None:
    log = ten_segments(faulty)
    append(log, keyed_batch(("k", "active")))
    log.flush(NOW)
    found = cleanable_of(log, NOW)
    assert (found.first_dirty_offset, found.first_uncleanable_offset, found.clean_bytes) == (0, 10, 0)
    assert found.dirty_ratio == 1.0
    log.close()


def test_records_that_are_not_fsynced_or_not_committed_are_not_cleanable(faulty: FaultyFileSystem) -> None:
    log = ten_segments(faulty)
    log.recovery_point = 4
    assert cleanable_of(log, NOW).first_uncleanable_offset == 4
    log.recovery_point = 10
    log.set_high_watermark(7)
    assert cleanable_of(log, NOW).first_uncleanable_offset == 7
    log.close()


def test_the_dirty_ratio_is_dirty_bytes_to_all_cleanable_bytes(faulty: FaultyFileSystem) -> None:
    log = ten_segments(faulty)
    size = log.size_bytes // 10
    log.cleaner_offset = 6
    found = cleanable_of(log, NOW)
    assert (found.clean_bytes, found.cleanable_bytes) == (6 * size, 4 * size)
    assert found.dirty_ratio == 0.4
    assert found.is_due(replace(SMALL, min_cleanable_dirty_ratio=0.39))
    assert not found.is_due(replace(SMALL, min_cleanable_dirty_ratio=0.4))
    log.cleaner_offset = 10
    assert not cleanable_of(log, NOW).is_due(SMALL)
    log.close()


def test_young_segments_are_left_alone_for_min_compaction_lag_ms(faulty: FaultyFileSystem) -> None:
    log = ten_segments(faulty)
    log.update_config(replace(SMALL, min_compaction_lag_ms=5000))
    assert cleanable_of(log, NOW + 4999).first_uncleanable_offset == 0
    assert cleanable_of(log, NOW + 5000).first_uncleanable_offset == 1
    assert cleanable_of(log, NOW + 8000).first_uncleanable_offset == 4
    assert cleanable_of(log, NOW + 60_000).first_uncleanable_offset == 10
    log.close()


def test_after_max_compaction_lag_ms_the_ratio_does_not_matter(faulty: FaultyFileSystem) -> None:
    log = ten_segments(faulty)
    log.cleaner_offset = 8
    config = replace(SMALL, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=5000)
    log.update_config(config)
    waiting = cleanable_of(log, NOW + 8000 + 5000)
    assert (waiting.overdue_ms, waiting.is_due(config)) == (0, False)
    overdue = cleanable_of(log, NOW + 8000 + 5001)
    assert (overdue.overdue_ms, overdue.is_due(config)) == (1, True)
    log.close()


def test_max_compaction_lag_ms_closes_a_segment_in_time(faulty: FaultyFileSystem) -> None:
    config = LogConfig(cleanup_policy=frozenset({"compact"}), segment_ms=100_000, max_compaction_lag_ms=1000)
    log = open_log(faulty, "/t", config)
    for after in (0, 1000, 1001):
        append(log, keyed_batch(("k", "v"), timestamp=NOW + after))
    assert log.segment_base_offsets == [0, 2]
    log.update_config(replace(config, cleanup_policy=frozenset({"delete"})))
    append(log, keyed_batch(("k", "v"), timestamp=NOW + 9000))
    assert log.segment_base_offsets == [0, 2]
    log.close()


@pytest.mark.parametrize("checkpoint", [-5, 2, 11])
def test_a_checkpoint_outside_the_log_is_ignored(faulty: FaultyFileSystem, checkpoint: int) -> None:
    log = ten_segments(faulty, replace(SMALL, cleanup_policy=frozenset({"compact", "delete"})))
    assert log.delete_records_before(3) == 3
    log.cleaner_offset = checkpoint
    found = cleanable_of(log, NOW)
    assert (found.first_dirty_offset, found.is_checkpoint_wrong) == (3, True)
    compact(log)
    assert log.cleaner_offset == 10
    assert not cleanable_of(log, NOW).is_checkpoint_wrong
    log.close()
