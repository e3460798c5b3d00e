"""A listening address: binds it, accepts what comes, and gives each connection to the watcher that will call it."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable

from kbroker.errors import UserError
from kbroker.server.connection import Connection, Watcher
from kbroker.server.connection_limits import Admission
from kbroker.server.network import Network
from kbroker.server.transport import PlainTransport

__all__ = ["Listener", "bind_all"]

_BACKLOG = 1024
_ACCEPTS_PER_TURN = 64
# Out of descriptors or memory: accepting again at once would only spin.
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

# What binding says where IPv6 is compiled in and switched off.
_NO_SUCH_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class Listener:
    """`on_acceptable` is called when one of its sockets has connections; False means: wait a while before the next."""

    def __init__(self, network: Network, name: str, sockets: list[socket.socket], *, portable: bool) -> None:
        self.name = name
        self.sockets = sockets
        self._network = network
        self._portable = portable

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return [sock.getsockname()[:2] for sock in self.sockets]

    @property
    def port(self) -> int:
        return self.addresses[0][1]

    def on_acceptable(self, sock: socket.socket, watcher: Watcher, opened: Callable[[Connection], None]) -> bool:
        for _ in range(_ACCEPTS_PER_TURN):
            if self._network.quotas.must_wait(self._network.clock.monotonic()):
                self._network.report_if_full()
                return False
            try:
                accepted, address = sock.accept()
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._network.report(f"cannot accept connections on {self.name}: {os.strerror(error.errno)}")
                    return False
                # ECONNABORTED and the network errors that accept(2) passes on: of that one connection, which is gone.
                continue
            self._open(accepted, address, watcher, opened)
        return True

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
        host = address[0].removeprefix("::ffff:")  # an IPv4 client of a socket for both
        limits, quotas = self._network.limits, self._network.quotas
        admission = quotas.admit(host, self._network.clock.monotonic())
        if admission is Admission.TOO_FAST_FROM_ADDRESS:
            self._network.close_later(accepted)
            return
        if admission is not Admission.ADMITTED:
            self._network.report(f"refused a connection from {host} on {self.name}: it has too many")
            accepted.close()
            return
        try:
            transport = PlainTransport(accepted, portable=self._portable)
            transport.limit_buffers(limits.send_buffer_bytes, limits.receive_buffer_bytes)
        except OSError:  # reset before we could look at it
            quotas.leave(host)
            accepted.close()
            return
        connection = Connection(
            self._network, watcher, transport, listener_name=self.name, peer_host=host, peer_port=address[1]
        )
        opened(connection)


def bind_all(host: str, port: int) -> list[socket.socket]:
    """A listening socket for each address that the host has, all on one port; an empty host means every address."""
    where = f"{host or '*'}:{port}"
    try:
        if not host:
            return [_bind_everywhere(port)]
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        return _bind_each([(info[0], str(info[4][0])) for info in infos], port)
    except (socket.gaierror, UnicodeError) as error:
        raise UserError(f"cannot listen on {where}: the name does not resolve ({error})") from error
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
            # localhost often has an IPv6 address on machines where IPv6 is switched off.
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
        return UserError(f"cannot listen on {where}: the port is in use; stop what uses it or choose another")
    if error.errno == errno.EADDRNOTAVAIL:
        return UserError(f"cannot listen on {where}: this machine has no such address")
    if error.errno == errno.EACCES:
        return UserError(f"cannot listen on {where}: not permitted; choose a port above 1023")
    return UserError(f"cannot listen on {where}: {error.strerror or error}")
