"""Trees for the controller's tests: the embedded tree, and a real ZooKeeper if a JDK is installed."""

from __future__ import annotations

import importlib.util
import itertools
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest
from kazoo.client import KazooClient

from compat_tests.process import free_ports
from kbroker.controller.trees.embedded_store import EmbeddedStore, open_embedded_store
from kbroker.controller.trees.embedded_tree import EmbeddedTree
from kbroker.controller.trees.tree import Tree
from kbroker.controller.trees.zookeeper_tree import ZooKeeperTree, open_zookeeper_tree
from tests.security.certificates import Authority

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
    (port,) = free_ports(1)
    with running_zookeeper(java, tmp_path_factory.mktemp("zookeeper"), port):
        yield f"127.0.0.1:{port}"


@contextmanager
def running_zookeeper(
    java: str, directory: Path, port: int, configs: Sequence[str] = (), options: Sequence[str] = ()
) -> Iterator[None]:
    """Runs a ZooKeeper. `configs`: further lines of zoo.cfg. `options`: further options of Java."""
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        pytest.skip("needs a JDK and pyspark, whose jars hold a ZooKeeper: pyspark is not installed")
    lines = [
        f"dataDir={directory / 'data'}",
        f"clientPort={port}",
        "clientPortAddress=127.0.0.1",
        "admin.enableServer=false",
        "tickTime=500",
        "maxClientCnxns=0",
        *configs,
    ]
    (directory / "zoo.cfg").write_text("".join(f"{line}\n" for line in lines))
    classpath = str(Path(spark.origin).parent / "jars" / "*")
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    # Small and quick to start: the tests create a few hundred nodes.
    small = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no"]
    with (directory / "log.txt").open("wb") as log:
        server = subprocess.Popen(
            [java, *small, *options, "-cp", classpath, main, str(directory / "zoo.cfg")],
            stdout=log,
            stderr=log,
            cwd=directory,
        )
    try:
        _wait_until_it_answers(f"127.0.0.1:{port}", directory / "log.txt")
        yield
    finally:
        server.kill()
        server.wait()


class SecuredZooKeeper(NamedTuple):
    """A ZooKeeper with TLS that knows clients by certificates and by logins."""

    plain: str
    """HOST:PORT without TLS, for a look at it from outside."""
    address: str
    """HOST:PORT with TLS."""
    authority: Authority
    """It trusts certificates of this authority."""
    jaas_file: str
    """Login of the user `kafka`, for kbroker and for Apache Kafka."""

    def tls(self, certificate: str | None = None, **others: str) -> dict[str, str]:
        """Returns properties of a broker that connects with TLS; Apache Kafka takes them too."""
        properties = {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
            "zookeeper.ssl.truststore.location": self.authority.file,
            "zookeeper.ssl.truststore.type": "PEM",
        }
        if certificate is not None:
            properties |= {"zookeeper.ssl.keystore.location": certificate, "zookeeper.ssl.keystore.type": "PEM"}
        return properties | {f"zookeeper.{name.replace('_', '.')}": text for name, text in others.items()}


_LOGIN_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule required"


def jaas_file(directory: Path, password: str = "z-secret") -> str:
    """Returns a new JAAS file with a login of the user `kafka`."""
    path = directory / "client.jaas"
    path.write_text(f'Client {{\n  {_LOGIN_MODULE}\n  username="kafka" password="{password}";\n}};\n')
    path.chmod(0o600)
    return str(path)


@pytest.fixture(scope="session")
def secured_zookeeper(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredZooKeeper]:
    directory = tmp_path_factory.mktemp("secured-zookeeper")
    authority = Authority(directory / "certificates")
    jaas = directory / "server.jaas"
    jaas.write_text(f'Server {{ {_LOGIN_MODULE} user_kafka="z-secret"; }};\n')
    plain, secured = free_ports(2)
    configs = [
        f"secureClientPort={secured}",
        "secureClientPortAddress=127.0.0.1",
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        f"ssl.keyStore.location={authority.pem('zookeeper', hosts=('127.0.0.1',))}",
        f"ssl.trustStore.location={authority.file}",
        "ssl.clientAuth=want",
        "ssl.enabledProtocols=TLSv1.2,TLSv1.3",
        "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
    ]
    with running_zookeeper(java, directory, plain, configs, [f"-Djava.security.auth.login.config={jaas}"]):
        yield SecuredZooKeeper(f"127.0.0.1:{plain}", f"127.0.0.1:{secured}", authority, jaas_file(directory))


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
