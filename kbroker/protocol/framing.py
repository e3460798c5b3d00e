"""Splits a stream of bytes into frames: a four-byte big-endian length, then that many bytes. No IO, no clock.

Owns the receive buffer of a connection. A length alone reserves nothing: the buffer grows with the bytes that have
arrived, and the budget is asked before each growth. Frames are views into the buffer, valid until `finish_run`. Bytes
are copied only for an incomplete frame: once when it moves to the front of the buffer, or when the buffer grows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, Protocol

from kbroker.errors import PeerError

__all__ = ["BASE_BUFFER_SIZE", "GROWING", "READ_SIZE", "SMALL", "WHOLE", "ByteBudget", "FrameReader"]

# Not charged to the budget, so that small requests are read even if large ones have used up the budget.
BASE_BUFFER_SIZE: Final = 16 * 1024
# Maximum size of one read, so that other connections get their turn.
READ_SIZE: Final = 256 * 1024
# Buffer sizes are multiples of this, so that frames of similar sizes do not reallocate the buffer each time.
GRANULE: Final = 64 * 1024
# A full buffer grows by GROWTH, or to the whole frame once 1/ENOUGH of it has arrived. So a reservation is at most
# ENOUGH times what has arrived. ENOUGH is a little more than GROWTH: the buffer for a batch of 1 MB, a usual size,
# grows from 256 KB to the whole frame, and is not copied once more for the header of the request.
GROWTH: Final = 4
ENOUGH: Final = 5

# Kinds of reservations. Integers, not enums: compiled code compares them without a lookup.
WHOLE: Final = 0  # the buffer can hold the whole frame: the frame needs no more memory to complete
SMALL: Final = 1  # the same, for a frame of at most GRANULE bytes
GROWING: Final = 2  # the frame will need more

LENGTH_SIZE: Final = 4
POISON: Final = 0xDB

_unpack_length: Final = struct.Struct(">i").unpack_from


class ByteBudget(Protocol):
    """Limit on the memory of all receive buffers together."""

    def try_reserve(self, size: int, kind: int) -> bool: ...

    def change_kind(self, size: int, old: int, new: int) -> None:
        """Counts a reservation of `size` bytes as `new` instead of `old`."""
        ...

    def release(self, size: int, kind: int) -> None: ...

    def is_tight(self) -> bool:
        """Whether unused buffers should be released at once."""
        ...


class FrameReader:
    """The receive buffer of one connection.

    One turn: `free_view`, read into it, `received`, `take_frames`, handle the frames, `finish_run`.
    `is_unfinished`: complete frames, or an invalid length, may be left for a turn without a read. While `is_held`, the
    frames of the last turn stay valid, and the reader must not be used.
    """

    __slots__ = (
        "_budget",
        "_buffer",
        "_capacity",
        "_end",
        "_holds",
        "_is_closed",
        "_is_filled",
        "_kind",
        "_marked",
        "_needed",
        "_poison",
        "_reserved",
        "_run_start",
        "_start",
        "_view",
        "is_held",
        "is_unfinished",
        "max_frame_size",
    )

    def __init__(self, budget: ByteBudget, *, max_frame_size: int, poison: bool = False) -> None:
        self.is_unfinished = False
        self.is_held = False
        self._holds = 0
        self._is_closed = False
        self._budget = budget
        self.max_frame_size = max_frame_size  # may be changed between two calls of `take_frames`
        self._poison = poison
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._capacity = 0
        self._reserved = 0
        self._kind = WHOLE  # of the reservation
        self._marked = -1  # bytes held at the last `mark`; -1: no mark
        self._start = 0  # of the first byte that was not returned in a frame
        self._end = 0  # of the received bytes
        self._run_start = 0
        self._needed = LENGTH_SIZE  # size of the incomplete frame with its length, as far as it is known
        self._is_filled = False

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def reserved(self) -> int:
        """Returns the bytes reserved from the budget."""
        return self._reserved

    @property
    def is_mid_frame(self) -> bool:
        return self._end > self._start

    @property
    def held_bytes(self) -> int:
        """Returns the bytes that have arrived and were not taken."""
        return self._end - self._start

    def request_room(self) -> tuple[int, int]:
        """Returns the bytes that the budget must grant before more can be read, and the kind of the reservation.

        They are for the whole frame: if frames waited for parts, many could hold parts and none could complete.
        """
        if self._kind != GROWING:
            self._set_kind(GROWING)
        kind = SMALL if self._needed <= GRANULE else WHOLE
        return _round_up(self._needed) - BASE_BUFFER_SIZE - self._reserved, kind

    def mark(self) -> None:
        """Begins to measure the progress of the incomplete frame."""
        self._marked = self._end - self._start

    @property
    def is_marked(self) -> bool:
        """Whether the incomplete frame was marked. The end of a frame removes the mark."""
        return self._marked >= 0

    @property
    def progress(self) -> int:
        """Returns the bytes of the incomplete frame that arrived since `mark`."""
        return self._end - self._start - self._marked

    def free_view(self) -> memoryview | None:
        """Returns the view for the next read, or None if the budget has no space for the incomplete frame."""
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
        """Returns up to `limit` complete frames. Raises PeerError if the next frame has an invalid length."""
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
            if not 0 <= length <= self.max_frame_size:
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
        """Puts back the last frames of `take_frames`, if the connection must wait before it handles them."""
        if frames:
            self._start -= sum(map(len, frames)) + LENGTH_SIZE * len(frames)
            self.is_unfinished = True

    def hold(self) -> None:
        """Keeps the frames of the last `take_frames`, and their reservation, until as many calls of `release`."""
        self._holds += 1
        self.is_held = True

    def release(self) -> None:
        """Ends a hold, and after the last does what `finish_run` or `close` have left undone meanwhile."""
        self._holds -= 1
        if self._holds:
            return
        self.is_held = False
        if self._is_closed:
            self._drop_buffer()
        else:
            self.finish_run()

    def finish_run(self) -> None:
        """Releases the frames of the last `take_frames`. Their views must not be used any more."""
        if self.is_held:
            return
        self._marked = -1
        if self._poison:
            self._overwrite(self._run_start, self._start)
        if self._start == self._end:
            self._start = self._end = 0
            if self._reserved and self._budget.is_tight():
                self.shrink()

    def grant(self, size: int, kind: int) -> None:
        """Adds `size` bytes that the budget has reserved for this reader."""
        if kind != self._kind:
            self._set_kind(kind)
        self._reserved += size

    def _set_kind(self, kind: int) -> None:
        if self._reserved:
            self._budget.change_kind(self._reserved, self._kind, kind)
        self._kind = kind

    def shrink(self) -> None:
        """Releases the buffer if it holds no bytes: for idle connections, or if memory is short."""
        if self._start == self._end and not self.is_held:
            self._drop_buffer()

    def close(self) -> None:
        self._is_closed = True
        self.is_unfinished = False
        if not self.is_held:
            self._drop_buffer()

    def _drop_buffer(self) -> None:
        reserved, kind = self._reserved, self._kind
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._capacity = self._start = self._end = self._run_start = self._reserved = 0
        self._is_filled = False
        self._kind = WHOLE
        self._marked = -1
        if reserved:
            self._budget.release(reserved, kind)

    def _make_room(self) -> bool:
        """Makes space for the rest of the incomplete frame. Returns False if the budget refuses."""
        held = self._end - self._start
        if self._needed <= self._capacity or (self._end == self._capacity and 2 * held <= self._capacity):
            self._move_to_front()
        elif self._end == self._capacity:
            return self._grow()
        return True

    def _grow(self) -> bool:
        size = _round_up(self._needed)
        kind = SMALL if size <= GRANULE else WHOLE
        held = self._end - self._start
        if size > max(ENOUGH * held, GRANULE):
            # Also after a grant for the whole frame: pages are used only as bytes arrive.
            size, kind = max(GROWTH * held, GRANULE), GROWING
        missing = size - BASE_BUFFER_SIZE - self._reserved
        if missing > 0:
            if not self._budget.try_reserve(missing, kind):
                return False
            self.grant(missing, kind)
        self._move_to_new_buffer(size)
        return True

    def _widen(self) -> None:
        """Enlarges the buffer after a read has filled it, for fewer and larger reads. No-op if memory is short."""
        if self._needed > self._capacity:
            return  # the incomplete frame makes the buffer grow
        size = min(4 * self._capacity, READ_SIZE)
        extra = size - BASE_BUFFER_SIZE - self._reserved
        if extra > 0:
            if self._budget.is_tight() or not self._budget.try_reserve(extra, WHOLE):
                return
            self.grant(extra, WHOLE)
        self._move_to_new_buffer(size)

    def _move_to_front(self) -> None:
        if self._start:
            held = self._end - self._start
            self._view[:held] = self._view[self._start : self._end]
            self._start, self._end = 0, held

    def _move_to_new_buffer(self, capacity: int) -> None:
        """Allocates a new buffer. The old one is not resized, because a view of it may still exist."""
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
    """Returns the protocol that the peer probably uses: in most cases a client has connected to the wrong port."""
    if start[:2] == b"\x16\x03":
        return "received a TLS handshake on a listener without TLS"
    if start in (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE", b"CONN", b"PRI "):
        return "received an HTTP request on a Kafka listener"
    return f"invalid frame length of {length} bytes"
