"""The metadata tree in ZooKeeper, by the kazoo client. The only module that imports kazoo.

kazoo's threads only queue calls into trio's thread, in the order in which ZooKeeper's answers and events arrived.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import trio

from kbroker.controller.trees.tree import (
    ANY_VERSION,
    BadVersion,
    Check,
    ConnectionLost,
    Create,
    Delete,
    InvalidPath,
    NoChildrenForEphemerals,
    Node,
    NodeExists,
    NoNode,
    NotEmpty,
    OperationResult,
    SessionListener,
    SessionLost,
    SessionState,
    SetData,
    Stat,
    TreeError,
    TreeOperation,
    Watch,
    WatchEvent,
    WatchKind,
    check_operations,
    path_problem,
)
from kbroker.errors import UserError

__all__ = ["ZooKeeperTree", "open_zookeeper_tree"]

# Concurrent reads: enough to hide the round trip, few enough not to delay the session's pings.
_READ_WINDOW: Final = 500

_ERRORS: Final[dict[str, type[TreeError]]] = {
    "NoNodeError": NoNode,
    "NodeExistsError": NodeExists,
    "BadVersionError": BadVersion,
    "NotEmptyError": NotEmpty,
    "NoChildrenForEphemeralsError": NoChildrenForEphemerals,
    "BadArgumentsError": InvalidPath,
    "ConnectionLoss": ConnectionLost,
    "OperationTimeoutError": ConnectionLost,
    "SessionMovedError": ConnectionLost,
    "SessionExpiredError": SessionLost,
    "ConnectionClosedError": SessionLost,
    "UnknownSessionError": SessionLost,
}
"""kazoo's exceptions by name, so that this module loads without kazoo."""

# Errors that kazoo reports for the operations of a failed multi that are not its cause.
_NOT_THE_CAUSE: Final = ("RolledBackError", "RuntimeInconsistency")

_KINDS: Final = {
    "CREATED": WatchKind.CREATED,
    "DELETED": WatchKind.DELETED,
    "CHANGED": WatchKind.DATA_CHANGED,
    "CHILD": WatchKind.CHILDREN_CHANGED,
}


class ZooKeeperTree:
    """A ZooKeeper session; see `Tree` for the contract."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._token = trio.lowlevel.current_trio_token()
        self._session_state = SessionState.LOST
        self._session_listeners: list[SessionListener] = []
        client.add_listener(self._on_kazoo_state)

    @property
    def session_id(self) -> int:
        client_id = self._client.client_id
        return 0 if client_id is None else int(client_id[0])

    @property
    def session_state(self) -> SessionState:
        return self._session_state

    def add_session_listener(self, listener: SessionListener) -> None:
        self._session_listeners.append(listener)

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False) -> str:
        (created,) = await self.multi([Create(path, data, ephemeral, sequential)])
        assert isinstance(created, str)
        return created

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        with _translated(path):
            return _node(await self._wait_for(self._client.get_async(_checked(path), self._watcher(watch))))

    async def get_many(self, paths: Sequence[str], watches: Sequence[Watch | None] = ()) -> list[Node | None]:
        nodes: list[Node | None] = []
        watches = watches or [None] * len(paths)
        for start in range(0, len(paths), _READ_WINDOW):
            window = paths[start : start + _READ_WINDOW]
            pending = [
                self._client.get_async(_checked(path), self._watcher(watch))
                for path, watch in zip(window, watches[start : start + _READ_WINDOW], strict=True)
            ]
            for path, answer in zip(window, pending, strict=True):
                try:
                    with _translated(path):
                        nodes.append(_node(await self._wait_for(answer)))
                except NoNode:
                    nodes.append(None)
        return nodes

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        (stat,) = await self.multi([SetData(path, data, version)])
        assert isinstance(stat, Stat)
        return stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self.multi([Delete(path, version)])

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        with _translated(path):
            stat = await self._wait_for(self._client.exists_async(_checked(path), self._watcher(watch)))
        return None if stat is None else _stat(stat)

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        with _translated(path):
            names = await self._wait_for(self._client.get_children_async(_checked(path), self._watcher(watch)))
        return sorted(names)

    async def multi(self, operations: Sequence[TreeOperation]) -> list[OperationResult]:
        check_operations(operations)
        if not operations:
            return []
        transaction = self._client.transaction()
        for operation in operations:
            match operation:
                case Create(path, data, ephemeral, sequential):
                    transaction.create(path, data, ephemeral=ephemeral, sequence=sequential)
                case SetData(path, data, version):
                    transaction.set_data(path, data, version)
                case Delete(path, version):
                    transaction.delete(path, version)
                case Check(path, version):
                    transaction.check(path, version)
        with _translated(operations[0].path):
            answers = await self._wait_for(transaction.commit_async())
        for index, (operation, answer) in enumerate(zip(operations, answers, strict=True)):
            if isinstance(answer, Exception) and type(answer).__name__ not in _NOT_THE_CAUSE:
                raise _translate(answer, operation.path, index) from answer
        return [_result(operation, answer) for operation, answer in zip(operations, answers, strict=True)]

    async def _wait_for(self, answer: Any) -> Any:
        """Waits for an answer of kazoo. Cancellation stops the wait, not the call: a write may still happen."""
        task = trio.lowlevel.current_task()
        is_waiting = True

        def wake() -> None:
            if is_waiting:
                trio.lowlevel.reschedule(task)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            nonlocal is_waiting
            is_waiting = False
            return trio.lowlevel.Abort.SUCCEEDED

        answer.rawlink(lambda _answer: self._token.run_sync_soon(wake))
        await trio.lowlevel.wait_task_rescheduled(abort)
        return answer.get_nowait()

    def _watcher(self, watch: Watch | None) -> Any:
        if watch is None:
            return None

        def on_kazoo_event(event: Any) -> None:
            # Other types are about the session, not the node: session listeners handle them.
            if event.type in _KINDS:
                self._token.run_sync_soon(watch, WatchEvent(_KINDS[event.type], event.path))

        return on_kazoo_event

    def _on_kazoo_state(self, state: str) -> None:
        self._token.run_sync_soon(self._enter, SessionState(str(state).lower()))

    def _enter(self, state: SessionState) -> None:
        if state is self._session_state:
            return
        self._session_state = state
        for listener in self._session_listeners:
            listener(state)

    def _remove_listeners(self) -> None:
        self._client.remove_listener(self._on_kazoo_state)
        self._session_listeners.clear()


def _checked(path: str) -> str:
    if path_problem(path) is not None:
        raise InvalidPath(path)
    return path


def _stat(stat: Any) -> Stat:
    return Stat(stat.czxid, stat.mzxid, stat.version, stat.ephemeralOwner or 0)


def _node(answer: Any) -> Node:
    data, stat = answer
    return Node(data, _stat(stat))


def _result(operation: TreeOperation, answer: Any) -> OperationResult:
    if isinstance(operation, Create):
        return str(answer)
    return _stat(answer) if isinstance(operation, SetData) else None


def _translate(failure: Exception, path: str, index: int | None = None) -> Exception:
    known = _ERRORS.get(type(failure).__name__)
    return failure if known is None else known(path, index)


@contextmanager
def _translated(path: str) -> Iterator[None]:
    from kazoo.exceptions import KazooException

    try:
        yield
    except KazooException as failure:
        raise _translate(failure, path) from failure


@asynccontextmanager
async def open_zookeeper_tree(
    connect: str, *, session_timeout_ms: int = 18_000, connection_timeout_ms: int | None = None
) -> AsyncIterator[ZooKeeperTree]:
    """Opens a session. `connect`: HOST:PORT,HOST:PORT/PATH; all nodes are below PATH, which is created if missing."""
    hosts, _slash, chroot = connect.partition("/")
    timeout_ms = connection_timeout_ms or session_timeout_ms
    client = await trio.to_thread.run_sync(_new_client, hosts, session_timeout_ms)
    tree = ZooKeeperTree(client)
    try:
        if not await trio.to_thread.run_sync(_start, client, chroot.strip("/"), timeout_ms / 1000):
            raise UserError(
                f"Could not connect to ZooKeeper at {hosts} within {timeout_ms} ms; check zookeeper.connect"
            )
        yield tree
    finally:
        tree._remove_listeners()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_stop, client)


def _new_client(hosts: str, session_timeout_ms: int) -> Any:
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import SequentialThreadingHandler

    class OneQueueHandler(SequentialThreadingHandler):  # type: ignore[misc]
        """Puts events and answers on one queue. With kazoo's two, a read could overtake the event of its change."""

        def dispatch_callback(self, callback: Any) -> None:
            self.completion_queue.put(lambda: callback.func(*callback.args))

    # Retries quickly at first, then every 3 seconds, without limit: only ZooKeeper ends a session.
    retry = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 3.0}
    return KazooClient(
        hosts,
        timeout=session_timeout_ms / 1000,
        handler=OneQueueHandler(),
        connection_retry=retry,
        randomize_hosts=True,
    )


def _start(client: Any, chroot: str, timeout: float) -> bool:
    # Not client.start(): it logs a warning if the chroot is missing, which is normal here.
    if not client.start_async().wait(timeout):
        return False
    if chroot:
        client.ensure_path(f"/{chroot}")
        client.chroot = f"/{chroot}"
    return True


def _stop(client: Any) -> None:
    client.stop()
    client.close()
