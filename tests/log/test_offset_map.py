"""The table of keys against a dict."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from kbroker.log.offset_map import BYTES_PER_KEY, OffsetMap

# Keys that look alike in parts, for the end of one entry and the beginning of the next lie side by side.
ALIKE = st.integers(0, 20).map(bytes) | st.text("\0\x01\x0f", max_size=18).map(str.encode) | st.binary(max_size=40)


@given(st.lists(ALIKE), st.lists(ALIKE))
def test_it_is_a_dict_from_key_to_newest_offset(keys: list[bytes], others: list[bytes]) -> None:
    offset_map = OffsetMap(100_000)
    model = {key: offset for offset, key in enumerate(keys)}
    for offset, key in enumerate(keys):
        offset_map.put(key, offset)
    assert offset_map.size == len(model)
    for key in (*keys, *others):
        assert offset_map.get(key) == model.get(key, -1)


def test_two_entries_side_by_side_are_no_third() -> None:
    offset_map = OffsetMap(10)
    keys = [b"a" * 15, b"x" * 14 + b"\x0f", b"\x0f" + b"x" * 14]
    for offset, key in enumerate(keys):
        assert offset_map.get(key) == -1
        offset_map.put(key, offset)
    assert [offset_map.get(key) for key in keys] == [0, 1, 2]
    assert len(offset_map._counts) == 1


def test_full_buckets_spill_and_nothing_is_lost() -> None:
    offset_map = OffsetMap(10_000, load_factor=1.0)
    keys = [b"customer-%d" % number for number in range(10_000)]
    for offset, key in enumerate(keys):
        offset_map.put(key, offset)
    for offset, key in enumerate(keys[:5000]):
        offset_map.put(key, 20_000 + offset)
    assert offset_map.is_full
    assert offset_map.size == 10_000
    assert 0 < len(offset_map._spilled) < 1500
    assert [offset_map.get(key) for key in keys] == [*range(20_000, 25_000), *range(5000, 10_000)]


def test_its_memory_is_known_beforehand() -> None:
    offset_map = OffsetMap(100_000, load_factor=0.9)
    room = len(offset_map._table) + len(offset_map._offsets) * 8
    assert room < 1.01 * BYTES_PER_KEY * 100_000 / 0.9
