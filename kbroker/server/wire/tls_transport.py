"""TLS as a transport of a connection: OpenSSL over memory buffers. Never waits, never falls back to plaintext.

SHAKING HANDS ──handshake complete──> ESTABLISHED        A failure in either state raises PeerError.

Receiving reads much ciphertext with one call of the socket and decrypts it record by record. Sending encrypts up to
CHUNK bytes, then passes them to the socket with one call. Bytes count as sent once their ciphertext is in the socket.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol, cast

from kbroker.clock import Clock
from kbroker.errors import PeerError
from kbroker.security.tls_context import handshake_problem
from kbroker.server.wire.connection import Connection
from kbroker.server.wire.handshake_threads import HandshakeThreads
from kbroker.server.wire.sendfile import SendableSlice, SliceSender
from kbroker.server.wire.transport import PlainTransport, Sendable

__all__ = ["ListenerTls", "TlsListenerState", "TlsTransport"]

CHUNK: Final = 64 * 1024
RECORD: Final = 16 * 1024
# Handshakes of one round of a watcher take at most this long, and one step more: other connections get their turn.
ROUND_SECONDS: Final = 0.001
_HANDSHAKE_RECORD: Final = 0x16
_ALERT: Final = bytes.fromhex("15 0303 0002 02 0a")  # fatal, unexpected message

# Where the next step of a handshake is. Integers, as in `connection.py`.
_NONE: Final = 0
_IN_THREAD: Final = 1
_DONE: Final = 2


class ListenerTls(Protocol):
    """Key material of a listener, and the principals of its clients."""

    @property
    def is_slow(self) -> bool:
        """Whether a step of a handshake takes so long that it runs in a thread."""
        ...

    def new_session(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> ssl.SSLObject: ...

    def on_handshake(self, connection: Connection, certificate: bytes | None) -> None:
        """Takes a client in. `certificate` is its certificate in DER. Raises PeerError if the client is refused."""
        ...

    def on_failed_handshake(self) -> None: ...


class TlsListenerState:
    """State that the TLS connections of one listener share: their keys, a buffer, the time that handshakes take."""

    __slots__ = ("_clock", "_round_spent", "buffer", "threads", "tls", "view")

    def __init__(self, tls: ListenerTls, clock: Clock) -> None:
        self.tls = tls
        self.threads: HandshakeThreads | None = None  # None until the server runs
        self.buffer = bytearray(CHUNK)
        self.view = memoryview(self.buffer)
        self._clock = clock
        self._round_spent = 0.0

    def begin_round(self) -> None:
        self._round_spent = 0.0

    @property
    def has_time(self) -> bool:
        """Whether another step of a handshake may run in this round."""
        return self._round_spent < ROUND_SECONDS

    def run(self, step: Callable[[], None]) -> ssl.SSLError | None:
        """Runs a step of a handshake on the loop. Returns its error."""
        began = self._clock.monotonic()
        try:
            step()
        except ssl.SSLError as problem:
            return problem
        finally:
            self._round_spent += self._clock.monotonic() - began
        return None


class TlsTransport:
    """Transport over another one. `has_pending`: bytes have arrived that no event of the socket will report."""

    __slots__ = (
        "_backlog",
        "_first_byte",
        "_incoming",
        "_is_ended",
        "_is_established",
        "_outgoing",
        "_owed",
        "_plain",
        "_read",
        "_session",
        "_state",
        "_step",
        "_step_problem",
        "has_pending",
        "on_handshake",
        "recv_into",
        "send",
        "send_more",
        "send_slice",
        "wake",
    )

    def __init__(self, plain: PlainTransport, state: TlsListenerState) -> None:
        self._plain = plain
        self._state = state
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._session = state.tls.new_session(self._incoming, self._outgoing)
        # With a buffer, `read` returns the number of bytes; its declared type says otherwise.
        self._read: Callable[[int, memoryview], int] = cast(Any, self._session.read)
        self._is_established = False
        self._is_ended = False
        self._first_byte = -1
        self._step = _NONE
        self._step_problem: ssl.SSLError | None = None
        self._backlog: memoryview | None = None  # ciphertext that the socket did not take
        self._owed = 0  # plaintext bytes of the backlog that `send` has not reported as sent
        self.has_pending = False
        self.on_handshake: Callable[[bytes | None], None] | None = None
        """Called once, with the certificate of the client, when the handshake is complete."""
        self.wake: Callable[[], None] | None = None
        """Asks for a turn of the connection, after a thread has done a step of the handshake."""
        self.recv_into: Callable[[memoryview], int] = self._receive
        self.send: Callable[[Sendable], int] = self._send
        self.send_more: Callable[[Sendable], int] = self._send_more
        self.send_slice: SliceSender = self._send_slice

    def fileno(self) -> int:
        return self._plain.fileno()

    def close(self) -> None:
        if self._is_established and self._backlog is None:
            self._say_goodbye()
        self._plain.close()
        # The bound methods refer to this object: without them it is freed at once.
        del self.recv_into, self.send, self.send_more, self.send_slice, self._read
        self.on_handshake = self.wake = None

    def _say_goodbye(self) -> None:
        """Sends close_notify, so that the client does not take the end for an attack."""
        with suppress(OSError):
            self._session.unwrap()  # raises SSLWantReadError: the broker does not wait for the answer
        self._flush_last()

    # Receiving

    def _receive(self, view: memoryview) -> int:
        if not self._is_established:
            self._shake_hands()
        if self.has_pending:
            count = self._decrypt(view, 0)
            if count:
                return count
        if self._has_ended():
            return 0
        count = 0
        plain_recv_into, buffer, cipher_view = self._plain.recv_into, self._state.buffer, self._state.view
        while count < len(view):
            try:
                received = plain_recv_into(cipher_view)
            except BlockingIOError:
                if count:
                    return count
                raise
            if received == 0:
                return count
            self._incoming.write(buffer if received == CHUNK else cipher_view[:received])
            count = self._decrypt(view, count)
            if self._has_ended() or (received < CHUNK and count):
                break
        return count

    def _has_ended(self) -> bool:
        """Whether the client has sent close_notify."""
        return self._is_ended

    def _decrypt(self, view: memoryview, position: int) -> int:
        """Decrypts into the view from `position` on. Returns the position after the last byte."""
        read, pending, incoming, size = self._read, self._session.pending, self._incoming, len(view)
        try:
            while position < size:
                count = read(size - position, view[position:] if position else view)
                if not count:
                    self._is_ended = True
                    self.has_pending = position > 0  # one more turn, which finds the end of the stream
                    return position
                position += count
                if not incoming.pending and not pending():
                    self.has_pending = False
                    break
            else:
                self.has_pending = True
        except ssl.SSLWantReadError:
            self.has_pending = False
        except ssl.SSLError as problem:
            self._flush_last()
            raise PeerError(f"TLS failed: {handshake_problem(problem)}") from None
        if self._outgoing.pending and self._backlog is None:
            self._try_flush()  # a new key that the client asked for
        return position

    # Handshake

    def _shake_hands(self) -> None:
        """Does the next step of the handshake. Raises BlockingIOError until the handshake is complete."""
        problem = self._run_step()
        if isinstance(problem, ssl.SSLWantReadError):
            self._flush_handshake()
            raise BlockingIOError
        if problem is not None:
            self._state.tls.on_failed_handshake()
            if self._first_byte != _HANDSHAKE_RECORD and not self._outgoing.pending:
                self._plain_alert()
            self._flush_last()
            raise PeerError(f"SSL handshake failed: {self._describe(problem)}")
        self._flush_handshake()
        self._is_established = True
        self.has_pending = True  # the first request may have arrived with the end of the handshake
        on_handshake, self.on_handshake = self.on_handshake, None
        if on_handshake is not None:
            on_handshake(self._session.getpeercert(binary_form=True))

    def _run_step(self) -> ssl.SSLError | None:
        """Returns the error of the next step. Raises BlockingIOError if the step is not done yet."""
        state = self._state
        if self._step == _DONE:
            self._step = _NONE
            self.has_pending = False
            problem, self._step_problem = self._step_problem, None
            return problem
        if self._step == _IN_THREAD or not state.has_time:
            raise BlockingIOError  # the socket stays readable: a later round continues
        received = self._plain.recv_into(state.view)
        if received == 0:
            raise ConnectionResetError  # nothing to tell: port scans and health checks do so
        if self._first_byte < 0:
            self._first_byte = state.buffer[0]
        self._incoming.write(state.view[:received])
        if state.threads is None or not state.tls.is_slow:
            return state.run(self._session.do_handshake)
        self._step = _IN_THREAD
        state.threads.start(self._session.do_handshake, self._on_step)
        raise BlockingIOError

    def _on_step(self, problem: ssl.SSLError | None) -> None:
        """Notes that a thread has done the step, and asks for a turn to go on."""
        self._step, self._step_problem = _DONE, problem
        self.has_pending = True
        if self.wake is not None:
            self.wake()

    def _describe(self, problem: ssl.SSLError) -> str:
        if self._first_byte != _HANDSHAKE_RECORD:
            return "the client does not use TLS"
        if problem.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
            return "the client sent no certificate, which ssl.client.auth=required demands"
        return handshake_problem(problem)

    def _flush_handshake(self) -> None:
        if self._outgoing.pending and not self._try_flush():
            raise PeerError("SSL handshake failed: the client does not read")

    def _plain_alert(self) -> None:
        """Tells a client without TLS what it has connected to: clients of Kafka know how an alert begins.

        OpenSSL sends nothing then.
        """
        with suppress(OSError):
            self._plain.send(_ALERT)

    def _flush_last(self) -> None:
        """Sends the alert or the close_notify, if the socket takes it: the connection ends in any case."""
        with suppress(OSError):
            self._try_flush()

    # Sending

    def _send(self, data: Sendable) -> int:
        position = self._settle_backlog()
        size = len(data)
        if not position and size <= RECORD:
            self._session.write(data)
            return self._hand_over(0, size)
        view = memoryview(data)
        while position < size:
            stop = min(size, position + CHUNK)
            self._encrypt(view[position:stop])
            position = self._hand_over(position, stop)
            if position < stop:
                break
        return position

    def _send_more(self, data: Sendable) -> int:
        """Like `_send`, but leaves little data for the next call of the socket, which follows."""
        if self._backlog is not None or self._owed or len(data) > RECORD:
            return self._send(data)
        self._session.write(data)
        return len(data)

    def _send_slice(self, file_slice: SendableSlice, done: int, count: int) -> int:
        sent = self._settle_backlog()
        number = file_slice.fileno()
        content = file_slice.read() if number < 0 else b""
        while sent < count:
            start, size = done + sent, min(count - sent, CHUNK)
            data = content[start : start + size] if number < 0 else os.pread(number, size, file_slice.position + start)
            if not data:
                return sent
            self._encrypt(memoryview(data))
            stop = sent + len(data)
            sent = self._hand_over(sent, stop)
            if sent < stop:
                break
        return sent

    def _encrypt(self, view: memoryview) -> None:
        write = self._session.write
        position, size = 0, len(view)
        while position < size:
            position += write(view[position : position + RECORD])

    def _settle_backlog(self) -> int:
        """Sends the ciphertext of earlier calls. Returns the bytes of the next call that are in it.

        Raises BlockingIOError if the socket does not take all of it.
        """
        if self._backlog is not None and not self._try_flush():
            raise BlockingIOError
        owed, self._owed = self._owed, 0
        return owed

    def _hand_over(self, start: int, stop: int) -> int:
        """Passes the ciphertext of the bytes from `start` to `stop` to the socket. Returns `stop` if it took all.

        Otherwise the caller offers these bytes again, and they count as sent then: returns `start`, or raises
        BlockingIOError if that is 0.
        """
        if self._try_flush():
            return stop
        self._owed = stop - start
        if not start:
            raise BlockingIOError
        return start

    def _try_flush(self) -> bool:
        """Passes all ciphertext to the socket. Returns False if some is left. Raises OSError if the socket is lost."""
        send = self._plain.send
        while True:
            data = self._backlog
            if data is None:
                if not self._outgoing.pending:
                    return True
                data = memoryview(self._outgoing.read())
            try:
                sent = send(data)
            except BlockingIOError:
                sent = 0
            if sent < len(data):
                self._backlog = data[sent:]
                return False
            self._backlog = None
