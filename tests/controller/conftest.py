"""Trees for the controller's tests: the embedded tree, and a real ZooKeeper if a JDK is installed."""

from __future__ import annotations

import importlib.util
import itertools
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any, Protocol

import pytest
from kazoo.client import KazooClient

from kbroker.controller.trees.embedded_store import EmbeddedStore, open_embedded_store
from kbroker.controller.trees.embedded_tree import EmbeddedTree
from kbroker.controller.trees.tree import Tree
from kbroker.controller.trees.zookeeper_tree import ZooKeeperTree, open_zookeeper_tree

STARTUP_SECONDS = 60


class Sessions(Protocol):
    """Opens, closes and expires sessions of one tree."""

    async def open(self) -> Tree: ...

    async def close(self, tree: Tree) -> None: ...

    async def expire(self, tree: Tree) -> None: ...


class EmbeddedSessions:
    def __init__(self, store: EmbeddedStore) -> None:
        self.store = store

    async def open(self) -> Tree:
        return EmbeddedTree(self.store, await self.store.run(self.store.open_session))

    async def close(self, tree: Tree) -> None:
        await self.store.run(self.store.end_session, tree.session_id)

    async def expire(self, tree: Tree) -> None:
        assert isinstance(tree, EmbeddedTree)
        await tree.expire()


class ZooKeeperSessions:
    def __init__(self, connect: str, stack: AsyncExitStack) -> None:
        self.connect = connect
        self.stack = stack

    async def open(self) -> Tree:
        return await self.stack.enter_async_context(open_zookeeper_tree(self.connect))

    async def close(self, tree: Tree) -> None:
        assert isinstance(tree, ZooKeeperTree)
        tree._client.stop()

    async def expire(self, tree: Tree) -> None:
        """Expires the session: another client takes it over and closes it."""
        assert isinstance(tree, ZooKeeperTree)
        thief = KazooClient(self.connect.partition("/")[0], client_id=tree._client.client_id)
        thief.start(timeout=STARTUP_SECONDS)
        thief.stop()
        thief.close()


@pytest.fixture(scope="session")
def zookeeper(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Runs a ZooKeeper during the tests. Returns its HOST:PORT."""
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        pytest.skip("needs a JDK and pyspark, whose jars hold a ZooKeeper: pyspark is not installed")
    directory = tmp_path_factory.mktemp("zookeeper")
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    (directory / "zoo.cfg").write_text(
        f"dataDir={directory / 'data'}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
        "admin.enableServer=false\ntickTime=500\nmaxClientCnxns=0\n"
    )
    classpath = str(Path(spark.origin).parent / "jars" / "*")
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    # Small and quick to start: the tests create a few hundred nodes.
    options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no"]
    with (directory / "log.txt").open("wb") as log:
        server = subprocess.Popen(
            [java, *options, "-cp", classpath, main, str(directory / "zoo.cfg")], stdout=log, stderr=log, cwd=directory
        )
    try:
        _wait_until_it_answers(f"127.0.0.1:{port}", directory / "log.txt")
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def _wait_until_it_answers(address: str, log: Path) -> None:
    client = KazooClient(address, connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": 0.2})
    try:
        client.start(timeout=STARTUP_SECONDS)
    except client.handler.timeout_exception:
        pytest.fail(f"ZooKeeper did not start:\n{log.read_text()[-2000:]}")
    client.stop()
    client.close()


@pytest.fixture(params=["embedded", pytest.param("zookeeper", marks=pytest.mark.jvm)])
def zookeeper_address(request: pytest.FixtureRequest) -> str | None:
    """Address of the ZooKeeper, or None for the embedded tree."""
    address: str | None = request.getfixturevalue("zookeeper") if request.param == "zookeeper" else None
    return address


_chroots = itertools.count()


@pytest.fixture
async def sessions(zookeeper_address: str | None) -> AsyncIterator[Sessions]:
    """Every test gets a new, empty tree."""
    async with AsyncExitStack() as stack:
        if zookeeper_address is None:
            yield EmbeddedSessions(await stack.enter_async_context(open_embedded_store(":memory:")))
        else:
            yield ZooKeeperSessions(f"{zookeeper_address}/test-{next(_chroots)}", stack)


@pytest.fixture
async def tree(sessions: Any) -> Tree:
    opened: Tree = await sessions.open()
    return opened
