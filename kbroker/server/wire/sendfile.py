"""Sends a range of a file to a socket: by the kernel's sendfile if possible, else by read and send.

Also probes whether a range is in the page cache, and reads it ahead in a thread: the event loop never waits for a disk.
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
    """Range of a file that stays open until `release`. `fileno` is negative if there is no real file."""

    position: int
    size: int

    @property
    def is_hot_tail(self) -> bool:
        """Whether the slice was written so recently that it must be in memory. Then it is not probed."""
        ...

    def fileno(self) -> int: ...

    def is_valid(self) -> bool:
        """Whether the file still holds the bytes of the range. False after a truncation."""
        ...

    def read(self) -> bytes: ...

    def release(self) -> None: ...


# (slice, bytes of it already sent, maximum to send now) -> bytes sent; 0 if the file ends early.
SliceSender = Callable[[SendableSlice, int, int], int]


def slice_sender(sock: socket.socket, *, portable: bool = False) -> SliceSender:
    """Returns the function that sends slices on this socket. It raises BlockingIOError if the socket is full."""

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
                chunk_sent = sock.send(data)
            except BlockingIOError:
                if sent:
                    return sent
                raise
            sent += chunk_sent
            if chunk_sent < len(data):
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
    """Whether both ends of the range can be read without waiting for a disk; True if the system cannot say."""
    if file_number < 0 or size <= 0 or not hasattr(os, "RWF_NOWAIT"):
        return True
    probe = bytearray(1)
    try:
        return _is_byte_cached(file_number, position, probe) and (
            size == 1 or _is_byte_cached(file_number, position + size - 1, probe)
        )
    except OSError as error:
        # This filesystem does not support the probe. Then sending may wait for the disk.
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
    """Reads the range into the page cache. Waits for the disk: call it in a thread, and keep the file open."""
    scratch = bytearray(min(size, _CHUNK))
    view = memoryview(scratch)
    while size > 0:
        count = os.preadv(file_number, [view[: min(size, _CHUNK)]], position)
        if count == 0:
            return
        position += count
        size -= count
