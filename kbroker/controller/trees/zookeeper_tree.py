"""The metadata tree in ZooKeeper, by the kazoo client. The only module that imports kazoo.

kazoo's threads only queue calls into trio's thread, in the order in which ZooKeeper's answers and events arrived.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import trio

from kbroker.controller.trees.node_protection import Protection, protection_of
from kbroker.controller.trees.retries import retry_until_connected
from kbroker.controller.trees.session_stats import SessionStats
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
from kbroker.security.mechanism import AuthenticationFailed, ClientMechanism
from kbroker.security.tls_context import handshake_problem
from kbroker.security.zookeeper_security import NOT_SECURED, ZooKeeperSecurity

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

_DENIED: Final[dict[str, str]] = {
    "NoAuthError": "ZooKeeper denies access to {}: another identity has created it with zookeeper.set.acl=true. All "
    "brokers must have the same certificate name or login at ZooKeeper",
    "InvalidACLError": "ZooKeeper did not protect {}, as zookeeper.set.acl=true demands: it does not know who this "
    "broker is. Its authentication provider must accept the certificate or the login of the broker",
}
"""Messages to the operator about errors of access rights."""

_OF_SECURITY: Final = ", zookeeper.ssl.* and kbroker.zookeeper.jaas.file"

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

    def __init__(self, client: Any, *, protects_nodes: bool = False) -> None:
        """`protects_nodes`: new nodes get the access rights of `protection_of`; else everybody may do everything."""
        self._client = client
        self._protects_nodes = protects_nodes
        self._token = trio.lowlevel.current_trio_token()
        self.stats = SessionStats()
        self._session_listeners: list[SessionListener] = []
        client.add_listener(self._on_kazoo_state)

    @property
    def session_id(self) -> int:
        client_id = self._client.client_id
        return 0 if client_id is None else int(client_id[0])

    @property
    def session_state(self) -> SessionState:
        return self.stats.state

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
            began = trio.current_time()
            for path, answer in zip(window, pending, strict=True):
                try:
                    with _translated(path):
                        nodes.append(_node(await self._wait_for(answer, began)))
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
                    rights = _rights(path) if self._protects_nodes else None
                    transaction.create(path, data, acl=rights, ephemeral=ephemeral, sequence=sequential)
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

    async def _wait_for(self, answer: Any, began: float | None = None) -> Any:
        """Waits for an answer of kazoo. Cancellation stops the wait, not the call: a write may still happen.

        `began`: trio's time of the request; None if it was sent just now.
        """
        task = trio.lowlevel.current_task()
        began = trio.current_time() if began is None else began
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
        self.stats.request_times.observe(1000 * (trio.current_time() - began))
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
        if state is self.stats.state:
            return
        self.stats.enter(state)
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


def _rights(path: str) -> Any:
    from kazoo import security

    rights = {
        Protection.OPEN: security.OPEN_ACL_UNSAFE,
        Protection.READABLE: [*security.CREATOR_ALL_ACL, *security.READ_ACL_UNSAFE],
        Protection.SECRET: security.CREATOR_ALL_ACL,
    }
    return rights[protection_of(path)]


def _translate(failure: Exception, path: str, index: int | None = None) -> Exception:
    name = type(failure).__name__
    if name in _DENIED:
        return UserError(_DENIED[name].format(path))
    known = _ERRORS.get(name)
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
    connect: str,
    *,
    session_timeout_ms: int = 18_000,
    connection_timeout_ms: int | None = None,
    security: ZooKeeperSecurity = NOT_SECURED,
) -> AsyncIterator[ZooKeeperTree]:
    """Opens a session. `connect`: HOST:PORT,HOST:PORT/PATH; all nodes are below PATH, which is created if missing."""
    hosts, _slash, chroot = connect.partition("/")
    timeout_ms = connection_timeout_ms or session_timeout_ms
    client = await trio.to_thread.run_sync(_new_client, hosts, session_timeout_ms, security)
    tree = ZooKeeperTree(client, protects_nodes=security.protects_nodes)
    try:
        if not await trio.to_thread.run_sync(_start, client, timeout_ms / 1000):
            reason = client.handler.last_problem
            raise UserError(
                f"Could not connect to ZooKeeper at {hosts} within {timeout_ms} ms"
                f"{f' ({reason})' if reason else ''}; check zookeeper.connect"
                f"{_OF_SECURITY if security != NOT_SECURED else ''}"
            )
        if chroot := chroot.strip("/"):
            rights = _rights(f"/{chroot}") if security.protects_nodes else None
            await retry_until_connected(lambda: trio.to_thread.run_sync(_use_chroot, client, f"/{chroot}", rights))
        yield tree
    finally:
        tree._remove_listeners()
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_stop, client)


def _new_client(hosts: str, session_timeout_ms: int, security: ZooKeeperSecurity) -> Any:
    from kazoo.client import KazooClient
    from kazoo.exceptions import ConnectionDropped
    from kazoo.handlers.threading import SequentialThreadingHandler
    from kazoo.protocol.connection import ConnectionHandler
    from kazoo.protocol.serialization import SASL, Connect

    class Handler(SequentialThreadingHandler):  # type: ignore[misc]
        """Puts events and answers on one queue. With kazoo's two, a read could overtake the event of its change.

        Opens connections with TLS: kazoo's own TLS takes only PEM files, and trusts the authorities of the system too.
        """

        last_problem = ""
        """Reason why the last connection failed; empty if none is known."""

        def dispatch_callback(self, callback: Any) -> None:
            self.completion_queue.put(lambda: callback.func(*callback.args))

        def create_connection(self, address: Any, hostname: str | None = None, timeout: Any = None, **_: Any) -> Any:
            try:
                plain = super().create_connection(address, timeout=timeout)
                if security.tls is None:
                    return plain
                return _with_tls(security.tls, plain, hostname or address[0])
            except OSError as problem:
                self.last_problem = _reason(problem)
                raise

        def select(self, readable: Any, writable: Any, failed: Any, timeout: Any = None) -> Any:
            # The system knows nothing of bytes that TLS has decrypted and kazoo has not read: kazoo would wait for the
            # next event while an answer is there.
            decrypted = [sock for sock in readable if isinstance(sock, ssl.SSLSocket) and sock.pending()]
            if decrypted:
                timeout = 0
            found, *others = super().select(readable, writable, failed, timeout)
            return [*decrypted, *(sock for sock in found if sock not in decrypted)], *others

    class Connection(ConnectionHandler):  # type: ignore[misc]
        """Logs in before the session counts as connected, and connects again after a failure.

        kazoo logs in after that, needs another library for it, and gives up for ever when a connection breaks
        meanwhile.
        """

        has_logged_in = False

        def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
            answer = super()._invoke(timeout, request, xid)
            if isinstance(request, Connect) and answer[0].time_out > 0 and security.start_login is not None:
                try:
                    self._log_in(security.start_login(), timeout)
                except AuthenticationFailed as failure:
                    self.handler.last_problem = f"the login failed: {failure.reason}"
                    raise ConnectionDropped(self.handler.last_problem) from None
                self.has_logged_in = True
            return answer

        def _log_in(self, mechanism: ClientMechanism, timeout: float) -> None:
            token: bytes | None = mechanism.first_token()
            number = 0
            while token is not None:
                number += 1
                self._submit(SASL(token), timeout, number)
                header, data, offset = self._read_header(timeout)
                if header.err:
                    raise AuthenticationFailed("ZooKeeper does not accept this user and password")
                challenge, _end = SASL.deserialize(data, offset)
                token = mechanism.step(challenge or b"")

        def _authenticate_with_sasl(self, host: str, timeout: float) -> None:
            """Called by kazoo later on. Makes sure that no session works without its login, whatever kazoo changes."""
            if not self.has_logged_in:
                raise RuntimeError("this version of kazoo does not let kbroker log in at ZooKeeper")
            self.has_logged_in = False  # the next connection logs in again

    # Retries quickly at first, then every 3 seconds, without limit: only ZooKeeper ends a session.
    retry = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 3.0}
    client = KazooClient(
        hosts,
        timeout=session_timeout_ms / 1000,
        handler=Handler(),
        connection_retry=retry,
        randomize_hosts=True,
        use_ssl=security.tls is not None,
    )
    # Without options kazoo does not call _authenticate_with_sasl.
    options: dict[str, str] | None = None if security.start_login is None else {}
    client._connection = Connection(client, client._conn_retry.copy(), logger=client.logger, sasl_options=options)
    return client


def _with_tls(context: ssl.SSLContext, plain: Any, hostname: str) -> ssl.SSLSocket:
    try:
        return context.wrap_socket(plain, server_hostname=hostname)
    except BaseException:
        plain.close()
        raise


def _reason(problem: OSError) -> str:
    return handshake_problem(problem) if isinstance(problem, ssl.SSLError) else problem.strerror or str(problem)


def _start(client: Any, timeout: float) -> bool:
    # Not client.start(): it logs a warning if the chroot is missing, which is normal here.
    return bool(client.start_async().wait(timeout))


def _use_chroot(client: Any, chroot: str, rights: Any) -> None:
    with _translated(chroot):
        client.ensure_path(chroot, rights)
    client.chroot = chroot


def _stop(client: Any) -> None:
    client.stop()
    client.close()
