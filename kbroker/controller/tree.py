"""The metadata tree: ZooKeeper's contract as a Protocol, whatever keeps the nodes.

Paths begin with a slash; every node holds bytes; each write gets the next zxid, a multi gets one for all its parts.
Watches fire once. Their callbacks run in trio's thread, in the order of the writes, before any later read returns,
and must not raise. A session that is suspended drops its watches; one that is lost takes its ephemeral nodes with it,
and a new one takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol

__all__ = [
    "ANY_VERSION",
    "MAX_NODE_SIZE",
    "BadVersion",
    "Check",
    "ConnectionLost",
    "Create",
    "Delete",
    "InvalidPath",
    "NoChildrenForEphemerals",
    "NoNode",
    "Node",
    "NodeExists",
    "NodeTooLarge",
    "NotEmpty",
    "Operation",
    "OperationResult",
    "SessionListener",
    "SessionLost",
    "SessionState",
    "SetData",
    "Stat",
    "Tree",
    "TreeError",
    "Watch",
    "WatchEvent",
    "WatchKind",
    "check_operations",
    "ensure_path",
    "parent_of",
    "path_problem",
    "size_of",
]

ANY_VERSION: Final = -1

# ZooKeeper's jute.maxbuffer is just under 1 MB for a whole packet; what surrounds the data needs a little of it.
MAX_NODE_SIZE: Final = 1_000_000
_OPERATION_OVERHEAD: Final = 64


class TreeError(Exception):
    """A call that the tree refused; `index` is the operation's place in a multi."""

    def __init__(self, path: str, index: int | None = None) -> None:
        super().__init__(path)
        self.path = path
        self.index = index


class NoNode(TreeError):
    """The node, or the parent of the one to create, is not there."""


class NodeExists(TreeError):
    pass


class BadVersion(TreeError):
    """The node has another version than the caller expected."""


class NotEmpty(TreeError):
    """A node with children cannot be deleted."""


class NoChildrenForEphemerals(TreeError):
    pass


class InvalidPath(TreeError):
    pass


class NodeTooLarge(TreeError):
    """A node's data, or a whole multi, is above MAX_NODE_SIZE."""


class ConnectionLost(TreeError):
    """No answer came: a write may or may not have happened, and the session may still live."""


class SessionLost(TreeError):
    """The session has ended, and its ephemeral nodes with it."""


class SessionState(Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """Out of touch: the session may live on, or may have been given up by the other side."""
    LOST = "lost"


class Stat(NamedTuple):
    czxid: int
    """The zxid of the node's creation; for a broker's node this is the broker epoch."""
    mzxid: int
    """The zxid of the last change of its data."""
    version: int
    ephemeral_owner: int
    """The session that the node ends with; 0 for a persistent node."""


class Node(NamedTuple):
    data: bytes
    stat: Stat


class WatchKind(Enum):
    CREATED = "created"
    DELETED = "deleted"
    DATA_CHANGED = "data changed"
    CHILDREN_CHANGED = "children changed"


class WatchEvent(NamedTuple):
    kind: WatchKind
    path: str


Watch = Callable[[WatchEvent], None]
SessionListener = Callable[[SessionState], None]


@dataclass(frozen=True, slots=True)
class Create:
    """A sequential node's name gets ten digits at its end; the answer is the path as created."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Changes nothing: the multi fails unless the node has this version."""

    path: str
    version: int = ANY_VERSION


Operation = Create | SetData | Delete | Check
OperationResult = str | Stat | None
"""The path of a Create, the stat of a SetData, None for the others."""


class Tree(Protocol):
    @property
    def session_id(self) -> int: ...

    @property
    def session_state(self) -> SessionState: ...

    def add_session_listener(self, listener: SessionListener) -> None:
        """Called in trio's thread whenever the session's state changes."""
        ...

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str: ...

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        """The watch fires when the data changes or the node goes; none is set if there is no node."""
        ...

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Reads that share their round trips; None where there is no node. Not a snapshot."""
        ...

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat: ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None: ...

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """The watch is set whether the node is there or not, and fires when it comes, changes or goes."""
        ...

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Names, sorted. The watch fires when a child comes or goes, or the node itself goes."""
        ...

    async def multi(self, operations: Sequence[Operation]) -> list[OperationResult]:
        """All of them or none; the error is that of the first one that cannot be done."""
        ...


def parent_of(path: str) -> str:
    return path[: path.rindex("/")] or "/"


def path_problem(path: str) -> str | None:
    """What makes the path illegal, or None."""
    if not path.startswith("/"):
        return "must begin with a slash"
    if path == "/":
        return None
    if any(part in ("", ".", "..") for part in path[1:].split("/")):
        return "has an empty or relative part"
    if any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in path):
        return "has a control character"
    return None


def size_of(operation: Operation) -> int:
    """What the operation takes of a multi's MAX_NODE_SIZE."""
    data = operation.data if isinstance(operation, (Create, SetData)) else b""
    return len(operation.path) + len(data) + _OPERATION_OVERHEAD


def check_operations(operations: Sequence[Operation]) -> None:
    """What every tree refuses before it looks at a node: illegal paths and too many bytes."""
    size = 0
    for index, operation in enumerate(operations):
        if path_problem(operation.path) is not None or (operation.path == "/" and isinstance(operation, Delete)):
            raise InvalidPath(operation.path, index)
        size += size_of(operation)
        if size > MAX_NODE_SIZE + _OPERATION_OVERHEAD:
            raise NodeTooLarge(operation.path, index)


async def ensure_path(tree: Tree, path: str) -> None:
    """Creates the node and what is missing above it; content with whatever is there."""
    if await tree.exists(path) is not None:
        return
    if path != "/":
        await ensure_path(tree, parent_of(path))
        try:
            await tree.create(path)
        except NodeExists:
            return  # somebody else was quicker
