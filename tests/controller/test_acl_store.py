"""ACLs in the metadata tree: Kafka 3.9's nodes, announcements to other brokers, conflicts, damaged nodes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.controller.acl_store import AclStore
from kbroker.controller.trees.embedded_store import open_embedded_store
from kbroker.controller.trees.tree import NoNode, Tree
from kbroker.controller.trees.znodes import BadNode
from kbroker.protocol.acl_codes import MATCH, AclOperation, ResourceType
from kbroker.protocol.error_codes import ErrorCode
from kbroker.security.acls.decision import AclRules
from kbroker.security.acls.entries import AclBinding
from kbroker.security.acls.filters import AclFilter
from kbroker.security.acls.index import AclIndex
from kbroker.security.acls.text import parse_acl
from tests.controller.conftest import EmbeddedSessions, Sessions
from tests.controller.unreliable_tree import UnreliableTree, open_unreliable

READ_A = ("User:a", "h", AclOperation.READ, ResourceType.TOPIC, "t")


class SettableClock:
    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


def store_of(tree: Tree, clock: SettableClock | None = None) -> AclStore:
    return AclStore(tree, AclIndex(AclRules()), clock or SettableClock(), timeout_s=10)


def acls(*lines: str) -> list[AclBinding]:
    return [binding for line in lines for binding in parse_acl(line)]


@asynccontextmanager
async def running(store: AclStore) -> AsyncIterator[AclStore]:
    await store.load()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run)
        yield store
        nursery.cancel_scope.cancel()


async def wait_until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not condition():
            await wait_all_tasks_blocked(0.01)


async def test_entries_have_the_nodes_and_announcements_of_kafka(tree: Tree) -> None:
    store = store_of(tree)
    await store.load()
    bindings = acls(
        "allow User:a DescribeConfigs topic t",
        "deny User:* All transactional_id tx-* from 10.0.0.1",
        "allow User:a Create cluster",
    )
    assert await store.add(bindings) == [None, None, None]
    assert json.loads((await tree.get("/kafka-acl/Topic/t")).data) == {
        "version": 1,
        "acls": [{"principal": "User:a", "permissionType": "Allow", "operation": "DescribeConfigs", "host": "*"}],
    }
    assert json.loads((await tree.get("/kafka-acl-extended/prefixed/TransactionalId/tx-")).data)["acls"] == [
        {"principal": "User:*", "permissionType": "Deny", "operation": "All", "host": "10.0.0.1"}
    ]
    literal = [
        (await tree.get(f"/kafka-acl-changes/{name}")).data for name in await tree.children("/kafka-acl-changes")
    ]
    assert literal == [b"TOPIC:t", b"CLUSTER:kafka-cluster"]
    (name,) = await tree.children("/kafka-acl-extended-changes")
    assert name == "acl_changes_0000000000"
    assert json.loads((await tree.get(f"/kafka-acl-extended-changes/{name}")).data) == {
        "version": 1,
        "resourceType": "TRANSACTIONAL_ID",
        "name": "tx-",
        "patternType": "PREFIXED",
    }
    assert await tree.children("/kafka-acl") == [
        "Cluster",
        "DelegationToken",
        "Group",
        "Topic",
        "TransactionalId",
        "User",
    ]


async def test_a_new_store_loads_all_entries(sessions: Sessions, tree: Tree) -> None:
    bindings = acls("allow User:a Read,Write topic t", "deny User:b All group g-*", "allow User:c Alter cluster")
    first = store_of(tree)
    await first.load()
    await first.add(bindings)
    second = store_of(await sessions.open())
    await second.load()
    assert sorted(second.index.bindings()) == sorted(bindings)


async def test_the_last_entry_removes_the_node(tree: Tree) -> None:
    store = store_of(tree)
    await store.load()
    await store.add(acls("allow User:a Read topic t", "allow User:b Read topic t"))
    await store.remove([AclFilter(principal="User:a")])
    assert len(json.loads((await tree.get("/kafka-acl/Topic/t")).data)["acls"]) == 1
    await store.remove([AclFilter()])
    with pytest.raises(NoNode):
        await tree.get("/kafka-acl/Topic/t")
    assert list(store.index.bindings()) == []


async def test_an_entry_is_reported_to_the_first_filter_that_matches(tree: Tree) -> None:
    store = store_of(tree)
    await store.load()
    on_t, on_prefix, other = acls(
        "allow User:a Read topic t", "allow User:b Read topic t*", "allow User:c Read topic u"
    )
    await store.add([on_t, on_prefix, other])
    filters = [AclFilter(ResourceType.TOPIC, "t", 3), AclFilter(ResourceType.TOPIC, "t", MATCH), AclFilter(name="none")]
    removed = await store.remove(filters)
    assert [[binding for binding, _ in outcomes] for outcomes in removed] == [[on_t], [on_prefix], []]
    assert list(store.index.bindings()) == [other]


async def test_an_entry_that_exists_is_not_written_again(tree: Tree) -> None:
    store = store_of(tree)
    await store.load()
    for _ in range(2):
        assert await store.add(acls("allow User:a Read topic t")) == [None]
    assert len(await tree.children("/kafka-acl-changes")) == 1


async def test_another_broker_follows_the_changes(sessions: Sessions, tree: Tree) -> None:
    async with running(store_of(tree)) as writer, running(store_of(await sessions.open())) as reader:
        await writer.add(acls("allow User:a Read topic t", "allow User:a Read topic pre*"))
        assert writer.index.allows(*READ_A)  # at once
        await wait_until(lambda: reader.index.allows(*READ_A))
        await wait_until(lambda: len(list(reader.index.bindings())) == 2)
        await reader.remove([AclFilter(principal="User:a")])
        assert not reader.index.allows(*READ_A)
        await wait_until(lambda: not writer.index.allows(*READ_A))
        await wait_until(lambda: not list(writer.index.bindings()))


async def test_two_brokers_add_entries_to_one_resource_at_the_same_time(sessions: Sessions, tree: Tree) -> None:
    async with running(store_of(tree)) as first, running(store_of(await sessions.open())) as second:
        outcomes: list[object] = []

        async def add(store: AclStore, user: str) -> None:
            outcomes.extend(await store.add(acls(f"allow User:{user} Read topic t")))

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(add, first, f"first-{number}")
                nursery.start_soon(add, second, f"second-{number}")
        assert outcomes == [None] * 8
        assert len(json.loads((await tree.get("/kafka-acl/Topic/t")).data)["acls"]) == 8
        await wait_until(lambda: len(list(first.index.bindings())) == len(list(second.index.bindings())) == 8)


async def test_a_new_session_reads_what_changed_meanwhile(sessions: Sessions, tree: Tree) -> None:
    other = store_of(await sessions.open())
    async with running(store_of(tree)) as store:
        await store.add(acls("allow User:a Read topic t"))
        await other.load()
        await other.remove([AclFilter()])
        await other.add(acls("allow User:b Read topic u"))
        for name in await tree.children("/kafka-acl-changes"):
            await tree.delete(f"/kafka-acl-changes/{name}")  # as if they had expired
        await sessions.expire(tree)
        await wait_until(lambda: [b.entry.principal for b in store.index.bindings()] == ["User:b"])


async def test_announcements_are_deleted_after_15_minutes(tree: Tree) -> None:
    clock = SettableClock()
    async with running(store_of(tree, clock)) as store:
        await store.add(acls("allow User:a Read topic t"))
        await wait_until(lambda: len(store._changes.seen) == 1)
        clock.ms += 16 * 60_000
        await store.add(acls("allow User:b Read topic t"))
        with trio.fail_after(20):
            while await tree.children("/kafka-acl-changes") != ["acl_changes_0000000001"]:
                await wait_all_tasks_blocked(0.01)


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"version":1,"acls":[{"principal":"User:a"}]}', b'{"acls":[3]}'])
async def test_a_damaged_node_refuses_the_start(tree: Tree, data: bytes) -> None:
    store = store_of(tree)
    await store.load()
    await tree.create("/kafka-acl/Topic/t", data)
    with pytest.raises(BadNode, match="/kafka-acl/Topic/t"):
        await store_of(tree).load()


async def test_a_node_that_is_damaged_later_keeps_the_known_entries(
    tree: Tree, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(store_of(tree)) as store:
        await store.add(acls("allow User:a Read topic t"))
        await tree.set("/kafka-acl/Topic/t", b"{")
        await tree.create("/kafka-acl-changes/acl_changes_", b"TOPIC:t", sequential=True)
        await wait_until(lambda: "Kept the known ACLs" in caplog.text)
        assert store.index.allows(*READ_A)
        (refusal,) = await store.add(acls("allow User:b Read topic t"))
        assert refusal is not None
        assert refusal.code == ErrorCode.UNKNOWN_SERVER_ERROR


@pytest.mark.parametrize("name", ["..", "a\x01b"])
async def test_a_name_that_no_node_can_have_is_refused(tree: Tree, name: str) -> None:
    store = store_of(tree)
    await store.load()
    ((pattern, entry),) = acls("allow User:a Read group g")
    (refusal,) = await store.add([AclBinding(pattern._replace(name=name), entry)])
    assert refusal is not None
    assert (refusal.code, refusal.message) == (ErrorCode.INVALID_REQUEST, "Failed to create ACL")
    assert list(store.index.bindings()) == []


async def test_nodes_of_apache_kafka_are_read(tree: Tree) -> None:
    """Bytes as kafka-acls of 3.9 writes them: other order of the fields, upper case in old nodes."""
    store = store_of(tree)
    await store.load()
    await tree.create(
        "/kafka-acl/Topic/t",
        b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Read","host":"*"},'
        b'{"host":"*","operation":"DESCRIBE_CONFIGS","permissionType":"DENY","principal":"User:b"}]}',
    )
    await tree.create("/kafka-acl/Group/empty", b"")
    other = store_of(tree)
    await other.load()
    assert len(list(other.index.bindings())) == 2
    assert other.index.allows(*READ_A)


async def test_known_entries_stay_in_force_while_the_tree_is_away() -> None:
    async with open_unreliable_store() as (tree, other), running(store_of(tree)) as store:
        await store.add(acls("allow User:a Read topic t"))
        tree.suspend()
        (refusal,) = await store.add(acls("allow User:b Read topic t"))
        assert refusal is not None
        assert refusal.code == ErrorCode.REQUEST_TIMED_OUT
        assert store.index.allows(*READ_A)
        writer = store_of(other)
        await writer.load()
        await writer.remove([AclFilter()])
        assert store.index.allows(*READ_A)
        tree.resume()
        await wait_until(lambda: not store.index.allows(*READ_A))


async def test_an_answer_that_is_lost_is_found_out_by_the_announcement() -> None:
    async with open_unreliable_store() as (tree, _), running(store_of(tree)) as store:
        tree.lose("write /kafka-acl/Topic/t")
        (refusal,) = await store.add(acls("allow User:a Read topic t"))
        assert refusal is not None
        assert refusal.code == ErrorCode.REQUEST_TIMED_OUT
        await wait_until(lambda: store.index.allows(*READ_A))


@asynccontextmanager
async def open_unreliable_store() -> AsyncIterator[tuple[UnreliableTree, Tree]]:
    """Opens two sessions of one tree; the first is unreliable."""
    async with open_embedded_store(":memory:") as store:
        sessions = EmbeddedSessions(store)
        yield await open_unreliable(sessions), await sessions.open()
