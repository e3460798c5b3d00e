"""Compaction: which records and files of a log stay."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kbroker.errors import StorageFailure
from kbroker.log.cleaning.compaction import Compaction, Limits
from kbroker.log.files.file_slice import FileSlice
from kbroker.log.files.filesystem import FileSystem
from kbroker.log.log_compaction import cleanable_of, plan_compaction, replace_segments
from kbroker.log.log_config import LogConfig
from kbroker.log.open_log import OpenLog
from kbroker.log.segments.segment import Segment
from kbroker.protocol.compression import Codec
from kbroker.protocol.error_codes import ErrorCode
from kbroker.protocol.record_batch import InvalidBatch, restamp
from kbroker.testing.faulty_filesystem import FaultyFileSystem
from tests.log.batches import (
    NOW,
    append,
    append_as_leader,
    make_batch,
    make_marker,
    open_log,
    read_bytes,
    read_headers,
    remove_deleted,
)
from tests.log.compacting import SMALL, NoPace, compact, keyed_batch, pairs_of, records_of, seal, segments_of

Place = tuple[FileSystem, str]
BIG = LogConfig(
    cleanup_policy=frozenset({"compact"}), delete_retention_ms=1000, file_delete_delay_ms=0, index_interval_bytes=100
)


def filled(place: Place, config: LogConfig = BIG, *batches: Sequence[tuple[str, str | None]]) -> OpenLog:
    log = open_log(*place, config)
    for batch in batches:
        append(log, keyed_batch(*batch))
    seal(log)
    return log


def test_the_newest_value_of_each_key_stays_where_it_was(place: Place) -> None:
    log = filled(place, BIG, [("a", "1"), ("b", "1"), ("a", "2")], [("b", "2"), ("c", "1")])
    append(log, keyed_batch(("c", "in the active segment")))
    compact(log)
    assert pairs_of(log) == [(2, "a", "2"), (3, "b", "2"), (4, "c", "1"), (5, "c", "in the active segment")]
    first, *_ = read_headers(log)
    assert (first.base_offset, first.last_offset, first.record_count) == (0, 2, 1)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset, log.cleaner_offset) == (0, 6, 6, 5)
    log.close()


def test_a_compacted_log_is_the_same_after_a_restart(place: Place) -> None:
    log = filled(place, SMALL, *([(f"k{number % 3}", "x" * 50)] for number in range(30)))
    for _ in range(2):
        compact(log)
        append(log, keyed_batch(("k0", "y" * 100)))
        seal(log)
    found, bases = pairs_of(log), log.segment_base_offsets
    log.close()
    for is_clean in (True, False):
        again = open_log(*place, SMALL, is_clean=is_clean, high_watermark=99)
        assert (pairs_of(again), again.segment_base_offsets) == (found, bases)
        assert not again.was_shortened
        again.close()


def test_small_segments_become_one_and_none_grows_beyond_its_bound(place: Place) -> None:
    log = filled(place, SMALL, *([(f"k{number}", "x" * 20)] for number in range(100)))
    log.update_config(BIG)
    before = pairs_of(log)
    assert len(log.segment_base_offsets) > 20
    compact(log)
    assert log.segment_base_offsets == [0, 100]
    assert pairs_of(log) == before
    log.update_config(SMALL)
    for _ in range(100):
        append(log, keyed_batch(("k", "x" * 20)))
    seal(log)
    compact(log)
    assert all(log.segments[number].ensure_size() <= 400 for number in range(1, len(log.segment_base_offsets)))
    log.close()


def test_no_more_than_32_segments_are_swapped_at_a_time(faulty: FaultyFileSystem) -> None:
    log = filled((faulty, "/t"), SMALL, *([(f"k{number}", "x" * 300)] for number in range(70)))
    log.update_config(BIG)
    compact(log)
    assert log.segment_base_offsets == [0, 32, 64, 70]
    log.close()


def test_a_group_stays_within_the_bounds_of_the_indexes(faulty: FaultyFileSystem) -> None:
    small_index = LogConfig(
        segment_bytes=1 << 20, index_interval_bytes=0, segment_index_bytes=60, cleanup_policy=frozenset({"compact"})
    )
    log = filled((faulty, "/t"), small_index, *([(f"k{number}", "x")] for number in range(30)))
    compact(log)
    assert pairs_of(log)[-1][0] == 29
    for segment in log.segments.from_number(0)[:-1]:
        assert faulty.size(segment.index_files.paths[0]) <= 60
        assert faulty.size(segment.index_files.paths[1]) <= 60
    log.close()


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_compressed_batches_are_rewritten_only_if_they_lose_records(place: Place, codec: int) -> None:
    log = open_log(*place, BIG)
    append(log, keyed_batch(("a", "old"), ("b", "1"), codec=codec))
    append(log, keyed_batch(("a", "new"), ("c", "1"), codec=codec))
    seal(log)
    untouched = read_bytes(log, 2)
    compact(log)
    assert pairs_of(log) == [(1, "b", "1"), (2, "a", "new"), (3, "c", "1")]
    first, second = read_headers(log)
    assert (first.codec, first.record_count, first.base_offset, first.last_offset) == (codec, 1, 0, 1)
    assert second.codec == codec
    assert read_bytes(log, 2) == untouched
    log.close()


def test_timestamps_stay_and_the_max_timestamp_is_updated(place: Place) -> None:
    log = open_log(*place, BIG)
    append(log, keyed_batch(("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), timestamp=NOW))
    append(log, keyed_batch(("c", "2"), timestamp=NOW - 500))
    seal(log)
    compact(log)
    assert [(record.offset, record.timestamp) for record in records_of(log)] == [
        (1, NOW + 1),
        (2, NOW + 2),
        (4, NOW - 500),
    ]
    first, _second = read_headers(log)
    assert first.max_timestamp == NOW + 2
    for timestamp, offset in ((NOW - 999, 1), (NOW + 1, 1), (NOW + 2, 2)):
        found = log.offset_for_timestamp(timestamp)
        assert found is not None
        assert found.offset == offset
    assert log.offset_for_timestamp(NOW + 3) is None
    largest = log.offset_of_max_timestamp()
    assert largest is not None
    assert (largest.offset, largest.timestamp) == (2, NOW + 2)
    log.close()


def test_log_append_time_stays_the_time_of_the_append(place: Place) -> None:
    config = LogConfig(cleanup_policy=frozenset({"compact"}), message_timestamp_type="LogAppendTime")
    log = open_log(*place, config)
    append(log, keyed_batch(("a", "1"), ("b", "1"), timestamp=5), now_ms=NOW)
    append(log, keyed_batch(("a", None), ("c", "1"), timestamp=5), now_ms=NOW + 7)
    seal(log)
    compact(log)
    assert [(record.offset, record.timestamp) for record in records_of(log)] == [(1, NOW), (2, NOW + 7), (3, NOW + 7)]
    log.close()


def test_a_read_at_a_removed_offset_returns_the_next_batch(place: Place) -> None:
    log = filled(place, SMALL, *([("a", "x" * 100)] for _ in range(20)), [("b", "1")])
    compact(log)
    assert [pair[0] for pair in pairs_of(log, 3)] == [19, 20]
    assert log.read(21, 1 << 20) is None
    assert log.read(22, 1 << 20) is ErrorCode.OFFSET_OUT_OF_RANGE
    log.close()


def test_slices_of_segments_that_were_replaced_can_be_read_to_their_end(place: Place) -> None:
    log = filled(place, BIG, [("a", "old")], [("a", "new")])
    piece = log.read(0, 1 << 20)
    assert isinstance(piece, FileSlice)
    compact(log)
    filesystem, path = place
    remove_deleted(log, filesystem, NOW + 1)
    assert piece.is_valid()
    assert b"old" in piece.read()
    piece.release()
    remove_deleted(log, filesystem, NOW + 1)
    assert not [name for name in filesystem.list_names(path) if name.endswith(".deleted")]
    log.close()


# Tombstones


def test_a_tombstone_is_removed_only_after_its_delete_horizon(place: Place) -> None:
    log = filled(place, BIG, [("a", "1"), ("b", "1")], [("a", None)])
    compact(log, NOW)
    assert pairs_of(log) == [(1, "b", "1"), (2, "a", None)]
    tombstone = read_headers(log)[-1]
    assert tombstone.has_delete_horizon
    assert tombstone.base_timestamp == NOW + 1000
    assert [record.timestamp for record in records_of(log)] == [NOW + 1, NOW]

    def compact_again(now_ms: int) -> None:
        append(log, keyed_batch(("other", "x")))
        seal(log)
        compact(log, now_ms)

    compact_again(NOW + 999)
    assert (2, "a", None) in pairs_of(log)
    assert read_headers(log, 2)[0].base_timestamp == NOW + 1000
    compact_again(NOW + 1000)
    assert [key for _offset, key, _value in pairs_of(log)] == ["b", "other"]
    log.close()


def test_tombstones_can_be_kept_for_ever(place: Place) -> None:
    """The largest value of the config is Kafka's `Long.MAX_VALUE`, the last timestamp that a batch can have."""
    latest = (1 << 63) - 1
    config = replace(BIG, delete_retention_ms=latest)
    log = filled(place, config, [("a", "1"), ("b", "1")], [("a", None)])
    compact(log, NOW)
    append(log, keyed_batch(("other", "x")))
    seal(log)
    compact(log, NOW + 10**15)
    assert (2, "a", None) in pairs_of(log)
    tombstone = read_headers(log, 2)[0]
    assert (tombstone.has_delete_horizon, tombstone.base_timestamp) == (True, latest)
    assert [record.timestamp for record in records_of(log)][:2] == [NOW + 1, NOW]
    log.close()


def test_a_tombstone_without_older_records_stays_until_its_delete_horizon(place: Place) -> None:
    log = filled(place, BIG, [("a", None)], [("a", "back")])
    compact(log)
    assert pairs_of(log) == [(1, "a", "back")]
    log.close()


def test_records_without_a_key_are_removed(place: Place) -> None:
    """They are from the time before the topic was compacted."""
    log = open_log(*place)
    append(log, make_batch(b"1", b"2", key=None))
    append(log, make_batch(b"3", key=b"k"))
    seal(log)
    log.update_config(BIG)
    compact(log)
    assert [record.offset for record in records_of(log)] == [2]
    log.close()


# Producers and transactions


def test_the_last_batch_of_each_producer_stays_even_if_it_is_empty(place: Place) -> None:
    log = open_log(*place, BIG)
    for sequence in range(3):
        append(log, keyed_batch(("a", "x"), producer_id=7, epoch=2, sequence=sequence))
    append(log, keyed_batch(("a", "y"), ("b", "y")))
    seal(log)
    compact(log)
    empty, _data = read_headers(log)
    assert (empty.base_offset, empty.last_offset, empty.record_count) == (2, 2, 0)
    assert (empty.producer_id, empty.producer_epoch, empty.base_sequence) == (7, 2, 2)
    filesystem, path = place
    log.close()
    for name in filesystem.list_names(path):
        if name.endswith(".snapshot"):
            filesystem.remove(f"{path}/{name}")
    again = open_log(*place, BIG, high_watermark=99)
    retry = append_as_leader(again, keyed_batch(("a", "x"), producer_id=7, epoch=2, sequence=2), 0, NOW)
    assert retry.is_duplicate
    assert append_as_leader(again, keyed_batch(("a", "z"), producer_id=7, epoch=2, sequence=3), 0, NOW).error == 0
    again.close()


def test_the_last_batch_of_the_compacted_part_stays(place: Place) -> None:
    log = filled(place, BIG, [("a", "1")], [("b", None)])
    compact(log, NOW)
    append(log, keyed_batch(("a", "2")))
    log.roll(NOW)
    log.flush(NOW)
    compact(log, NOW + 5000)
    assert [(header.base_offset, header.record_count) for header in read_headers(log)] == [(2, 1)]
    append(log, keyed_batch(("c", None)))
    seal(log)
    compact(log, NOW + 9000)
    compact_at_end = read_headers(log)[-1]
    assert compact_at_end.last_offset + 1 == log.log_end_offset
    log.close()


def transactional_log(place: Place) -> OpenLog:
    log = open_log(*place, BIG)
    append(log, keyed_batch(("a", "committed"), producer_id=1, transactional=True))
    append(log, keyed_batch(("a", "aborted"), ("b", "aborted"), producer_id=2, transactional=True))
    append(log, make_marker(1, commit=True), internal=True)
    append(log, make_marker(2, commit=False), internal=True)
    return log


def test_aborted_records_are_removed_and_replace_no_other_records(place: Place) -> None:
    log = transactional_log(place)
    append(log, keyed_batch(("c", "plain")))
    seal(log)
    compact(log)
    assert pairs_of(log) == [(0, "a", "committed"), (5, "c", "plain")]
    kinds = [(header.base_offset, header.is_control, header.record_count) for header in read_headers(log)]
    # Producer 2's last data stays as an empty batch, so its marker and its abort are still needed.
    assert kinds == [(0, False, 1), (1, False, 0), (3, True, 1), (4, True, 1), (5, False, 1)]
    assert [aborted.producer_id for aborted in log.aborted_transactions(0, 6)] == [2]
    log.close()
    again = open_log(*place, BIG, high_watermark=99)
    assert [aborted.producer_id for aborted in again.aborted_transactions(0, 6)] == [2]
    assert again.last_stable_offset == again.log_end_offset
    again.close()


def test_markers_are_removed_without_their_transactions_batches_after_the_delete_horizon(place: Place) -> None:
    log = transactional_log(place)
    append(log, keyed_batch(("a", "newer")))
    seal(log)
    log.producers.entries.clear()  # as if they had expired
    compact(log, NOW)
    assert pairs_of(log) == [(5, "a", "newer")]
    # The records went in this round: markers see that in the next one.
    for now_ms, markers, has_horizon in ((NOW + 1, [3, 4], True), (NOW + 1000, [3, 4], True), (NOW + 1001, [], False)):
        append(log, keyed_batch(("a", "newer still")))
        seal(log)
        compact(log, now_ms)
        found = [header for header in read_headers(log) if header.is_control]
        assert [header.base_offset for header in found] == markers
        assert all(header.has_delete_horizon == has_horizon for header in found)
    assert log.aborted_transactions(0, 99) == []
    log.close()


def test_an_open_transaction_is_not_compacted(place: Place) -> None:
    log = open_log(*place, BIG)
    append(log, keyed_batch(("a", "1")))
    seal(log)
    append(log, keyed_batch(("a", "2"), producer_id=1, transactional=True))
    seal(log)
    append(log, keyed_batch(("a", "3")))
    seal(log)
    assert cleanable_of(log, NOW).first_uncleanable_offset == 1
    compact(log)
    assert [pair[0] for pair in pairs_of(log)] == [0, 1, 2]
    log.close()


# Bounds


def test_a_small_buffer_needs_several_rounds_for_the_same_result(faulty: FaultyFileSystem) -> None:
    rng = random.Random(3)
    pairs = [(f"key{rng.randrange(40)}", str(number)) for number in range(400)]
    log = filled((faulty, "/t"), SMALL, *([pairs[at], pairs[at + 1]] for at in range(0, 400, 2)))
    newest = {key: (offset, key, value) for offset, (key, value) in enumerate(pairs)}
    limits = Limits(dedupe_buffer_size=24 * 10, load_factor=1.0, io_buffer_size=100)
    rounds = 0
    while cleanable_of(log, NOW).cleanable_bytes:
        compact(log, limits=limits)
        rounds += 1
    assert rounds > 3
    assert pairs_of(log) == sorted(newest.values())
    log.close()


def test_records_after_the_mapped_keys_are_left_for_the_next_round(faulty: FaultyFileSystem) -> None:
    log = open_log(faulty, "/t")
    for number in range(4):
        append(log, make_batch(b"1", key=b"k%d" % number))
        append(log, make_batch(b"1", key=None))
    seal(log)
    log.update_config(BIG)
    two_keys = Limits(dedupe_buffer_size=48, load_factor=1.0)
    for left in ([0, 2, 4, 5, 6, 7], [0, 2, 4, 6]):
        compact(log, limits=two_keys)
        assert [record.offset for record in records_of(log)] == left
    log.close()


def test_a_batch_with_more_keys_than_the_buffer_holds_is_an_error(faulty: FaultyFileSystem) -> None:
    log = filled((faulty, "/t"), BIG, [(f"k{number}", "x") for number in range(50)])
    with pytest.raises(InvalidBatch, match="do not fit into 240 bytes"):
        compact(log, limits=Limits(dedupe_buffer_size=240, load_factor=1.0))
    log.close()


def test_batches_larger_than_the_buffers_are_read_whole(place: Place) -> None:
    log = filled(place, BIG, [("a", "x" * 20_000)], [("b", "y" * 30_000)], [("a", "z" * 25_000)])
    compact(log, limits=Limits(io_buffer_size=64))
    assert [(offset, key, len(value or "")) for offset, key, value in pairs_of(log)] == [
        (1, "b", 30_000),
        (2, "a", 25_000),
    ]
    log.close()


@pytest.mark.parametrize("where", ["header", "length", "record", "cut off"])
def test_damaged_batches_are_reported_and_the_log_stays_unchanged(faulty: FaultyFileSystem, where: str) -> None:
    log = filled((faulty, "/t"), BIG, [("a", "1")], [("a", "2")])
    path = f"/t/{0:020d}.log"
    content = bytearray(faulty.read(path))
    size = read_headers(log)[0].size
    if where == "cut off":
        del content[size + 20 :]
    else:
        content[size + {"header": 16, "length": 9, "record": 65}[where]] ^= 0x55
    faulty.replace(path, bytes(content))
    names = sorted(faulty.list_names("/t"))
    with pytest.raises(InvalidBatch):
        compact(log)
    assert sorted(faulty.list_names("/t")) == names
    assert faulty.read(path) == content
    log.close()


def test_a_full_disk_leaves_the_log_as_it_was(faulty: FaultyFileSystem) -> None:
    log = filled((faulty, "/t"), BIG, [("a", "1"), ("b", "1")], [("a", "2")])
    names = sorted(faulty.list_names("/t"))
    for room in (0, 1, 80, 140):
        faulty.free_bytes = room
        with pytest.raises(StorageFailure) as caught:
            compact(log)
        assert caught.value.is_full
        assert sorted(faulty.list_names("/t")) == names
        assert pairs_of(log) == [(0, "a", "1"), (1, "b", "1"), (2, "a", "2")]
    faulty.free_bytes = None
    compact(log)
    assert pairs_of(log) == [(1, "b", "1"), (2, "a", "2")]
    log.close()


# Changes of the log during a round


def test_segments_that_were_removed_are_not_replaced(place: Place) -> None:
    both = LogConfig(
        segment_bytes=200, cleanup_policy=frozenset({"compact", "delete"}), retention_bytes=0, file_delete_delay_ms=0
    )
    log = filled(place, both, *([("a", "x" * 100)] for _ in range(6)))
    compaction = Compaction(plan_compaction(log, cleanable_of(log, NOW), NOW, Limits()), NoPace())
    compaction.build_map()
    group, *_ = compaction.groups()
    cleaned = compaction.write_cleaned(group)
    segments = segments_of(log, group)
    assert log.apply_retention(NOW) > 0
    assert not replace_segments(log, segments, cleaned, NOW)
    cleaned.discard()
    filesystem, path = place
    assert not [name for name in filesystem.list_names(path) if name.endswith((".cleaned", ".swap"))]
    log.close()


def test_the_active_segment_is_never_replaced(place: Place) -> None:
    log = filled(place, BIG, [("a", "1")])
    segments: list[Segment] = log.segments.from_number(0)
    assert log.segments.find_run(segments[:1]) == 0
    assert log.segments.find_run(segments) is None
    log.close()


def test_truncation_lowers_the_cleaner_offset(place: Place) -> None:
    log = filled(place, SMALL, *([("a", "x" * 100)] for _ in range(9)))
    compact(log)
    assert log.cleaner_offset == 9
    log.truncate_to(4)
    assert log.cleaner_offset == 4
    assert log.log_end_offset == 4
    for _ in range(5):
        append(log, keyed_batch(("a", "y" * 100)))
    seal(log)
    compact(log)
    assert pairs_of(log) == [(8, "a", "y" * 100)]
    log.close()


def test_a_follower_accepts_gaps_and_continues_to_compact(place: Place) -> None:
    log = open_log(*place, SMALL)
    for offset in (0, 5, 6, 40, 41, 90, 200, 300):
        batch = keyed_batch(("a", f"{offset}" + "x" * 60))
        restamp(batch, 0, offset, 0)
        if offset == 300:
            log.roll(NOW, base_offset=300)
        log.append_as_follower(batch)
    log.set_high_watermark(301)
    log.flush(NOW)
    compact(log)
    assert [pair[0] for pair in pairs_of(log)] == [200, 300]
    assert log.cleaner_offset == 300  # though its last batch ended before
    assert not cleanable_of(log, NOW).cleanable_bytes
    log.close()
