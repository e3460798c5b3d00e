"""The table of keys against a dict."""

from __future__ import annotations

from sys import getsizeof

import hypothesis.strategies as st
from hypothesis import given

from kbroker.log.cleaning.offset_map import BYTES_PER_KEY, OffsetMap, map_keys
from kbroker.protocol.record_batch import HEADER_SIZE, read_header
from kbroker.protocol.records import Record, build_batch

# Keys with equal parts: a search must not match the end of one entry and the beginning of the next.
ALIKE = st.integers(0, 20).map(bytes) | st.text("\0\x01\x0f", max_size=18).map(str.encode) | st.binary(max_size=50)


@given(st.lists(ALIKE), st.lists(ALIKE), st.sampled_from([1, 25, 100, 100_000]))
def test_it_behaves_as_a_dict_from_key_to_newest_offset(keys: list[bytes], others: list[bytes], capacity: int) -> None:
    offset_map = OffsetMap(capacity)
    model = {key: offset for offset, key in enumerate(keys)}
    for offset, key in enumerate(keys):
        offset_map.put(key, offset)
    assert offset_map.size == len(model)
    for key in (*keys, *others):
        assert offset_map.get(key) == model.get(key, -1)


def test_a_key_is_not_found_across_two_entries() -> None:
    offset_map = OffsetMap(10)
    keys = [b"a" * 15, b"x" * 14 + b"\x0f", b"\x0f" + b"x" * 14]
    for offset, key in enumerate(keys):
        assert offset_map.get(key) == -1
        offset_map.put(key, offset)
    assert [offset_map.get(key) for key in keys] == [0, 1, 2]
    assert len(offset_map._digests) == 1


def test_many_keys_need_little_more_than_24_bytes_per_key() -> None:
    offset_map = OffsetMap(20_000)
    keys = [b"customer-%d" % number for number in range(20_000)]
    for offset, key in enumerate(keys):
        offset_map.put(key, offset)
    for offset, key in enumerate(keys[:5000]):
        offset_map.put(key, 20_000 + offset)
    assert offset_map.size == offset_map.capacity == 20_000
    assert [offset_map.get(key) for key in keys] == [*range(20_000, 25_000), *range(5000, 20_000)]
    lists = (offset_map._digests, offset_map._offsets)
    used_bytes = sum(getsizeof(item) for buckets in lists for item in (buckets, *buckets))
    assert used_bytes < 1.25 * BYTES_PER_KEY * 20_000
    assert sum(len(shard or ()) for shard in offset_map._shards) < 500  # of 20,000 keys; they move when they are set


def test_keys_stay_in_dicts_while_the_memory_is_enough() -> None:
    offset_map = OffsetMap(1000, max_bytes=1 << 20)
    for number in range(1000):
        offset_map.put(b"%d" % number, number)
    assert [offset_map.get(b"%d" % number) for number in range(1000)] == list(range(1000))
    assert offset_map._digests == [None] * len(offset_map._digests)


@given(
    st.lists(st.lists(st.none() | ALIKE, min_size=1, max_size=5), max_size=8),
    st.sampled_from([1, 2]),
    st.integers(0, 10),
    st.sampled_from([1, 5, 100]),
)
def test_a_process_of_its_own_maps_whole_batches_to_the_same_result(
    batches: list[list[bytes | None]], step: int, start: int, capacity: int
) -> None:
    maps = [OffsetMap(capacity, max_bytes=100_000, is_alone=is_alone) for is_alone in (False, True)]
    base_offset = 0
    for keys in batches:
        records = [Record(base_offset + step * number, 0, key, None, ()) for number, key in enumerate(keys)]
        batch = bytes(build_batch(records, base_offset=base_offset))
        header = read_header(batch)
        fits, also_fits = (map_keys(table, batch[HEADER_SIZE:], header, start, lambda: None) for table in maps)
        assert fits == also_fits
        if not fits:
            break
        base_offset = header.last_offset + 1
    assert maps[0].size == maps[1].size
    for key in {key for keys in batches for key in keys if key is not None}:
        assert maps[0].get(key) == maps[1].get(key)
