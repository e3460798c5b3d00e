"""Frames come out as they went in, however the stream is cut; anything else is a PeerError; memory stays bounded."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.errors import PeerError
from kbroker.protocol.framing import BASE_BUFFER_SIZE, ENOUGH, GRANULE, GROWTH, READ_SIZE, SMALL, WHOLE, FrameReader

MAX_FRAME_SIZE = 4 * 1024 * 1024


class Budget:
    def __init__(self, limit: int = 2**40) -> None:
        self.limit = limit
        self.used = 0
        self.tight = False

    def try_reserve(self, size: int, kind: int) -> bool:
        if self.used + size > self.limit:
            return False
        self.used += size
        return True

    def change_kind(self, size: int, old: int, new: int) -> None:
        assert old != new
        assert 0 < size <= self.used

    def release(self, size: int, kind: int) -> None:
        self.used -= size
        assert self.used >= 0

    def is_tight(self) -> bool:
        return self.tight


def make_reader(budget: Budget | None = None, *, poison: bool = True) -> FrameReader:
    return FrameReader(budget or Budget(), max_frame_size=MAX_FRAME_SIZE, poison=poison)


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def feed(reader: FrameReader, stream: bytes, *, read_size: int = READ_SIZE, limit: int = 64) -> list[bytes]:
    """What a connection does: fill what is free, take what is complete, until the stream is used up."""
    taken: list[bytes] = []
    position = 0
    while position < len(stream) or reader.is_unfinished:
        if not reader.is_unfinished:
            view = reader.free_view()
            assert view is not None
            assert 0 < len(view) <= READ_SIZE
            chunk = stream[position : position + min(read_size, len(view))]
            view[: len(chunk)] = chunk
            reader.received(len(chunk))
            position += len(chunk)
        frames = reader.take_frames(limit)
        assert len(frames) <= limit
        taken += map(bytes, frames)
        reader.finish_run()
    return taken


@given(
    bodies=st.lists(st.integers(0, 40_000).map(lambda size: bytes([size % 251]) * size), max_size=12),
    read_size=st.integers(1, 50_000),
    limit=st.integers(1, 8),
)
@settings(max_examples=150, deadline=None)
def test_frames_come_out_as_they_went_in_however_the_stream_is_cut(
    bodies: list[bytes], read_size: int, limit: int
) -> None:
    stream = b"".join(map(frame, bodies))
    read_size = max(read_size, len(stream) // 300)
    assert feed(make_reader(), stream, read_size=read_size, limit=limit) == bodies


def test_single_bytes_make_frames() -> None:
    bodies = [b"", b"a", b"bc" * 50]
    assert feed(make_reader(), b"".join(map(frame, bodies)), read_size=1) == bodies


def test_a_frame_of_several_megabytes_between_small_ones() -> None:
    bodies = [b"small", bytes(range(256)) * 12_000, b"after", b"x" * MAX_FRAME_SIZE, b"end"]
    assert feed(make_reader(), b"".join(map(frame, bodies))) == bodies


@given(chunks=st.lists(st.binary(max_size=200), max_size=30))
@settings(max_examples=300, deadline=None)
def test_whatever_arrives_only_peer_error_is_raised_and_memory_is_bounded(chunks: list[bytes]) -> None:
    budget = Budget(limit=1_000_000)
    reader = make_reader(budget)
    received = 0
    try:
        for chunk in chunks:
            view = reader.free_view()
            if view is None:
                break
            view[: len(chunk)] = chunk
            reader.received(len(chunk))
            received += len(chunk)
            for taken in reader.take_frames(64):
                assert len(taken) <= received
            reader.finish_run()
            assert reader.capacity <= BASE_BUFFER_SIZE + reader.reserved
            assert reader.reserved == budget.used <= budget.limit
    except PeerError:
        pass
    reader.close()
    assert budget.used == 0


@pytest.mark.parametrize("length", [-1, -(2**31), MAX_FRAME_SIZE + 1, 2**31 - 1])
def test_an_impossible_length_is_refused_before_anything_is_reserved(length: int) -> None:
    budget = Budget()
    reader = make_reader(budget)
    with pytest.raises(PeerError, match=f"invalid frame length of {length} bytes"):
        feed(reader, struct.pack(">i", length))
    assert (budget.used, reader.capacity) == (0, BASE_BUFFER_SIZE)


@pytest.mark.parametrize(
    ("hello", "says"), [(b"GET / HTTP/1.1\r\n", "HTTP"), (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS")]
)
def test_the_wrong_protocol_is_named(hello: bytes, says: str) -> None:
    reader = FrameReader(Budget(), max_frame_size=100 * 1024 * 1024)
    with pytest.raises(PeerError, match=says):
        feed(reader, hello)


def test_frames_before_an_impossible_length_are_taken_first() -> None:
    reader = make_reader()
    view = reader.free_view()
    assert view is not None
    stream = frame(b"good") + b"\xff\xff\xff\xff"
    view[: len(stream)] = stream
    reader.received(len(stream))
    assert [bytes(taken) for taken in reader.take_frames(64)] == [b"good"]
    assert reader.is_unfinished
    reader.finish_run()
    with pytest.raises(PeerError):
        reader.take_frames(64)


def test_a_large_length_reserves_nothing_before_its_bytes_arrive() -> None:
    budget = Budget()
    reader = make_reader(budget)
    feed(reader, struct.pack(">i", MAX_FRAME_SIZE) + b"ab")
    assert reader.free_view() is not None
    assert (budget.used, reader.capacity) == (0, BASE_BUFFER_SIZE)


@given(size=st.integers(1, MAX_FRAME_SIZE), read_size=st.integers(2000, READ_SIZE))
@settings(max_examples=30, deadline=None)
def test_what_is_reserved_grows_with_what_has_arrived_and_little_is_copied(size: int, read_size: int) -> None:
    copied = 0

    class CountingReader(FrameReader):
        def _move_to_new_buffer(self, capacity: int) -> None:
            nonlocal copied
            copied += self._end - self._start
            super()._move_to_new_buffer(capacity)

    budget = Budget()
    reader = CountingReader(budget, max_frame_size=MAX_FRAME_SIZE)
    stream = frame(bytes(size))
    position = 0
    while not (taken := reader.take_frames(1)):
        view = reader.free_view()
        assert view is not None
        assert budget.used <= max(ENOUGH * position, GRANULE)
        assert reader.capacity <= BASE_BUFFER_SIZE + reader.reserved
        count = min(read_size, len(view), len(stream) - position)
        view[:count] = stream[position : position + count]
        reader.received(count)
        position += count
    assert bytes(taken[0]) == stream[4:]
    assert copied <= len(stream) * GROWTH / (GROWTH - 1)


def test_no_room_in_the_budget_stops_reading_until_the_whole_frame_is_granted() -> None:
    budget = Budget(limit=40_000)
    reader = make_reader(budget)
    body = b"z" * 200_000
    start = frame(body)[:BASE_BUFFER_SIZE]
    assert feed(reader, start) == []
    assert reader.free_view() is None
    assert reader.capacity == BASE_BUFFER_SIZE
    missing, kind = reader.request_room()
    assert missing + BASE_BUFFER_SIZE == 256 * 1024
    assert kind == WHOLE
    budget.limit = budget.used = missing
    reader.grant(missing, kind)
    assert feed(reader, frame(body)[BASE_BUFFER_SIZE:]) == [body]
    reader.close()
    assert budget.used == 0


def test_a_frame_of_20_kb_asks_for_little() -> None:
    reader = make_reader(Budget(limit=0))
    feed(reader, frame(bytes(20_000))[:BASE_BUFFER_SIZE])
    assert reader.free_view() is None
    assert reader.request_room() == (48 * 1024, SMALL)


def test_the_end_of_a_frame_removes_the_mark_of_its_progress() -> None:
    reader = make_reader()
    feed(reader, frame(bytes(1000))[:500])
    assert not reader.is_marked
    reader.mark()
    assert reader.free_view() is not None
    reader.received(100)
    assert reader.take_frames(64) == []
    assert (reader.is_marked, reader.progress) == (True, 100)
    feed(reader, bytes(404) + frame(bytes(1000))[:700])
    assert not reader.is_marked


def test_a_frame_of_a_megabyte_and_a_header_is_copied_three_times_and_the_next_not_at_all() -> None:
    copies: list[int] = []

    class CountingReader(FrameReader):
        def _move_to_new_buffer(self, capacity: int) -> None:
            copies.append(self._end - self._start)
            super()._move_to_new_buffer(capacity)

    reader = CountingReader(Budget(), max_frame_size=MAX_FRAME_SIZE)
    body = bytes(1024 * 1024 + 200)
    assert feed(reader, frame(body) * 3) == [body] * 3
    assert copies == [0, 16 * 1024, 64 * 1024, 256 * 1024]


def test_small_frames_pass_when_the_budget_has_nothing_left() -> None:
    reader = make_reader(Budget(limit=0))
    bodies = [b"q" * (BASE_BUFFER_SIZE - 4)] * 5
    assert feed(reader, b"".join(map(frame, bodies))) == bodies


def test_the_start_of_a_frame_is_moved_at_most_once() -> None:
    moved = 0

    class CountingReader(FrameReader):
        def _move_to_front(self) -> None:
            nonlocal moved
            moved += self._end - self._start
            super()._move_to_front()

    reader = CountingReader(Budget(limit=0), max_frame_size=MAX_FRAME_SIZE)
    bodies = [b"m" * 1000] * 500
    stream = b"".join(map(frame, bodies))
    assert feed(reader, stream, read_size=700) == bodies
    # 32 times through the buffer, less than a frame each time.
    assert moved <= (len(stream) // (BASE_BUFFER_SIZE - 2000) + 1) * 1004


def test_frames_that_were_given_back_come_again_in_order() -> None:
    reader = make_reader()
    view = reader.free_view()
    assert view is not None
    bodies = [b"one", b"", b"three", b"four"]
    stream = b"".join(map(frame, bodies)) + b"\x00\x00"
    view[: len(stream)] = stream
    reader.received(len(stream))
    frames = reader.take_frames(64)
    reader.give_back(frames[1:])
    reader.finish_run()
    assert reader.is_unfinished
    assert [bytes(taken) for taken in reader.take_frames(2)] == [b"", b"three"]
    reader.finish_run()
    assert [bytes(taken) for taken in reader.take_frames(2)] == [b"four"]


def test_poison_shows_a_view_that_was_kept() -> None:
    kept: list[memoryview] = []
    for poison in (True, False):
        reader = make_reader(poison=poison)
        view = reader.free_view()
        assert view is not None
        view[:8] = frame(b"keep")
        reader.received(8)
        kept += reader.take_frames(1)
        reader.finish_run()
    assert [bytes(taken) for taken in kept] == [b"\xdb\xdb\xdb\xdb", b"keep"]


def test_poison_spares_the_frame_that_has_only_begun() -> None:
    reader = make_reader()
    bodies = [b"a" * 100, b"b" * 100, b"c" * 100]
    assert feed(reader, b"".join(map(frame, bodies)), read_size=150) == bodies


def test_an_idle_buffer_is_given_back_and_one_with_the_start_of_a_frame_is_not() -> None:
    budget = Budget()
    reader = make_reader(budget)
    body = b"w" * 2_000_000
    assert feed(reader, frame(body)) == [body]
    assert reader.capacity >= len(body)
    assert budget.used == reader.reserved > 0
    feed(reader, frame(body)[:1000])
    reader.shrink()
    assert reader.capacity >= len(body)
    assert feed(reader, frame(body)[1000:]) == [body]
    reader.shrink()
    assert (reader.capacity, reader.reserved, budget.used) == (0, 0, 0)
    assert feed(reader, frame(b"again")) == [b"again"]


def test_a_large_buffer_is_given_back_at_once_when_memory_is_tight() -> None:
    budget = Budget()
    reader = make_reader(budget)
    budget.tight = True
    assert len(feed(reader, frame(b"w" * 500_000))) == 1
    assert (reader.capacity, budget.used) == (0, 0)


def test_reads_that_fill_the_buffer_make_it_wider() -> None:
    budget = Budget()
    reader = make_reader(budget)
    feed(reader, frame(b"s" * 508) * 2000)
    assert BASE_BUFFER_SIZE < reader.capacity <= READ_SIZE
    assert budget.used == reader.capacity - BASE_BUFFER_SIZE


def test_frames_that_never_end_where_the_buffer_ends_make_it_wider_too() -> None:
    budget = Budget()
    reader = make_reader(budget)
    feed(reader, frame(b"s" * 10_000) * 40)  # one and a half of them fill the first buffer
    assert BASE_BUFFER_SIZE < reader.capacity <= READ_SIZE
    assert budget.used == reader.capacity - BASE_BUFFER_SIZE
