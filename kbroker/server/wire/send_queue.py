"""Complete responses of one connection on their way into its socket. Never waits, knows no watcher.

FREE           nothing is left, or `send` has not been called yet
BLOCKED        the socket is full, or this turn has sent enough: `send` again when the socket is writable
READING_AHEAD  the slice at the head is not in memory: `send` does nothing until `on_read_ahead`
"""

from __future__ import annotations

from collections import deque
from typing import Final

from kbroker.errors import StorageFailure
from kbroker.server.wire.request_slot import ResponsePart
from kbroker.server.wire.sendfile import SendableSlice, is_in_page_cache
from kbroker.server.wire.transport import BYTES, Sendable, Transport

__all__ = ["BLOCKED", "FREE", "READING_AHEAD", "SEND_PER_TURN", "SendQueue"]

FREE: Final = 0
BLOCKED: Final = 1
READING_AHEAD: Final = 2

SEND_PER_TURN: Final = 1024 * 1024
# Parts are joined up to this size; beyond it, copying costs more than a system call.
JOIN_SIZE: Final = 64 * 1024
# The last part of a response may exceed JOIN_SIZE by this much: it is not worth a system call.
LAST_SIZE: Final = 512
# A slice up to this size is read and sent in one piece with the bytes before it: 0.6 of sendfile's CPU at 200 KB, the
# same at 16 KB, and a fetch of many partitions needs one call instead of two for each.
COPY_SIZE: Final = 256 * 1024


class SendQueue:
    __slots__ = (
        "_send",
        "_send_more",
        "_send_slice",
        "_slice_sent",
        "_warm_until",
        "parts",
        "state",
        "unsent_bytes",
    )

    def __init__(self, transport: Transport) -> None:
        self._send = transport.send
        self._send_more = transport.send_more
        self._send_slice = transport.send_slice
        self._slice_sent = 0  # bytes sent of the slice at the head
        self._warm_until = 0  # bytes of the slice at the head that are known to be in memory
        self.state = FREE
        self.parts: deque[ResponsePart] = deque()
        self.unsent_bytes = 0
        """Bytes in memory of all complete responses, including responses that wait for an earlier one."""

    def send(self) -> None:
        """Sends until nothing is left, the socket is full, or SEND_PER_TURN is reached.

        Raises OSError if the peer or the file fails, StorageFailure if a slice no longer holds the promised bytes.
        """
        if self.state == READING_AHEAD:
            return
        parts = self.parts
        allowance = SEND_PER_TURN
        self.state = FREE
        while parts and self.state == FREE:
            part = parts[0]
            if isinstance(part, BYTES):
                allowance -= self._send_bytes()
            else:
                allowance -= self._send_from(part, allowance)
            if allowance <= 0 and parts:
                self.state = BLOCKED

    def cold_range(self) -> tuple[SendableSlice, int, int]:
        """Returns the slice at the head, and the position and size of its range to read ahead."""
        head = self.parts[0]
        assert not isinstance(head, BYTES)
        done = self._slice_sent
        return head, head.position + done, min(head.size - done, SEND_PER_TURN)

    def on_read_ahead(self) -> None:
        """Allows `send` again: the range of `cold_range` has been read ahead."""
        # The range counts as warm without a second probe. If memory is so short that the range was evicted already,
        # a send that waits for the disk is better than reading ahead for ever.
        _, _, size = self.cold_range()
        self._warm_until = self._slice_sent + size
        self.state = FREE

    def close(self) -> None:
        """Releases all slices, except the slice of a read-ahead: a thread still reads from its file."""
        parts = self.parts
        if self.state == READING_AHEAD:
            parts.popleft()
        for part in parts:
            if not isinstance(part, BYTES):
                part.release()
        parts.clear()

    def _send_bytes(self) -> int:
        parts = self.parts
        data = self._pop_joined()
        try:
            sent = (self._send_more if parts else self._send)(data)
        except BlockingIOError:
            sent = 0
        self.unsent_bytes -= sent
        if sent < len(data):
            parts.appendleft(memoryview(data)[sent:])
            self.state = BLOCKED
        return sent

    def _pop_joined(self) -> Sendable:
        """Pops the bytes at the head together with all parts behind them that are worth copying into one piece."""
        parts = self.parts
        first = parts.popleft()
        assert isinstance(first, BYTES)
        if not parts:
            return first
        pieces: list[Sendable] = [first]
        size = len(first)
        while parts:
            part = parts[0]
            if isinstance(part, BYTES):
                if size >= JOIN_SIZE and len(part) > LAST_SIZE:
                    break
                pieces.append(part)
                size += len(part)
            elif size >= JOIN_SIZE:
                break
            else:
                data = _read_small(part)
                if data is None:
                    break
                pieces.append(data)
                size += len(data)
                self.unsent_bytes += len(data)
                part.release()
            parts.popleft()
        return b"".join(pieces) if len(pieces) > 1 else first

    def _send_from(self, file_slice: SendableSlice, allowance: int) -> int:
        """Sends from the slice at the head; returns the number of bytes. Sets `state` if not all of it is sent."""
        done = self._slice_sent
        left = file_slice.size - done
        if not file_slice.is_valid():
            raise StorageFailure("a response was truncated while it was being sent")
        count = min(left, allowance)
        if not file_slice.is_hot_tail:
            if done >= self._warm_until:
                size = min(left, SEND_PER_TURN)
                if not is_in_page_cache(file_slice.fileno(), file_slice.position + done, size):
                    self.state = READING_AHEAD
                    return 0
                self._warm_until = done + size
            count = min(count, self._warm_until - done)
        try:
            sent = self._send_slice(file_slice, done, count)
        except BlockingIOError:
            self.state = BLOCKED
            return 0
        if sent == 0 < left:
            raise StorageFailure("a file ended before the response was sent completely")
        if sent == left:
            self.parts.popleft()
            self._slice_sent = self._warm_until = 0
            file_slice.release()
        else:
            self._slice_sent = done + sent
            self.state = BLOCKED
        return sent


def _read_small(file_slice: SendableSlice) -> bytes | None:
    """Returns the content of a slice that is cheaper to copy than to send by the kernel; None for any other slice."""
    size = file_slice.size
    if size > COPY_SIZE or not file_slice.is_valid():
        return None
    if not file_slice.is_hot_tail and not is_in_page_cache(file_slice.fileno(), file_slice.position, size):
        return None
    data = file_slice.read()
    return data if len(data) == size else None
