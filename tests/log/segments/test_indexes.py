from __future__ import annotations

from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from kbroker.log.segments.aborted_index import AbortedIndex, AbortedTransaction, aborted_in_range
from kbroker.log.segments.offset_index import new_offset_index, position_at_or_below
from kbroker.log.segments.time_index import append_if_later, last_timestamp, new_time_index
from kbroker.testing.faulty_filesystem import FaultyFileSystem


def test_an_offset_index_entry_is_eight_bytes_big_endian() -> None:
    index = new_offset_index()
    index.append(7, 4100)
    index.append(70, 9000)
    assert index.encode() == pack(">iiii", 7, 4100, 70, 9000)
    assert index.encode(1) == pack(">ii", 70, 9000)


def test_a_time_index_entry_is_twelve_bytes_big_endian() -> None:
    index = new_time_index()
    index.append(1_700_000_000_000, 7)
    index.append(1_700_000_000_001, 9)
    assert index.encode() == pack(">qiqi", 1_700_000_000_000, 7, 1_700_000_000_001, 9)


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)), max_size=20))
def test_an_offset_index_survives_its_file(entries: list[tuple[int, int]]) -> None:
    index = new_offset_index()
    for key, value in entries:
        index.append(key, value)
    again = new_offset_index(index.encode())
    assert list(zip(again.keys, again.values, strict=True)) == entries
    assert again.written == len(entries)


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**31 - 1)), max_size=20))
def test_a_time_index_survives_its_file(entries: list[tuple[int, int]]) -> None:
    index = new_time_index()
    for key, value in entries:
        index.append(key, value)
    again = new_time_index(index.encode())
    assert list(zip(again.keys, again.values, strict=True)) == entries


def test_half_an_entry_at_the_end_of_a_file_is_left_out() -> None:
    assert len(new_offset_index(pack(">iii", 1, 2, 3))) == 1


def test_a_search_starts_at_the_entry_at_or_below_the_offset() -> None:
    index = new_offset_index(pack(">iiii", 10, 500, 20, 900))
    assert [position_at_or_below(index, offset) for offset in (0, 9, 10, 19, 20, 99)] == [0, 0, 500, 500, 900, 900]


def test_time_entries_only_grow() -> None:
    index = new_time_index()
    assert last_timestamp(index) == -1
    for timestamp in (-1, 5, 5, 3, 8):
        append_if_later(index, timestamp, timestamp)
    assert list(index.keys) == [5, 8]


def test_truncating_entries_that_are_in_the_file_rewrites_it() -> None:
    index = new_offset_index(pack(">iiii", 10, 500, 20, 900))
    index.truncate_values_from(901)
    assert index.written == 2
    index.truncate_values_from(900)
    assert list(index.keys) == [10]
    assert index.written == -1


def test_an_index_that_does_not_grow_is_not_sorted() -> None:
    assert new_offset_index(pack(">iiii", 10, 500, 20, 900)).is_sorted()
    assert not new_offset_index(pack(">iiii", 10, 500, 10, 900)).is_sorted()
    assert not new_offset_index(pack(">iiii", 10, 500, 20, 400)).is_sorted()


def test_an_aborted_transaction_is_found_by_every_range_that_meets_it(faulty: FaultyFileSystem) -> None:
    first, second = AbortedIndex(faulty, "/a"), AbortedIndex(faulty, "/b")
    early = AbortedTransaction(producer_id=1, first_offset=5, last_offset=20, last_stable_offset=8)
    late = AbortedTransaction(producer_id=2, first_offset=8, last_offset=30, last_stable_offset=31)
    other = AbortedTransaction(producer_id=3, first_offset=40, last_offset=50, last_stable_offset=51)
    first.append(early)
    first.append(late)
    second.append(other)
    assert first.write()
    assert not first.write()
    assert list(aborted_in_range([first, second], 0, 6)) == [early]
    assert list(aborted_in_range([first, second], 0, 60)) == [early, late, other]
    assert list(aborted_in_range([first, second], 21, 40)) == [late]
    assert list(aborted_in_range([first, second], 31, 40)) == []
    assert AbortedIndex(faulty, "/a").entries == [early, late]
    assert faulty.size("/a") == 2 * 34


def test_truncating_removes_the_aborts_whose_markers_are_removed(faulty: FaultyFileSystem) -> None:
    index = AbortedIndex(faulty, "/a")
    early = AbortedTransaction(1, 5, 20, 8)
    index.append(early)
    index.append(AbortedTransaction(2, 8, 30, 31))
    index.truncate_to(30)
    assert AbortedIndex(faulty, "/a").entries == [early]
