"""Opens the metadata tree of a stopped broker, or of a ZooKeeper cluster, for commands that need no running broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from kbroker.errors import StorageFailure, UserError
from kbroker.names import METADATA_FILE

if TYPE_CHECKING:
    from kbroker.controller.trees.tree import Tree

__all__ = ["lock_data_dir", "run_in_data_dir", "run_in_tree_file", "run_in_zookeeper"]

T = TypeVar("T")


@contextmanager
def lock_data_dir(data_dir: Path) -> Iterator[None]:
    """Locks the data directory. Raises UserError if a broker uses it."""
    from kbroker.log.files.filesystem import OsFileSystem

    try:
        lock = OsFileSystem().lock(str(data_dir / ".lock"))
    except StorageFailure as failure:
        raise UserError(f"Could not use the data directory: {failure}") from None
    if lock is None:
        raise UserError(f"{data_dir} is in use by a broker. Stop the broker first.")
    try:
        yield
    finally:
        lock.release()


def run_in_data_dir(data_dir: Path, call: Callable[[Tree], Awaitable[T]]) -> T:
    """Runs `call` with the tree of a data directory. Creates directory and tree if they are missing."""
    data_dir.mkdir(parents=True, exist_ok=True)
    with lock_data_dir(data_dir):
        return run_in_tree_file(data_dir / METADATA_FILE, call)


def run_in_tree_file(path: Path, call: Callable[[Tree], Awaitable[T]]) -> T:
    import trio

    from kbroker.controller.trees.embedded_tree import open_embedded_tree

    async def run() -> T:
        async with open_embedded_tree(path) as tree:
            return await call(tree)

    try:
        return trio.run(run)
    except StorageFailure as failure:
        raise UserError(f"{path}: {failure}") from None


def run_in_zookeeper(connect: str, properties: Mapping[str, str], call: Callable[[Tree], Awaitable[T]]) -> T:
    """`properties`: TLS, login and access rights at ZooKeeper, for example all properties of a broker."""
    import trio

    from kbroker.config.zookeeper import zookeeper_config
    from kbroker.controller.trees.zookeeper_tree import open_zookeeper_tree
    from kbroker.security.zookeeper_security import zookeeper_security

    security = zookeeper_security(zookeeper_config(properties))

    async def run() -> T:
        async with open_zookeeper_tree(connect, security=security) as tree:
            return await call(tree)

    return trio.run(run)
