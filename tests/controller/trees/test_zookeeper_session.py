"""Sessions with a ZooKeeper that has TLS and logins, and the access rights of the nodes that they create."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import ACL

from kbroker.config.zookeeper import zookeeper_config
from kbroker.controller.metadata_loader import ensure_layout
from kbroker.controller.trees.tree import Create, SessionState
from kbroker.controller.trees.zookeeper_tree import ZooKeeperTree, open_zookeeper_tree
from kbroker.errors import UserError
from kbroker.security.zookeeper_security import zookeeper_security
from tests.controller.conftest import SecuredZooKeeper, jaas_file
from tests.controller.trees.test_zookeeper_tree import proxied
from tests.security.certificates import Authority

pytestmark = pytest.mark.jvm

SET_ACL = {"zookeeper.set.acl": "true"}


@asynccontextmanager
async def session(
    connect: str, properties: dict[str, str], *, timeout_ms: int = 10_000
) -> AsyncIterator[ZooKeeperTree]:
    security = zookeeper_security(zookeeper_config(properties))
    async with open_zookeeper_tree(connect, connection_timeout_ms=timeout_ms, security=security) as tree:
        yield tree


@pytest.fixture
def world(secured_zookeeper: SecuredZooKeeper) -> KazooClient:
    """A client without identity."""
    client = KazooClient(secured_zookeeper.plain)
    client.start()
    yield client
    client.stop()
    client.close()


def rights(client: KazooClient, path: str) -> list[tuple[str, str, list[str]]]:
    found: list[ACL] = client.get_acls(path)[0]
    return sorted((acl.id.scheme, acl.id.id, acl.acl_list) for acl in found)


ANYONE_READS = ("world", "anyone", ["READ"])
NAME = "CN=kafka,O=acme"


async def test_nodes_of_a_broker_with_a_certificate_get_the_rights_of_kafka(
    secured_zookeeper: SecuredZooKeeper, world: KazooClient
) -> None:
    properties = secured_zookeeper.tls(secured_zookeeper.authority.pem("kafka")) | SET_ACL
    creator = ("x509", NAME, ["ALL"])
    async with session(f"{secured_zookeeper.address}/tls", properties) as tree:
        await ensure_layout(tree)
        await tree.create("/config/users/alice", b"hash")
        await tree.create("/brokers/ids/1", b"{}", ephemeral=True)
        changed = await tree.create("/config/changes/config_change_", sequential=True)
        for path in ("", "/brokers", "/brokers/ids/1", "/config", "/config/topics", changed):
            assert rights(world, f"/tls{path}") == [ANYONE_READS, creator], path
        assert rights(world, "/tls/consumers") == [("world", "anyone", ["ALL"])]
        for path in ("/config/users", "/config/users/alice", "/config/brokers"):
            with pytest.raises(NoAuthError):
                world.get(f"/tls{path}")
        with pytest.raises(NoAuthError):
            world.set("/tls/brokers/ids/1", b"")
        assert (await tree.get("/config/users/alice")).data == b"hash"
    async with session(f"{secured_zookeeper.address}/tls", properties) as tree:  # another session, the same identity
        await tree.set("/config/users/alice", b"other")
        await tree.delete("/config/users/alice")


async def test_nodes_of_a_broker_with_a_login_belong_to_its_user(
    secured_zookeeper: SecuredZooKeeper, world: KazooClient
) -> None:
    properties = {"kbroker.zookeeper.jaas.file": secured_zookeeper.jaas_file} | SET_ACL
    creator = ("sasl", "kafka", ["ALL"])
    async with session(f"{secured_zookeeper.plain}/login", properties) as tree:
        await tree.create("/a")
        assert rights(world, "/login/a") == [creator, ANYONE_READS]
    async with session(f"{secured_zookeeper.address}/login", properties | secured_zookeeper.tls()) as tree:
        await tree.create("/b")
        assert rights(world, "/login/b") == [creator, ANYONE_READS]
        await tree.delete("/a")
    both = properties | secured_zookeeper.tls(secured_zookeeper.authority.pem("kafka"))
    async with session(f"{secured_zookeeper.address}/login", both) as tree:
        await tree.create("/c")
        assert rights(world, "/login/c") == [creator, ANYONE_READS, ("x509", NAME, ["ALL"])]


async def test_without_set_acl_everybody_may_do_everything(
    secured_zookeeper: SecuredZooKeeper, world: KazooClient
) -> None:
    properties = secured_zookeeper.tls(secured_zookeeper.authority.pem("kafka"))
    async with session(f"{secured_zookeeper.address}/open", properties) as tree:
        await tree.create("/a")
        assert rights(world, "/open") == rights(world, "/open/a") == [("world", "anyone", ["ALL"])]


async def test_nodes_of_another_identity_are_refused_in_one_line(secured_zookeeper: SecuredZooKeeper) -> None:
    address = f"{secured_zookeeper.address}/others"
    kafka, other = (secured_zookeeper.tls(secured_zookeeper.authority.pem(name)) for name in ("kafka", "other"))
    async with session(address, kafka | SET_ACL) as tree:
        await tree.create("/config")
        await tree.create("/config/users", b"1")
    async with session(address, other | SET_ACL) as tree:
        for refused in (tree.get("/config/users"), tree.set("/config", b"2"), tree.create("/config/topics")):
            with pytest.raises(UserError, match=r"ZooKeeper denies access to /config.*: another identity") as failure:
                await refused
            assert "\n" not in str(failure.value)


async def test_protection_by_an_identity_that_zookeeper_does_not_know_is_refused(
    secured_zookeeper: SecuredZooKeeper,
) -> None:
    # The plaintext port knows no certificates.
    security = zookeeper_security(zookeeper_config({"kbroker.zookeeper.jaas.file": secured_zookeeper.jaas_file}))
    anonymous = type(security)(None, None, True)
    with pytest.raises(UserError, match=r"ZooKeeper did not protect /nobody, as zookeeper\.set\.acl=true demands"):
        async with open_zookeeper_tree(f"{secured_zookeeper.plain}/nobody", security=anonymous):
            pass


async def test_a_zookeeper_with_a_wrong_certificate_is_not_trusted(
    secured_zookeeper: SecuredZooKeeper, tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    properties = secured_zookeeper.tls() | {"zookeeper.ssl.truststore.location": other.file}
    with pytest.raises(UserError, match=r"certificate of the peer is not valid.*check zookeeper\.connect, zoo"):
        async with session(secured_zookeeper.address, properties, timeout_ms=1500):
            pass


async def test_the_host_name_of_zookeeper_is_verified_unless_that_is_off(secured_zookeeper: SecuredZooKeeper) -> None:
    # The certificate is for 127.0.0.1 only.
    address = secured_zookeeper.address.replace("127.0.0.1", "localhost")
    with pytest.raises(UserError, match="Could not connect to ZooKeeper at localhost"):
        async with session(address, secured_zookeeper.tls(), timeout_ms=1500):
            pass
    async with session(address, secured_zookeeper.tls(ssl_endpoint_identification_algorithm="")) as tree:
        assert await tree.exists("/zookeeper") is not None


async def test_a_session_logs_in_again_after_its_connection_was_cut(
    secured_zookeeper: SecuredZooKeeper, world: KazooClient
) -> None:
    properties = {"kbroker.zookeeper.jaas.file": secured_zookeeper.jaas_file} | SET_ACL
    send_state, receive_state = trio.open_memory_channel[SessionState](math.inf)
    async with (
        proxied(secured_zookeeper.plain) as (proxy, address),
        session(f"{address}/again", properties) as tree,
    ):
        tree.add_session_listener(send_state.send_nowait)
        await tree.create("/a")
        proxy.cut()
        with trio.fail_after(30):
            assert await receive_state.receive() is SessionState.SUSPENDED
            assert await receive_state.receive() is SessionState.CONNECTED
        await tree.set("/a", b"1")  # only the user may
        assert rights(world, "/again/a") == [("sasl", "kafka", ["ALL"]), ANYONE_READS]


async def test_a_wrong_password_is_reported_in_one_line(secured_zookeeper: SecuredZooKeeper, tmp_path: Path) -> None:
    wrong = jaas_file(tmp_path, "wrong")
    with pytest.raises(
        UserError, match="the login failed: ZooKeeper does not accept this user and password"
    ) as failure:
        async with session(secured_zookeeper.plain, {"kbroker.zookeeper.jaas.file": wrong}, timeout_ms=1500) as tree:
            await tree.children("/")
    assert "\n" not in str(failure.value)


async def test_many_nodes_are_read_over_tls(secured_zookeeper: SecuredZooKeeper) -> None:
    async with session(f"{secured_zookeeper.address}/many", secured_zookeeper.tls()) as tree:
        paths = [f"/node-{number}" for number in range(2000)]
        await tree.multi([Create(path, path.encode()) for path in paths[:200]])
        found = await tree.get_many(paths)
        assert [node and node.data for node in found] == [*(path.encode() for path in paths[:200]), *[None] * 1800]
