"""The metadata tree: ZooKeeper's contract as a Protocol, independent of where the nodes are stored.

Paths begin with a slash. Every node holds bytes. Each write gets the next zxid; a multi gets one zxid for all its
operations. Watches fire once. Their callbacks run in trio's thread, in the order of the writes, before any later read
returns, and must not raise. A suspended session drops its watches. A lost session also loses its ephemeral nodes, and
is replaced by a new one.
"""

from __future__ import annotations

import re
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
    "OperationResult",
    "SessionListener",
    "SessionLost",
    "SessionState",
    "SetData",
    "Stat",
    "Tree",
    "TreeError",
    "TreeOperation",
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

# ZooKeeper's jute.maxbuffer is just under 1 MB for a whole packet, including paths and headers.
MAX_NODE_SIZE: Final = 1_000_000
_OPERATION_OVERHEAD: Final = 64
_CONTROL_CHARACTER: Final = re.compile("[\x00-\x1f\x7f-\x9f]").search


class TreeError(Exception):
    """The tree refused a call. `index`: position of the operation in a multi."""

    def __init__(self, path: str, index: int | None = None) -> None:
        super().__init__(path)
        self.path = path
        self.index = index


class NoNode(TreeError):
    """The node, or the parent of the node to create, does not exist."""


class NodeExists(TreeError):
    pass


class BadVersion(TreeError):
    """The node does not have the version that the caller expected."""


class NotEmpty(TreeError):
    """A node with children cannot be deleted."""


class NoChildrenForEphemerals(TreeError):
    pass


class InvalidPath(TreeError):
    pass


class NodeTooLarge(TreeError):
    """A node's data, or a whole multi, is larger than MAX_NODE_SIZE."""


class ConnectionLost(TreeError):
    """No answer was received: a write may or may not have happened, and the session may still be valid."""


class SessionLost(TreeError):
    """The session has ended, and its ephemeral nodes were deleted."""


class SessionState(Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """Disconnected: the session may still be valid, or ZooKeeper may have expired it."""
    LOST = "lost"


class Stat(NamedTuple):
    czxid: int
    """zxid of the node's creation; for a broker's node this is the broker epoch."""
    mzxid: int
    """zxid of the last change of the node's data."""
    version: int
    ephemeral_owner: int
    """Session whose end deletes the node; 0 for a persistent node."""


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
    """Creates a node. Ten digits are appended to the path of a sequential node; the result is the created path."""

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
    """Fails the multi unless the node has this version. Changes nothing."""

    path: str
    version: int = ANY_VERSION


TreeOperation = Create | SetData | Delete | Check
OperationResult = str | Stat | None
"""Path of a Create, Stat of a SetData, None for the others."""


class Tree(Protocol):
    @property
    def session_id(self) -> int: ...

    @property
    def session_state(self) -> SessionState: ...

    def add_session_listener(self, listener: SessionListener) -> None:
        """Adds a listener that is called in trio's thread whenever the session's state changes."""
        ...

    async def create(
        self, path: str, data: bytes = b"", *, ephemeral: bool = False, sequential: bool = False
    ) -> str: ...

    async def get(self, path: str, watch: Watch | None = None) -> Node:
        """Reads a node. The watch fires when its data changes or it is deleted; it is not set if NoNode is raised."""
        ...

    async def get_many(self, paths: Sequence[str], watches: Sequence[Watch | None] = ()) -> list[Node | None]:
        """Reads several nodes with few round trips; None where a node does not exist. Not a snapshot.

        `watches`: one for each path, or none. As in `get`, the watch of a node that does not exist is not set.
        """
        ...

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat: ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None: ...

    async def exists(self, path: str, watch: Watch | None = None) -> Stat | None:
        """Returns None if the node does not exist. The watch is set in any case.

        It fires when the node is created, changed or deleted.
        """
        ...

    async def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """Returns sorted names. The watch fires when a child is created or deleted, or the node itself is deleted."""
        ...

    async def multi(self, operations: Sequence[TreeOperation]) -> list[OperationResult]:
        """Executes all operations or none. Raises the error of the first operation if one fails."""
        ...


def parent_of(path: str) -> str:
    return path[: path.rindex("/")] or "/"


def path_problem(path: str) -> str | None:
    """Returns why the path is not valid, or None if it is."""
    if not path.startswith("/"):
        return "must begin with a slash"
    if path == "/":
        return None
    if any(part in ("", ".", "..") for part in path[1:].split("/")):
        return "has an empty or relative part"
    if _CONTROL_CHARACTER(path):
        return "has a control character"
    return None


def size_of(operation: TreeOperation) -> int:
    """Returns the bytes of the operation that count against MAX_NODE_SIZE in a multi."""
    data = operation.data if isinstance(operation, (Create, SetData)) else b""
    return len(operation.path) + len(data) + _OPERATION_OVERHEAD


def check_operations(operations: Sequence[TreeOperation]) -> None:
    """Raises InvalidPath or NodeTooLarge if every tree refuses one of the operations."""
    size = 0
    for index, operation in enumerate(operations):
        if path_problem(operation.path) is not None or (operation.path == "/" and isinstance(operation, Delete)):
            raise InvalidPath(operation.path, index)
        size += size_of(operation)
        if size > MAX_NODE_SIZE + _OPERATION_OVERHEAD:
            raise NodeTooLarge(operation.path, index)


async def ensure_path(tree: Tree, path: str) -> None:
    """Creates the node and its missing parents. Existing nodes are left as they are."""
    if await tree.exists(path) is not None:
        return
    if path != "/":
        await ensure_path(tree, parent_of(path))
        try:
            await tree.create(path)
        except NodeExists:
            return  # another writer was quicker
