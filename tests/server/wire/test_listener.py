from __future__ import annotations

import errno
import socket

import pytest

from kbroker.errors import UserError
from kbroker.server.wire.listener import bind_all


def close_all(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def test_port_zero_takes_a_free_one_and_reports_it() -> None:
    sockets = bind_all("127.0.0.1", 0)
    try:
        assert sockets[0].getsockname()[0] == "127.0.0.1"
        assert sockets[0].getsockname()[1] > 0
    finally:
        close_all(sockets)


def test_a_name_with_two_addresses_gets_both_on_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    infos = [
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.2", 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0)),  # not an address of this machine: left out
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: infos)
    sockets = bind_all("a-name", 0)
    try:
        addresses = [sock.getsockname() for sock in sockets]
        assert [host for host, _ in addresses] == ["127.0.0.1", "127.0.0.2"]
        assert len({port for _, port in addresses}) == 1
    finally:
        close_all(sockets)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6_works() -> None:
    try:
        sockets = bind_all("::1", 0)
    except UserError as error:
        pytest.skip(str(error))
    try:
        with socket.create_connection(sockets[0].getsockname()[:2], timeout=5):
            pass
    finally:
        close_all(sockets)


def test_an_empty_host_means_every_address() -> None:
    sockets = bind_all("", 0)
    try:
        with socket.create_connection(("127.0.0.1", sockets[0].getsockname()[1]), timeout=5):
            pass
    finally:
        close_all(sockets)


def test_every_address_is_ipv4_where_ipv6_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    create_server = socket.create_server

    def without_ipv6(address: tuple[str, int], *, family: int, backlog: int, dualstack_ipv6: bool) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "no IPv6")
        return create_server(address, family=family, backlog=backlog, dualstack_ipv6=dualstack_ipv6)

    monkeypatch.setattr(socket, "create_server", without_ipv6)
    sockets = bind_all("", 0)
    try:
        assert [sock.family for sock in sockets] == [socket.AF_INET]
    finally:
        close_all(sockets)


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_port_in_use_is_one_clear_line(host: str) -> None:
    sockets = bind_all(host, 0)
    try:
        port = sockets[0].getsockname()[1]
        with pytest.raises(UserError, match=f":{port}: the port is in use") as caught:
            bind_all(host, port)
        assert "\n" not in str(caught.value)
    finally:
        close_all(sockets)


@pytest.mark.parametrize(
    ("host", "says"), [("192.0.2.1", "does not have this address"), ("no-such-host.invalid", "resolved")]
)
def test_an_address_that_is_not_ours_is_one_clear_line(host: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        bind_all(host, 0)
