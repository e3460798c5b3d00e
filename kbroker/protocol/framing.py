"""Frames out of a stream of bytes: a four-byte length, big-endian, then that many bytes. No IO, no clock.

Owns the one receive buffer of a connection. A length is checked, and its room reserved, before anything is allocated
for it. Frames are views into the buffer, valid until `finish_run`; nothing is copied but the start of a frame whose
end has not arrived yet, and that at most once, or when the buffer grows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Protocol

from kbroker.errors import PeerError

__all__ = ["BASE_BUFFER_SIZE", "READ_SIZE", "ByteBudget", "FrameReader"]

# What a connection may hold without asking the budget: small requests flow even when large ones have used it up.
BASE_BUFFER_SIZE = 16 * 1024
# The most that one read takes: the turn of one connection.
READ_SIZE = 256 * 1024
# A frame up to here gets its room at once; a larger one as its bytes arrive, so that a length alone costs no memory.
EAGER_SIZE = 1024 * 1024 + 64 * 1024
# Buffers grow in these steps, so that frames of nearly one size do not make it grow each time.
GRANULE = 64 * 1024

LENGTH_SIZE = 4
POISON = 0xDB

_unpack_length = struct.Struct(">i").unpack_from


class ByteBudget(Protocol):
    """What all connections together may hold."""

    def try_reserve(self, size: int) -> bool: ...

    def release(self, size: int) -> None: ...

    def is_tight(self) -> bool:
        """Whether buffers that are not in use should be given back at once."""
        ...


class FrameReader:
    """The receive buffer of one connection.

    A turn is: `free_view`, fill it, `received`, `take_frames`, handle them, `finish_run`.
    `is_unfinished` says that frames (or a length that is an error) may be left for a turn without a read.
    """

    __slots__ = (
        "_budget",
        "_buffer",
        "_capacity",
        "_end",
        "_is_filled",
        "_max_frame_size",
        "_needed",
        "_poison",
        "_reserved",
        "_run_start",
        "_start",
        "_view",
        "is_unfinished",
    )

    def __init__(self, budget: ByteBudget, *, max_frame_size: int, poison: bool = False) -> None:
        self.is_unfinished = False
        self._budget = budget
        self._max_frame_size = max_frame_size
        self._poison = poison
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._capacity = 0
        self._reserved = 0
        self._start = 0  # of the first byte that has not been taken
        self._end = 0  # of what has been received
        self._run_start = 0
        self._needed = LENGTH_SIZE  # the whole size of the frame that has begun, as far as it is known
        self._is_filled = False

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def reserved(self) -> int:
        """Bytes taken from the budget."""
        return self._reserved

    @property
    def is_mid_frame(self) -> bool:
        return self._end > self._start

    @property
    def missing_room(self) -> int:
        """What the budget must grant before the frame that has begun can be read."""
        return max(0, self._needed - BASE_BUFFER_SIZE - self._reserved)

    def free_view(self) -> memoryview | None:
        """Where the next bytes go, or None while the budget has no room for the frame that has begun."""
        if self._is_filled and self._capacity < READ_SIZE:
            self._widen()
        if self._end == 0:
            if self._capacity == 0:
                self._move_to_new_buffer(BASE_BUFFER_SIZE)
            return self._view if self._capacity <= READ_SIZE else self._view[:READ_SIZE]
        if self._start + self._needed > self._capacity and not self._make_room():
            return None
        return self._view[self._end : min(self._capacity, self._end + READ_SIZE)]

    def received(self, count: int) -> None:
        self._end += count
        self._is_filled = self._end == self._capacity

    def take_frames(self, limit: int) -> list[memoryview]:
        """At most `limit` complete frames. An impossible length raises PeerError once all before it are taken."""
        frames: list[memoryview] = []
        view = self._view
        position = self._run_start = self._start
        end = self._end
        self.is_unfinished = False
        while end - position >= LENGTH_SIZE:
            if len(frames) == limit:
                self.is_unfinished = True
                break
            (length,) = _unpack_length(view, position)
            if not 0 <= length <= self._max_frame_size:
                if not frames:
                    raise PeerError(_describe_bad_length(bytes(view[position : position + LENGTH_SIZE]), length))
                self.is_unfinished = True
                break
            stop = position + LENGTH_SIZE + length
            if stop > end:
                self._needed = LENGTH_SIZE + length
                break
            frames.append(view[position + LENGTH_SIZE : stop])
            position = stop
        else:
            self._needed = LENGTH_SIZE
        self._start = position
        return frames

    def give_back(self, frames: Sequence[memoryview]) -> None:
        """The last of the taken frames will be taken again: the connection may not go on yet."""
        if frames:
            self._start -= sum(map(len, frames)) + LENGTH_SIZE * len(frames)
            self.is_unfinished = True

    def finish_run(self) -> None:
        """The frames that were taken are no longer looked at."""
        if self._poison:
            self._overwrite(self._run_start, self._start)
        if self._start == self._end:
            self._start = self._end = 0
            if self._reserved and self._budget.is_tight():
                self.shrink()

    def grant(self, size: int) -> None:
        """The budget has reserved `size` for this reader, which had been refused."""
        self._reserved += size

    def shrink(self) -> None:
        """Give the buffer back, unless a frame has begun: for connections that are idle, or when memory is short."""
        if self._start == self._end:
            self._drop_buffer()

    def close(self) -> None:
        self._drop_buffer()
        self.is_unfinished = False

    def _drop_buffer(self) -> None:
        reserved = self._reserved
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._capacity = self._start = self._end = self._run_start = self._reserved = 0
        self._is_filled = False
        if reserved:
            self._budget.release(reserved)

    def _make_room(self) -> bool:
        """See that the frame that has begun can go on; False when the budget refuses."""
        needed = self._needed
        if needed <= self._capacity:
            self._move_to_front()
            return True
        missing = _round_up(needed) - BASE_BUFFER_SIZE - self._reserved
        if self.missing_room > 0 and missing > 0:
            if not self._budget.try_reserve(missing):
                return False
            self._reserved += missing
        held = self._end - self._start
        if needed <= EAGER_SIZE:
            self._move_to_new_buffer(min(_round_up(needed), BASE_BUFFER_SIZE + self._reserved))
        elif self._capacity < EAGER_SIZE or held == self._capacity:
            self._move_to_new_buffer(min(needed, max(EAGER_SIZE, 2 * self._capacity)))
        elif self._end == self._capacity:
            self._move_to_front()
        return True

    def _widen(self) -> None:
        """A read filled the buffer and more is probably waiting: fewer, larger reads, if memory is not short."""
        size = min(4 * self._capacity, READ_SIZE)
        extra = size - BASE_BUFFER_SIZE - self._reserved
        if extra > 0:
            if self._budget.is_tight() or not self._budget.try_reserve(extra):
                return
            self._reserved += extra
        self._move_to_new_buffer(size)

    def _move_to_front(self) -> None:
        if self._start:
            held = self._end - self._start
            self._view[:held] = self._view[self._start : self._end]
            self._start, self._end = 0, held

    def _move_to_new_buffer(self, capacity: int) -> None:
        """Never resized in place: a view that somebody kept would forbid it."""
        held = self._end - self._start
        buffer = bytearray(capacity)
        view = memoryview(buffer)
        view[:held] = self._view[self._start : self._end]
        if self._poison:
            self._overwrite(0, self._capacity)
        self._buffer, self._view, self._capacity = buffer, view, capacity
        self._start, self._end = 0, held

    def _overwrite(self, start: int, stop: int) -> None:
        self._view[start:stop] = bytes((POISON,)) * (stop - start)


def _round_up(size: int) -> int:
    return -(-size // GRANULE) * GRANULE


def _describe_bad_length(start: bytes, length: int) -> str:
    """Says what the peer probably speaks: most of these are people who took the wrong port."""
    if start[:2] == b"\x16\x03":
        return "a TLS hello on a listener without TLS"
    if start in (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE", b"CONN", b"PRI "):
        return "an HTTP request, not Kafka's protocol"
    return f"a frame of {length} bytes"
