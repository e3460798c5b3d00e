"""Swaps of compacted segments that crash at every change of a file, and swaps that Kafka has not completed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kbroker.log.log_config import LogConfig
from kbroker.testing.faulty_filesystem import FaultyFileSystem
from tests.log.batches import NOW, append, make_marker, open_log
from tests.log.compacting import SMALL, compact, keyed_batch, pairs_of, seal
from tests.log.crashing import Crashed, CrashingFileSystem

PATH = "/t-0"
GROUPED = replace(SMALL, segment_bytes=1 << 20)


def prepared(filesystem: FaultyFileSystem) -> list[tuple[int, str, str | None]]:
    log = open_log(filesystem, PATH, SMALL)
    for number in range(12):
        append(log, keyed_batch((f"k{number % 4}", f"{number}" + "x" * 100)))
    append(log, keyed_batch(("k0", "aborted"), producer_id=3, transactional=True))
    append(log, make_marker(3, commit=False), internal=True)
    append(log, keyed_batch(("last", "one")))
    seal(log)
    before = pairs_of(log)
    log.close()
    return before


@pytest.mark.parametrize("is_power_lost", [False, True])
def test_a_crash_at_any_change_leaves_the_old_segments_or_the_new_one(is_power_lost: bool) -> None:
    outcomes = set()
    for changes in range(200):
        filesystem = CrashingFileSystem()
        before = prepared(filesystem)
        log = open_log(filesystem, PATH, GROUPED, recovery_point=15, high_watermark=15)
        filesystem.changes, filesystem.crash_at = 0, changes + 1
        try:
            compact(log)
            has_ended = True
        except Crashed:
            has_ended = False
        filesystem.crash_at = None
        if is_power_lost:
            filesystem.crash()
        else:
            filesystem.kill()
        again = open_log(filesystem, PATH, GROUPED, is_clean=False, recovery_point=15, high_watermark=15)
        found = pairs_of(again)
        after = [pair for pair in before if pair[0] in (8, 9, 10, 11, 14)]
        assert found in (before, after)
        assert (again.log_end_offset, again.high_watermark) == (15, 15)
        assert not again.was_shortened
        assert not [name for name in filesystem.list_names(PATH) if name.endswith((".swap", ".cleaned", ".deleted"))]
        if found == after:
            assert again.segment_base_offsets == [0, 15]
        for offset in range(15):
            assert pairs_of(again, offset) == [pair for pair in found if pair[0] >= offset]
        outcomes.add(found == after)
        again.close()
        if has_ended:
            break
    assert has_ended
    assert outcomes == {False, True}


def test_incomplete_cleaned_files_are_deleted_at_the_start(faulty: FaultyFileSystem) -> None:
    before = prepared(faulty)
    for suffix in (".log", ".index", ".timeindex", ".txnindex"):
        faulty.replace(f"{PATH}/{0:020d}{suffix}.cleaned", b"half of it")
    log = open_log(faulty, PATH, SMALL, high_watermark=15)
    assert pairs_of(log) == before
    assert not [name for name in faulty.list_names(PATH) if name.endswith(".cleaned")]
    log.close()


def test_a_swap_that_renamed_only_the_log_is_completed(faulty: FaultyFileSystem) -> None:
    before = prepared(faulty)
    for suffix in (".index", ".timeindex"):
        faulty.rename(f"{PATH}/{0:020d}{suffix}", f"{PATH}/{0:020d}{suffix}.swap")
    log = open_log(faulty, PATH, SMALL, high_watermark=15)
    assert pairs_of(log) == before
    assert faulty.exists(f"{PATH}/{0:020d}.index")
    log.close()


def test_segments_after_the_last_batch_of_a_swap_stay(faulty: FaultyFileSystem) -> None:
    """The compacted segment ends at 5; the end of the segments that it replaces is not known."""
    log = open_log(faulty, PATH, SMALL)
    for number in range(9):
        append(log, keyed_batch(("k", f"{number}" + "x" * 100)))
    seal(log)
    bases = log.segment_base_offsets
    assert bases == [0, 2, 4, 6, 8, 9]
    log.close()
    faulty.rename(f"{PATH}/{4:020d}.log", f"{PATH}/{0:020d}.log.swap")
    again = open_log(faulty, PATH, SMALL, high_watermark=15)
    assert again.segment_base_offsets == [0, 6, 8, 9]
    assert [pair[0] for pair in pairs_of(again)] == [4, 5, 6, 7, 8]
    again.close()


def test_gaps_in_the_compacted_part_are_not_a_loss(faulty: FaultyFileSystem) -> None:
    log = open_log(faulty, PATH, SMALL)
    for number in range(9):
        append(log, keyed_batch(("k", f"{number}" + "x" * 100)))
    seal(log)
    compact(log)
    found, cleaner_offset = pairs_of(log), log.cleaner_offset
    assert [pair[0] for pair in found] == [8]
    faulty.kill()
    deleted = LogConfig(segment_bytes=400)
    again = open_log(faulty, PATH, deleted, is_clean=False, high_watermark=9, cleaner_offset=cleaner_offset)
    assert pairs_of(again) == found
    assert not again.was_shortened
    again.close()


def test_an_emptied_segment_keeps_the_modification_time(faulty: FaultyFileSystem) -> None:
    """Otherwise compact,delete would keep the segment forever."""
    faulty.now_ms = 1234
    log = open_log(faulty, PATH, SMALL)
    for _ in range(9):
        append(log, keyed_batch(("k", "x" * 300)))
    seal(log)
    faulty.now_ms = NOW
    compact(log)
    assert faulty.modified_ms(f"{PATH}/{0:020d}.log") == 1234
    log.close()
