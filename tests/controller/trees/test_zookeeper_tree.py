"""Connection, chroot and imports of the ZooKeeper tree; see test_tree_contract.py for the contract."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, SessionExpiredError

from kbroker.controller.trees.tree import SessionState, WatchEvent
from kbroker.controller.trees.zookeeper_tree import _new_client, open_zookeeper_tree
from kbroker.errors import UserError
from kbroker.security.key_stores import load_key_material
from kbroker.security.tls_context import client_context, server_context
from kbroker.security.zookeeper_security import ZooKeeperSecurity
from tests.security.certificates import Authority, configs


def test_kazoo_is_loaded_only_when_a_zookeeper_is_asked_for() -> None:
    code = "import sys, kbroker.controller.trees.zookeeper_tree; sys.exit('kazoo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_a_zookeeper_that_does_not_answer_is_reported_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UserError, match=f"Could not connect to ZooKeeper at {address}"):
            async with open_zookeeper_tree(address, session_timeout_ms=500, connection_timeout_ms=100):
                pass


def test_bytes_that_tls_has_decrypted_are_readable(tmp_path: Path) -> None:
    """kazoo would wait for the next event of the socket while an answer lies in the buffer of OpenSSL."""
    authority = Authority(tmp_path)
    of_server = configs(ssl_keystore_location=authority.pem("zookeeper"))
    keys = load_key_material(of_server)
    assert keys is not None
    to_server = client_context(configs(ssl_truststore_location=authority.file))
    handler = _new_client("127.0.0.1:1", 1000, ZooKeeperSecurity(to_server)).handler
    near, far = socket.socketpair()

    def serve() -> None:
        with server_context(of_server, keys).wrap_socket(far, server_side=True) as secured:
            secured.sendall(b"answer 1answer 2")  # one record
            secured.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    with to_server.wrap_socket(near, server_hostname="localhost") as secured:
        assert secured.recv(8) == b"answer 1"
        assert secured.pending() == 8
        assert handler.select([secured], [], [], 0)[0] == [secured]
        assert secured.recv(8) == b"answer 2"
        assert handler.select([secured], [], [], 0)[0] == []
        secured.sendall(b"x")
    thread.join()


@pytest.mark.jvm
async def test_all_nodes_are_below_the_path_of_the_address(zookeeper: str) -> None:
    async with (
        open_zookeeper_tree(f"{zookeeper}/below/one") as one,
        open_zookeeper_tree(f"{zookeeper}/below/two/") as two,
        open_zookeeper_tree(zookeeper) as root,
    ):
        assert await one.create("/a") == "/a"
        assert await one.create("/a/n_", sequential=True) == "/a/n_0000000000"
        assert await two.children("/") == []
        assert await root.children("/below") == ["one", "two"]
        assert await root.children("/below/one") == ["a"]


@pytest.mark.jvm
async def test_a_connection_that_is_lost_while_the_path_is_created_is_waited_for(
    zookeeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_path = KazooClient.ensure_path
    losses = [ConnectionLoss(), SessionExpiredError()]

    def losing(client: Any, *arguments: Any) -> Any:
        if losses:
            raise losses.pop()
        return ensure_path(client, *arguments)

    monkeypatch.setattr(KazooClient, "ensure_path", losing)
    async with open_zookeeper_tree(f"{zookeeper}/lost") as tree:
        assert await tree.children("/") == []
    assert losses == []


class Proxy:
    """A proxy between a client and ZooKeeper that can cut their connection."""

    def __init__(self, target: str) -> None:
        host, _colon, port = target.partition(":")
        self.target = (host, int(port))
        self.connections: set[trio.CancelScope] = set()

    async def forward(self, client: trio.SocketStream) -> None:
        with trio.CancelScope() as scope:
            self.connections.add(scope)
            async with client, await trio.open_tcp_stream(*self.target) as server, trio.open_nursery() as nursery:
                nursery.start_soon(self.pump, client, server, scope)
                nursery.start_soon(self.pump, server, client, scope)
        self.connections.discard(scope)

    async def pump(self, source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            async for data in source:
                await sink.send_all(data)
        except trio.BrokenResourceError:
            pass
        scope.cancel()

    def cut(self) -> None:
        for scope in self.connections:
            scope.cancel()


@asynccontextmanager
async def proxied(target: str) -> AsyncIterator[tuple[Proxy, str]]:
    proxy = Proxy(target)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, proxy.forward, [listener])
        yield proxy, f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


@pytest.mark.jvm
async def test_a_cut_connection_suspends_the_session_and_keeps_its_nodes(zookeeper: str) -> None:
    events: list[WatchEvent] = []
    send_state, receive_state = trio.open_memory_channel[SessionState](math.inf)
    async with proxied(zookeeper) as (proxy, address), open_zookeeper_tree(f"{address}/suspended") as tree:
        tree.add_session_listener(send_state.send_nowait)
        await tree.create("/e", ephemeral=True)
        await tree.get("/e", events.append)
        session_id = tree.session_id
        proxy.cut()
        with trio.fail_after(30):
            assert await receive_state.receive() is SessionState.SUSPENDED
            assert await receive_state.receive() is SessionState.CONNECTED
        assert tree.session_id == session_id
        stats = tree.stats
        assert (stats.state, stats.connects, stats.disconnects, stats.expirations) == (SessionState.CONNECTED, 2, 1, 0)
        assert sum(stats.request_times.counts) == 2
        assert (await tree.get("/e")).stat.ephemeral_owner == session_id
        # The watch was dropped with the connection, and does not fire.
        await tree.set("/e", b"changed")
        await tree.get("/e")
        assert events == []
