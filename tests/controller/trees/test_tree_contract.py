"""Contract of the metadata tree: the same tests run on the embedded tree and on a real ZooKeeper."""

from __future__ import annotations

import math

import pytest
import trio

from kbroker.controller.trees.tree import (
    MAX_NODE_SIZE,
    BadVersion,
    Check,
    Create,
    Delete,
    InvalidPath,
    NoChildrenForEphemerals,
    NodeExists,
    NodeTooLarge,
    NoNode,
    NotEmpty,
    SessionState,
    SetData,
    Stat,
    Tree,
    TreeError,
    TreeOperation,
    WatchEvent,
    WatchKind,
    ensure_path,
)
from tests.controller.conftest import Sessions


class Events:
    """Records a watch's events and waits for them."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[WatchEvent](math.inf)

    def __call__(self, event: WatchEvent) -> None:
        self._send.send_nowait(event)

    async def wait_next(self) -> tuple[WatchKind, str]:
        with trio.fail_after(30):
            event = await self._receive.receive()
        return event.kind, event.path

    def is_empty(self) -> bool:
        return self._receive.statistics().current_buffer_used == 0


async def test_a_created_node_is_read_back_with_its_stat(tree: Tree) -> None:
    assert await tree.create("/a", b"one") == "/a"
    data, stat = await tree.get("/a")
    assert data == b"one"
    assert stat.version == 0
    assert stat.czxid == stat.mzxid > 0
    assert stat.ephemeral_owner == 0


async def test_empty_data_is_empty_bytes(tree: Tree) -> None:
    await tree.create("/a")
    assert (await tree.get("/a")).data == b""


async def test_the_root_exists_from_the_start_and_cannot_be_deleted(tree: Tree) -> None:
    assert await tree.children("/") == []
    with pytest.raises(NodeExists):
        await tree.create("/")
    with pytest.raises(InvalidPath):
        await tree.delete("/")


async def test_create_refuses_an_existing_node_and_a_missing_parent(tree: Tree) -> None:
    await tree.create("/a")
    with pytest.raises(NodeExists) as exists:
        await tree.create("/a")
    assert exists.value.path == "/a"
    with pytest.raises(NoNode):
        await tree.create("/b/c")


@pytest.mark.parametrize("path", ["", "a", "//", "/a/", "/a//b", "/a/../b", "/.", "/a\x00b"])
async def test_illegal_paths_are_refused_everywhere(tree: Tree, path: str) -> None:
    with pytest.raises(InvalidPath):
        await tree.create(path)
    with pytest.raises(InvalidPath):
        await tree.get(path)
    with pytest.raises(InvalidPath):
        await tree.exists(path)
    with pytest.raises(InvalidPath):
        await tree.children(path)


async def test_set_counts_versions_and_advances_mzxid_alone(tree: Tree) -> None:
    await tree.create("/a", b"one")
    before = (await tree.get("/a")).stat
    after = await tree.set("/a", b"two")
    assert after.version == 1
    assert after.czxid == before.czxid
    assert after.mzxid > before.mzxid
    assert await tree.get("/a") == (b"two", after)


async def test_set_and_delete_by_version_refuse_another_version(tree: Tree) -> None:
    await tree.create("/a", b"one")
    await tree.set("/a", b"two", version=0)
    with pytest.raises(BadVersion):
        await tree.set("/a", b"three", version=0)
    with pytest.raises(BadVersion):
        await tree.delete("/a", version=0)
    assert (await tree.get("/a")).data == b"two"
    await tree.delete("/a", version=1)
    assert await tree.exists("/a") is None


async def test_a_missing_node_cannot_be_read_set_deleted_or_listed(tree: Tree) -> None:
    for call in (tree.get("/a"), tree.set("/a", b""), tree.delete("/a"), tree.children("/a")):
        with pytest.raises(NoNode):
            await call


async def test_a_node_with_children_cannot_be_deleted(tree: Tree) -> None:
    await ensure_path(tree, "/a/b")
    with pytest.raises(NotEmpty):
        await tree.delete("/a")
    await tree.delete("/a/b")
    await tree.delete("/a")


async def test_children_are_names_of_the_next_level_only(tree: Tree) -> None:
    for path in ("/a/c", "/a/b/deep", "/ab", "/a/B"):
        await ensure_path(tree, path)
    assert await tree.children("/a") == ["B", "b", "c"]
    assert await tree.children("/") == ["a", "ab"]
    assert await tree.children("/a/c") == []


async def test_a_recreated_node_starts_over_with_a_later_czxid(tree: Tree) -> None:
    await tree.create("/a")
    first = await tree.set("/a", b"x")
    await tree.delete("/a")
    await tree.create("/a")
    again = (await tree.get("/a")).stat
    assert again.version == 0
    assert again.czxid > first.mzxid


async def test_sequential_nodes_are_numbered_by_their_parent_and_never_twice(tree: Tree) -> None:
    await tree.create("/q")
    assert await tree.create("/q/n_", sequential=True) == "/q/n_0000000000"
    assert await tree.create("/q/other_", sequential=True) == "/q/other_0000000001"
    await tree.delete("/q/n_0000000000")
    assert await tree.create("/q/n_", b"data", sequential=True) == "/q/n_0000000002"
    assert (await tree.get("/q/n_0000000002")).data == b"data"


async def test_get_many_answers_in_order_with_none_for_missing_nodes(tree: Tree) -> None:
    await tree.create("/a", b"1")
    await tree.create("/b", b"2")
    nodes = await tree.get_many(["/b", "/missing", "/a"])
    assert [node and node.data for node in nodes] == [b"2", None, b"1"]
    assert await tree.get_many([]) == []


async def test_get_many_sets_watches_on_nodes_that_exist(tree: Tree) -> None:
    await tree.create("/a")
    fired: list[str] = []

    def watch(event: WatchEvent) -> None:
        fired.append(event.path)

    await tree.get_many(["/a", "/missing"], [watch, watch])
    await tree.set("/a", b"1")
    await tree.create("/missing")
    await tree.set("/a", b"2")
    await tree.exists("/a")
    assert fired == ["/a"]


async def test_get_many_reads_thousands(tree: Tree) -> None:
    paths = [f"/n{i}" for i in range(1200)]
    for start in range(0, len(paths), 400):
        await tree.multi([Create(path, path.encode()) for path in paths[start : start + 400]])
    assert [node and node.data for node in await tree.get_many(paths)] == [path.encode() for path in paths]


async def test_nodes_up_to_the_limit_are_kept_and_larger_ones_refused(tree: Tree) -> None:
    data = bytes(MAX_NODE_SIZE - 100)
    await tree.create("/a", data)
    assert (await tree.get("/a")).data == data
    with pytest.raises(NodeTooLarge):
        await tree.create("/b", bytes(MAX_NODE_SIZE + 1))
    with pytest.raises(NodeTooLarge):
        await tree.multi([Create("/c", bytes(600_000)), Create("/d", bytes(600_000))])
    assert await tree.children("/") == ["a"]


async def test_multi_does_everything_under_one_zxid_and_answers_in_order(tree: Tree) -> None:
    await tree.create("/a", b"old")
    await tree.create("/gone")
    created, stat, checked, deleted, numbered = await tree.multi(
        [
            Create("/b", b"b"),
            SetData("/a", b"new", version=0),
            Check("/a", 1),
            Delete("/gone"),
            Create("/b/n_", sequential=True),
        ]
    )
    assert created == "/b"
    assert isinstance(stat, Stat)
    assert stat.version == 1
    assert (checked, deleted) == (None, None)
    assert numbered == "/b/n_0000000000"
    assert (await tree.get("/b")).stat.czxid == (await tree.get("/a")).stat.mzxid == stat.mzxid
    assert await tree.multi([]) == []


@pytest.mark.parametrize(
    ("failing", "error"),
    [
        (Create("/a"), NodeExists),
        (Create("/missing/child"), NoNode),
        (SetData("/missing", b""), NoNode),
        (SetData("/a", b"", version=7), BadVersion),
        (Delete("/a", version=7), BadVersion),
        (Delete("/missing"), NoNode),
        (Delete("/parent"), NotEmpty),
        (Check("/a", 7), BadVersion),
        (Check("/missing", 0), NoNode),
    ],
    ids=repr,
)
async def test_a_multi_with_one_failure_changes_nothing(
    tree: Tree, failing: TreeOperation, error: type[TreeError]
) -> None:
    await tree.create("/a", b"old")
    await ensure_path(tree, "/parent/child")
    before = await tree.get("/a")
    with pytest.raises(error) as failure:
        await tree.multi([SetData("/a", b"new", version=0), Create("/z"), failing, Create("/y")])
    # The SetData before it bumps the version: a check of the old version must fail at its own index.
    assert failure.value.index == 2
    assert failure.value.path == failing.path
    assert await tree.get("/a") == before
    assert await tree.children("/") == ["a", "parent"]


async def test_ephemeral_nodes_belong_to_the_session_and_have_no_children(tree: Tree) -> None:
    await tree.create("/e", ephemeral=True)
    assert (await tree.get("/e")).stat.ephemeral_owner == tree.session_id != 0
    with pytest.raises(NoChildrenForEphemerals):
        await tree.create("/e/child")


async def test_closing_a_session_removes_its_ephemeral_nodes_and_only_those(sessions: Sessions, tree: Tree) -> None:
    other = await sessions.open()
    assert other.session_id != tree.session_id
    await other.create("/theirs", ephemeral=True)
    await other.create("/kept")
    await tree.create("/mine", ephemeral=True)
    gone = Events()
    await tree.exists("/theirs", gone)
    await sessions.close(other)
    assert await gone.wait_next() == (WatchKind.DELETED, "/theirs")
    assert await tree.children("/") == ["kept", "mine"]


async def test_a_lost_session_takes_its_ephemeral_nodes_and_a_new_one_follows(sessions: Sessions, tree: Tree) -> None:
    states: list[SessionState] = []
    is_back = trio.Event()

    def on_state(state: SessionState) -> None:
        states.append(state)
        if SessionState.LOST in states and state is SessionState.CONNECTED:
            is_back.set()

    assert tree.session_state is SessionState.CONNECTED
    first = tree.session_id
    tree.add_session_listener(on_state)
    await tree.create("/e", ephemeral=True)
    await sessions.expire(tree)
    with trio.fail_after(60):
        await is_back.wait()
    assert tree.session_state is SessionState.CONNECTED
    assert tree.session_id != first
    assert await tree.exists("/e") is None
    await tree.create("/e", ephemeral=True)
    assert (await tree.get("/e")).stat.ephemeral_owner == tree.session_id


async def test_a_data_watch_fires_once_for_a_change_and_before_the_change_is_answered(tree: Tree) -> None:
    events = Events()
    await tree.create("/a")
    await tree.get("/a", events)
    await tree.set("/a", b"1")
    assert await events.wait_next() == (WatchKind.DATA_CHANGED, "/a")
    await tree.set("/a", b"2")
    await tree.delete("/a")
    await tree.exists("/")
    assert events.is_empty()


async def test_a_watch_of_another_session_fires_before_it_reads_the_change(sessions: Sessions, tree: Tree) -> None:
    other = await sessions.open()
    events = Events()
    await tree.create("/a", b"old")
    await other.get("/a", events)
    await tree.set("/a", b"new")
    while (await other.get("/a")).data == b"old":
        assert events.is_empty()
    assert not events.is_empty()


async def test_an_exists_watch_fires_when_a_node_is_created_and_deleted(tree: Tree) -> None:
    events = Events()
    assert await tree.exists("/a", events) is None
    await tree.create("/a")
    assert await events.wait_next() == (WatchKind.CREATED, "/a")
    assert await tree.exists("/a", events) is not None
    await tree.delete("/a")
    assert await events.wait_next() == (WatchKind.DELETED, "/a")


async def test_a_read_of_a_missing_node_leaves_no_watch(tree: Tree) -> None:
    events = Events()
    with pytest.raises(NoNode):
        await tree.get("/a", events)
    with pytest.raises(NoNode):
        await tree.children("/a", events)
    await ensure_path(tree, "/a/b")
    await tree.exists("/")
    assert events.is_empty()


async def test_a_children_watch_fires_for_created_and_deleted_children_not_for_their_data(tree: Tree) -> None:
    events = Events()
    await tree.create("/a")
    await tree.children("/a", events)
    await tree.set("/a", b"own data")
    await tree.create("/a/b")
    assert await events.wait_next() == (WatchKind.CHILDREN_CHANGED, "/a")
    assert await tree.children("/a", events) == ["b"]
    await tree.set("/a/b", b"data")
    await tree.delete("/a/b")
    assert await events.wait_next() == (WatchKind.CHILDREN_CHANGED, "/a")
    assert await tree.children("/a", events) == []
    await tree.delete("/a")
    assert await events.wait_next() == (WatchKind.DELETED, "/a")
    assert events.is_empty()


async def test_a_refused_write_fires_nothing(tree: Tree) -> None:
    events = Events()
    await tree.create("/a")
    await tree.get("/a", events)
    await tree.children("/", events)
    with pytest.raises(BadVersion):
        await tree.multi([SetData("/a", b"x"), Create("/b"), Check("/a", 9)])
    await tree.exists("/")
    assert events.is_empty()


async def test_watches_fire_in_the_order_of_the_writes(tree: Tree) -> None:
    events = Events()
    names = [f"/n{i}" for i in range(20)]
    for name in names:
        await tree.exists(name, events)
    for name in names:
        await tree.create(name)
    assert [await events.wait_next() for _ in names] == [(WatchKind.CREATED, name) for name in names]


async def test_concurrent_writers_by_version_never_lose_an_update(tree: Tree) -> None:
    await tree.create("/counter", b"0")

    async def increment() -> None:
        while True:
            data, stat = await tree.get("/counter")
            try:
                await tree.set("/counter", str(int(data) + 1).encode(), stat.version)
            except BadVersion:
                continue
            return

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(increment)
    assert (await tree.get("/counter")).data == b"8"


async def test_a_cancelled_read_leaves_the_tree_usable(tree: Tree) -> None:
    await tree.create("/a", b"1")
    with trio.CancelScope() as scope:
        scope.cancel()
        await tree.get("/a")
    assert scope.cancelled_caught
    assert (await tree.get("/a")).data == b"1"
