"""Health of ZooKeeper: what `srvr` answers, servers that do not answer, and what a user is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import MockClock

from kbroker.client.address import Address
from kbroker.client.admin import zookeeper
from kbroker.client.admin.zookeeper import ZooKeeperHealth, ZooKeeperServer, parse_srvr

ADDRESS = Address("127.0.0.1", 2181)
LEADER = """Zookeeper version: 3.9.3-c26634f34490bb0ea7a09cc51e05ede3b4e320ee, built on 2024-10-17 23:21 UTC
Latency min/avg/max: 0/0.0/0
Connections: 1
Mode: leader
Node count: 5
"""


@pytest.mark.parametrize(
    ("answer", "state", "version"),
    [
        (LEADER, "leader", "3.9.3"),
        ("This ZooKeeper instance is not currently serving requests\n", "not serving", None),
        ("srvr is not executed because it is not in the whitelist.\n", "unknown", None),
        ("\x15\x03\x03\x00\x02", "unknown", None),
        ("", "unknown", None),
    ],
)
def test_the_answer_of_a_server_is_its_state(answer: str, state: str, version: str | None) -> None:
    assert parse_srvr(ADDRESS, answer) == ZooKeeperServer(ADDRESS, state, version)


@pytest.mark.parametrize(
    ("states", "problem"),
    [
        (("leader", "follower", "unreachable"), None),
        (("standalone",), None),
        (("unknown", "unreachable"), None),
        (("not serving", "unreachable", "unreachable"), "no quorum"),
        (("unreachable", "unreachable"), "reachable from this machine"),
    ],
)
def test_servers_without_a_quorum_are_a_problem(states: tuple[str, ...], problem: str | None) -> None:
    found = ZooKeeperHealth("/", tuple(ZooKeeperServer(ADDRESS, state, None) for state in states)).problem
    assert found is None if problem is None else problem in (found or "")


def test_addresses_are_those_of_zookeeper_connect() -> None:
    read = zookeeper._addresses
    assert read("zk1, zk2:2182,[::1]:2183") == [Address("zk1", 2181), Address("zk2", 2182), Address("::1", 2183)]
    assert read("zk1:no:port") == ()


@asynccontextmanager
async def server(answer: bytes | None) -> AsyncIterator[Address]:
    """Serves connections with this answer to `srvr`; with None it never answers."""

    async def serve(stream: trio.SocketStream) -> None:
        assert await stream.receive_some() == b"srvr"
        if answer is None:
            await trio.sleep_forever()
        await stream.send_all(answer or b"")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield Address("127.0.0.1", listener.socket.getsockname()[1])
        nursery.cancel_scope.cancel()


async def test_a_server_is_asked_for_its_state(autojump_clock: MockClock) -> None:
    async with server(LEADER.encode()) as address:
        assert (await zookeeper._read_server(address)).state == "leader"
    assert (await zookeeper._read_server(address)).state == "unreachable"
    async with server(b"") as address:
        assert (await zookeeper._read_server(address)).state == "unknown"
    async with server(None) as address:
        assert (await zookeeper._read_server(address)).state == "unreachable"
