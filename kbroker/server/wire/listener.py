"""Listening address: binds it, accepts connections, and hands them to a watcher. Knows the listener's protocol."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kbroker.errors import UserError
from kbroker.server.wire.connection import Connection, Watcher
from kbroker.server.wire.connection_limits import Admission
from kbroker.server.wire.network import Network
from kbroker.server.wire.transport import PlainTransport

if TYPE_CHECKING:
    from kbroker.server.wire.tls_transport import ListenerTls, TlsListenerState

__all__ = ["Listener", "bind_all"]

_BACKLOG = 1024
_ACCEPTS_PER_TURN = 64
# Out of descriptors or memory: accepting again at once would only burn CPU.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

# Errors of bind where IPv6 is compiled in and switched off.
_NO_SUCH_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class Listener:
    """Sockets of one listener, one for each address."""

    def __init__(
        self,
        network: Network,
        name: str,
        sockets: list[socket.socket],
        *,
        portable: bool,
        tls: ListenerTls | None = None,
        begin_login: Callable[[Connection], None] | None = None,
    ) -> None:
        """`tls`: None for a listener without TLS. `begin_login`: None if clients do not log in (SASL).

        It is called with each new connection. When the client is logged in, `Network.logins.finish` must be called.
        """
        self.name = name
        self.sockets = sockets
        self.tls_state: TlsListenerState | None = None
        """Context that its TLS connections share; None for a listener without TLS."""
        self._network = network
        self._portable = portable
        self._begin_login = begin_login
        if tls is not None:
            from kbroker.server.wire.tls_transport import TlsListenerState  # loads OpenSSL

            self.tls_state = TlsListenerState(tls, network.clock)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [sock.getsockname()[:2] for sock in self.sockets]

    @property
    def port(self) -> int:
        return self.addresses[0][1]

    def on_acceptable(self, sock: socket.socket, watcher: Watcher, opened: Callable[[Connection], None]) -> bool:
        """Accepts waiting connections. Returns False if the caller must pause before it accepts more."""
        for _ in range(_ACCEPTS_PER_TURN):
            if self._network.quotas.must_wait(self._network.clock.monotonic()):
                self._report_if_full()
                return False
            try:
                accepted, address = sock.accept()
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._network.reports.line(
                        f"Could not accept connections on {self.name}: {os.strerror(error.errno)}"
                    )
                    return False
                # ECONNABORTED, or a network error that accept(2) passes on: only this connection is lost.
                continue
            self._open(accepted, address, watcher, opened)
        return True

    def _report_if_full(self) -> None:
        network = self._network
        if network.quotas.is_full:
            network.reports.connections_full(network.limits.max_connections, network.now)

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()

    def _open(
        self,
        accepted: socket.socket,
        address: tuple[str, int],
        watcher: Watcher,
        opened: Callable[[Connection], None],
    ) -> None:
        host = address[0].removeprefix("::ffff:")  # IPv4 client of a dual-stack socket
        limits, quotas = self._network.limits, self._network.quotas
        admission = quotas.admit(host, self._network.clock.monotonic())
        if admission is Admission.TOO_FAST_FROM_ADDRESS:
            self._network.delayed_close.add(accepted)
            return
        if admission is not Admission.ADMITTED:
            self._network.reports.line(
                f"Rejected connection from {host}, address already has the configured maximum of "
                f"{quotas.max_from(host)} connections."
            )
            accepted.close()
            return
        try:
            transport = PlainTransport(accepted, portable=self._portable)
            transport.set_buffer_sizes(limits.send_buffer_bytes, limits.receive_buffer_bytes)
        except OSError:  # the peer has already reset it
            quotas.leave(host)
            accepted.close()
            return
        connection = self._connect(transport, watcher, host, address[1])
        if self._begin_login is not None:
            self._begin_login(connection)
        if self._begin_login is not None or self.tls_state is not None:
            self._network.logins.begin(connection, self._network.clock.monotonic())
        opened(connection)

    def _connect(self, plain: PlainTransport, watcher: Watcher, host: str, port: int) -> Connection:
        network, state = self._network, self.tls_state
        if state is None:
            return Connection(network, watcher, plain, listener_name=self.name, peer_host=host, peer_port=port)
        from kbroker.server.wire.tls_transport import TlsTransport

        secure = TlsTransport(plain, state)
        connection = Connection(
            network, watcher, secure, listener_name=self.name, peer_host=host, peer_port=port, secure=secure
        )
        secure.on_handshake = partial(self._on_handshake, state.tls, connection)
        secure.wake = partial(watcher.call_again, connection)
        return connection

    def _on_handshake(self, tls: ListenerTls, connection: Connection, certificate: bytes | None) -> None:
        tls.on_handshake(connection, certificate)
        if self._begin_login is None:
            self._network.logins.finish(connection)


def bind_all(host: str, port: int) -> list[socket.socket]:
    """Returns a listening socket for each address of the host, all on one port. An empty host means all addresses.

    Raises UserError if the address cannot be bound.
    """
    where = f"{host or '*'}:{port}"
    try:
        if not host:
            return [_bind_everywhere(port)]
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return _bind_each([(info[0], str(info[4][0])) for info in infos], port)
    except (socket.gaierror, UnicodeError) as error:
        raise UserError(f"Could not listen on {where}: the host name cannot be resolved ({error}).") from error
    except OSError as error:
        raise _bind_error(where, error) from error


def _bind_everywhere(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        try:
            return _bind(socket.AF_INET6, "", port, dualstack=True)
        except OSError as error:
            if error.errno not in _NO_SUCH_FAMILY:
                raise
    return _bind(socket.AF_INET, "", port)


def _bind_each(addresses: list[tuple[socket.AddressFamily, str]], port: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    missing: OSError | None = None
    for family, host in dict.fromkeys(addresses):
        try:
            sockets.append(_bind(family, host, sockets[0].getsockname()[1] if sockets else port))
        except OSError as error:
            # localhost often has an IPv6 address although IPv6 is switched off.
            if error.errno not in _NO_SUCH_FAMILY:
                for sock in sockets:
                    sock.close()
                raise
            missing = error
    if not sockets and missing is not None:
        raise missing
    return sockets


def _bind(family: socket.AddressFamily, host: str, port: int, *, dualstack: bool = False) -> socket.socket:
    sock = socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=dualstack)
    sock.setblocking(False)
    return sock


def _bind_error(where: str, error: OSError) -> UserError:
    if error.errno == errno.EADDRINUSE:
        return UserError(
            f"Could not listen on {where}: the port is in use. Stop the process that uses it, or choose another port."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return UserError(f"Could not listen on {where}: this machine does not have this address.")
    if error.errno == errno.EACCES:
        return UserError(f"Could not listen on {where}: permission denied. Choose a port above 1023.")
    return UserError(f"Could not listen on {where}: {error.strerror or error}.")
