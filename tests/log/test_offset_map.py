"""The table of keys against a dict."""

from __future__ import annotations

from sys import getsizeof

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
    assert len(offset_map._digests) == 1


def test_many_keys_take_little_more_than_24_bytes_each() -> None:
    offset_map = OffsetMap(20_000)
    keys = [b"customer-%d" % number for number in range(20_000)]
    for offset, key in enumerate(keys):
        offset_map.put(key, offset)
    for offset, key in enumerate(keys[:5000]):
        offset_map.put(key, 20_000 + offset)
    assert offset_map.size == offset_map.capacity == 20_000
    assert [offset_map.get(key) for key in keys] == [*range(20_000, 25_000), *range(5000, 20_000)]
    lists = (offset_map._digests, offset_map._offsets)
    room = sum(getsizeof(each) for every in lists for each in (every, *every))
    assert room < 1.25 * BYTES_PER_KEY * 20_000
