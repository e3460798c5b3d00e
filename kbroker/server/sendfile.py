"""How a range of a file reaches a socket: by the kernel where it can, by read and send elsewhere.

Also tells whether a range lies in the page cache, and reads it ahead where it does not: never on the event loop.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Callable
from typing import Protocol, runtime_checkable

__all__ = ["SendableSlice", "SliceSender", "is_in_page_cache", "read_ahead", "slice_sender"]

_CHUNK = 256 * 1024
_IS_LINUX = sys.platform == "linux"


@runtime_checkable
class SendableSlice(Protocol):
    """A range of an open file that stays open until `release`. `fileno` is negative where there is no real file."""

    position: int
    size: int

    @property
    def is_hot_tail(self) -> bool:
        """Written so recently that it is surely in memory: not probed."""
        ...

    def fileno(self) -> int: ...

    def is_valid(self) -> bool:
        """False once the range was truncated away: its bytes are no longer what the response promised."""
        ...

    def read(self) -> bytes: ...

    def release(self) -> None: ...


# (slice, bytes of it already sent, most to send now) -> bytes sent; 0 when the file ends early.
SliceSender = Callable[[SendableSlice, int, int], int]


def slice_sender(sock: socket.socket, *, portable: bool = False) -> SliceSender:
    """What sends slices on this socket; raises BlockingIOError when the socket is full."""

    def send_by_copy(file_slice: SendableSlice, done: int, count: int) -> int:
        file_number = file_slice.fileno()
        if file_number < 0:
            return sock.send(memoryview(file_slice.read())[done : done + count])
        sent = 0
        while sent < count:
            data = os.pread(file_number, min(count - sent, _CHUNK), file_slice.position + done + sent)
            if not data:
                return sent
            try:
                taken = sock.send(data)
            except BlockingIOError:
                if sent:
                    return sent
                raise
            sent += taken
            if taken < len(data):
                return sent
        return sent

    if portable or not (_IS_LINUX and hasattr(os, "sendfile")):
        return send_by_copy
    socket_number = sock.fileno()
    sendfile = os.sendfile

    def send_by_kernel(file_slice: SendableSlice, done: int, count: int) -> int:
        file_number = file_slice.fileno()
        if file_number < 0:
            return send_by_copy(file_slice, done, count)
        return sendfile(socket_number, file_number, file_slice.position + done, count)

    return send_by_kernel


def is_in_page_cache(file_number: int, position: int, size: int) -> bool:
    """Whether both ends of the range can be read without waiting for a disk; True where that cannot be asked."""
    if file_number < 0 or size <= 0 or not hasattr(os, "RWF_NOWAIT"):
        return True
    probe = bytearray(1)
    try:
        return _is_byte_cached(file_number, position, probe) and (
            size == 1 or _is_byte_cached(file_number, position + size - 1, probe)
        )
    except OSError as error:
        # Not every filesystem can say; then sending may wait, as it does in every broker that never asks.
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return True
        raise


def _is_byte_cached(file_number: int, position: int, probe: bytearray) -> bool:
    try:
        os.preadv(file_number, [probe], position, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    return True


def read_ahead(file_number: int, position: int, size: int) -> None:
    """Pull the range into the page cache. Waits for the disk: call it in a thread, with the file held open."""
    scratch = bytearray(min(size, _CHUNK))
    view = memoryview(scratch)
    while size > 0:
        count = os.preadv(file_number, [view[: min(size, _CHUNK)]], position)
        if count == 0:
            return
        position += count
        size -= count
