"""Blocking socket to a broker: sends frames, receives responses, with few system calls. TLS if its address says so."""

from __future__ import annotations

import socket
import ssl
import struct
from types import TracebackType

from benchmarks.encoding import Buffer

__all__ = ["TIMEOUT_SECONDS", "Address", "Connection", "TlsAddress", "call"]

Address = tuple[str, int]

TIMEOUT_SECONDS = 60
FIRST_BUFFER_SIZE = 1 << 16


class TlsAddress(tuple[str, int]):
    """Address of a listener with TLS, with the settings of its clients."""

    context: ssl.SSLContext

    def __new__(cls, address: Address, context: ssl.SSLContext) -> TlsAddress:
        made = super().__new__(cls, address)
        made.context = context
        return made


class Connection:
    """Blocking connection. Bytes received after a response are kept, so that the next one may need no system call."""

    def __init__(self, address: Address) -> None:
        self._socket = _open_socket(address)
        self.send = self._socket.sendall
        self._view = memoryview(bytearray(FIRST_BUFFER_SIZE))
        self._start = 0
        self._end = 0

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def answer(self) -> memoryview:
        """Waits for the next response and returns it without its length. The view is valid until the next call."""
        while True:
            start = self._start
            available = self._end - start
            wanted = 4 + int.from_bytes(self._view[start : start + 4], "big") if available >= 4 else FIRST_BUFFER_SIZE
            if available >= 4 and available >= wanted:
                self._start = start + wanted
                return self._view[start + 4 : start + wanted]
            self._receive(wanted)

    def has_answer(self) -> bool:
        """Whether a complete response has been received already."""
        start = self._start
        available = self._end - start
        return available >= 4 and available >= 4 + int.from_bytes(self._view[start : start + 4], "big")

    def _receive(self, wanted: int) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        if self._start + wanted > len(self._view):
            self._compact(wanted)
        try:
            size = self._socket.recv_into(self._view[self._end :])
        except BlockingIOError:
            raise TimeoutError(f"no response within {TIMEOUT_SECONDS} s") from None
        if not size:
            raise EOFError("the broker closed the connection")
        self._end += size

    def _compact(self, wanted: int) -> None:
        rest = bytes(self._view[self._start : self._end])
        if wanted > len(self._view):
            self._view = memoryview(bytearray(wanted))
        self._view[: len(rest)] = rest
        self._start, self._end = 0, len(rest)


def _open_socket(address: Address) -> socket.socket:
    opened = socket.create_connection(address, 10)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if isinstance(address, TlsAddress):
        secured = address.context.wrap_socket(opened, server_hostname=address[0])
        # Python's `ssl` would repeat a read that the kernel's timeout has ended.
        secured.settimeout(TIMEOUT_SECONDS)
        return secured
    # Timeouts of the kernel: with Python's timeouts, each send and receive would begin with a poll.
    opened.settimeout(None)
    timeout = struct.pack("ll", TIMEOUT_SECONDS, 0)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
    return opened


def call(address: Address, frame: Buffer) -> bytes:
    """Sends one request on a new connection and returns its response."""
    with Connection(address) as connection:
        connection.send(frame)
        return bytes(connection.answer())
