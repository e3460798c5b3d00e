"""Load of TLS handshakes: new connections, several at once, each with one request.

The request proves that the broker has completed the handshake too: with TLS 1.3 the client completes it first. Before
the response come the tickets with which the next connection resumes the session.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, field

from benchmarks.broker_process import Broker, cpu_seconds
from benchmarks.connection import TIMEOUT_SECONDS, TlsAddress
from benchmarks.encoding import CORRELATION_AT
from benchmarks.figures import Figures, figures_of
from benchmarks.group_frames import api_versions_frame, read_api_versions_answer
from benchmarks.topics import WrongAnswer

__all__ = ["IN_FLIGHT", "Sessions", "Visitor", "shake_hands"]

IN_FLIGHT = 16
API_VERSIONS = 18
LENGTH_SIZE = 4
READ_SIZE = 1 << 16

Sessions = deque[ssl.SSLSession]
Visit = Generator[ssl.SSLSocket, None, None]


@dataclass(slots=True)
class Visitor:
    """Client that connects, asks for ApiVersions and leaves. It resumes each session of `offered` once."""

    address: TlsAddress
    offered: Sessions = field(default_factory=deque)
    kept: Sessions = field(default_factory=deque)
    """Sessions that the broker has given. May be the same object as `offered`."""
    begun: int = 0
    latencies: list[float] = field(default_factory=list)
    resumed: int = 0
    suite: str = ""
    """TLS version and cipher suite of the last connection."""

    def visit(self) -> Visit:
        """Makes one visit. Yields the socket each time that it must become readable first."""
        number, began = self.begun, time.perf_counter()
        self.begun += 1
        # Over loopback it connects at once.
        plain = socket.create_connection(self.address, TIMEOUT_SECONDS)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setblocking(False)
        session = self.offered.popleft() if self.offered else None
        with self.address.context.wrap_socket(
            plain, server_hostname=self.address[0], do_handshake_on_connect=False, session=session
        ) as secured:
            while True:
                try:
                    secured.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    yield secured
            secured.sendall(_request(number))
            answer = bytearray()
            while not _is_whole(answer):
                try:
                    piece = secured.recv(READ_SIZE)
                except ssl.SSLWantReadError:
                    yield secured
                    continue
                if not piece:
                    raise EOFError("the broker closed the connection")
                answer += piece
            _check(answer, number)
            self._note(secured)
            with suppress(OSError):  # the broker has not answered it yet, or never does
                secured.unwrap()  # close_notify: after an end without it, a broker may forget the session
        self.latencies.append(time.perf_counter() - began)

    def _note(self, secured: ssl.SSLSocket) -> None:
        self.resumed += bool(secured.session_reused)
        cipher = secured.cipher()
        assert cipher is not None
        self.suite = f"{secured.version()}, {cipher[0]}"
        if secured.session is not None:
            self.kept.append(secured.session)


def shake_hands(broker: Broker, visitor: Visitor, *, visits: int) -> Figures:
    """Makes this many visits, up to `IN_FLIGHT` at once."""
    waiting: dict[int, Visit] = {}
    begun = 0
    with select.epoll() as poll:
        cpu, start = cpu_seconds(broker.pid), time.perf_counter()
        try:
            while begun < visits or waiting:
                while begun < visits and len(waiting) < IN_FLIGHT:
                    visit = visitor.visit()
                    begun += 1
                    secured = next(visit, None)
                    if secured is not None:  # otherwise the broker was quicker than the first read
                        waiting[secured.fileno()] = visit
                        poll.register(secured.fileno(), select.EPOLLIN)
                ready = poll.poll(TIMEOUT_SECONDS) if waiting else []
                if not ready and waiting:
                    raise TimeoutError(f"no response within {TIMEOUT_SECONDS} s")
                for fd, _ in ready:
                    if next(waiting[fd], None) is None:  # its socket is closed, and with it left the poll
                        del waiting[fd]
        finally:
            for visit in waiting.values():
                visit.close()
        seconds = time.perf_counter() - start
        cpu = cpu_seconds(broker.pid) - cpu
    return figures_of(
        requests=visits,
        messages=visits,
        size_bytes=0,
        seconds=seconds,
        cpu_seconds=cpu,
        latencies=visitor.latencies[-visits:],
    )


def _request(number: int) -> bytearray:
    request = api_versions_frame()
    request[CORRELATION_AT : CORRELATION_AT + 4] = number.to_bytes(4, "big")
    return request


def _is_whole(answer: bytearray) -> bool:
    return len(answer) >= LENGTH_SIZE and len(answer) >= LENGTH_SIZE + int.from_bytes(answer[:LENGTH_SIZE], "big")


def _check(answer: bytearray, number: int) -> None:
    correlation_id = int.from_bytes(answer[4:8], "big")
    code = int.from_bytes(answer[8:10], "big")
    if correlation_id != number or code or API_VERSIONS not in read_api_versions_answer(answer[LENGTH_SIZE:]):
        raise WrongAnswer(f"ApiVersions {number}: correlation id {correlation_id}, error {code}, or without itself")
