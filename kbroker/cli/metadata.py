"""`kbroker metadata`: the embedded metadata tree to JSON and back, of a broker that is stopped.

    {"format": 1, "nodes": [{"path": "/brokers/topics/orders", "data": {…}}, …]}

Data that is JSON stands as JSON, other text as text, anything else as {"base64": …}. What lasts is exported; what ends
with a session (brokers that live, the controller) is not. Parents come before their children.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from kbroker.cli.command import Command, Group
from kbroker.errors import StorageFailure, UserError
from kbroker.names import METADATA_FILE

if TYPE_CHECKING:
    from kbroker.controller.tree import Create, Tree

__all__ = ["command"]

FORMAT: Final = 1
_MOST_IN_ONE_MULTI: Final = 500

_data_dir = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default="kbroker-data",
    show_default=True,
    help="The data directory of the broker.",
)


@click.group("metadata", cls=Group)
def command() -> None:
    """Export and import the metadata of a broker that is stopped."""


@command.command(
    "export",
    cls=Command,
    examples=[
        ("kbroker metadata export metadata.json --data-dir kbroker-data", "topics, configs and ids, as JSON"),
        ("kbroker metadata export", "to the screen, of the default data directory"),
    ],
)
@click.argument("file", type=click.File("w", encoding="utf-8", atomic=True), default="-")
@_data_dir
def export(file: TextIO, data_dir: Path) -> None:
    """Write the metadata tree to FILE or stdout: topics, configs, ids. The records of topics are not in it."""
    if not _tree_file(data_dir).is_file():
        raise UserError(f"{data_dir} holds no metadata: name the broker's data directory with --data-dir")
    with _locked(data_dir):
        nodes = _run(_read_nodes, _tree_file(data_dir))
    json.dump({"format": FORMAT, "nodes": nodes}, file, indent=2, ensure_ascii=False)
    file.write("\n")
    click.echo(f"{len(nodes)} nodes exported", err=True)


@command.command(
    "import",
    cls=Command,
    examples=[
        ("kbroker metadata import metadata.json --data-dir new-data", "into a directory that has none yet"),
        ("kbroker metadata import metadata.json --data-dir kbroker-data --replace", "in the place of what is there"),
    ],
)
@click.argument("file", type=click.File("r", encoding="utf-8"), default="-")
@_data_dir
@click.option("--replace", is_flag=True, help="Give up the metadata that the directory has now.")
def import_(file: TextIO, data_dir: Path, replace: bool) -> None:
    """Make the metadata tree of a data directory from what export wrote."""
    nodes = _parse(file)
    data_dir.mkdir(parents=True, exist_ok=True)
    tree_file = _tree_file(data_dir)
    fresh = tree_file.with_name(f"{tree_file.name}.import")
    with _locked(data_dir):
        # Opening it also folds its write-ahead log into the file: none may stay behind for another file to find.
        if tree_file.is_file() and _run(_read_nodes, tree_file) and not replace:
            raise UserError(f"{data_dir} has metadata already: add --replace to give it up")
        fresh.unlink(missing_ok=True)
        try:
            _run(_write_nodes, fresh, nodes)
            os.replace(fresh, tree_file)
        finally:
            fresh.unlink(missing_ok=True)
    click.echo(f"{len(nodes)} nodes imported", err=True)


def _tree_file(data_dir: Path) -> Path:
    return data_dir / METADATA_FILE


@contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    from kbroker.log.filesystem import OsFileSystem

    try:
        lock = OsFileSystem().lock(str(data_dir / ".lock"))
    except StorageFailure as failure:
        raise UserError(f"the data directory cannot be used: {failure}") from None
    if lock is None:
        raise UserError(f"a broker is using {data_dir}: stop it first")
    try:
        yield
    finally:
        lock.release()


def _run(call: Any, path: Path, *arguments: Any) -> Any:
    import trio

    from kbroker.controller.embedded_tree import open_embedded_tree

    async def run() -> Any:
        async with open_embedded_tree(path) as tree:
            return await call(tree, *arguments)

    try:
        return trio.run(run)
    except StorageFailure as failure:
        raise UserError(f"{path}: {failure}") from None


async def _read_nodes(tree: Tree) -> list[dict[str, Any]]:
    """Everything but the root, which is always there."""
    nodes = []
    waiting = ["/"]
    while waiting:
        path = waiting.pop()
        children = [f"{path.rstrip('/')}/{name}" for name in await tree.children(path)]
        waiting += reversed(children)
        node = await tree.get(path)
        if path != "/" and not node.stat.ephemeral_owner:
            nodes.append({"path": path, "data": _json_of(node.data)})
    return nodes


def _json_of(data: bytes) -> Any:
    """The JSON itself only where it comes back byte for byte."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode("ascii")}
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    if isinstance(parsed, dict) and parsed.keys() != {"base64"} and _data_of(parsed) == data:
        return parsed
    return text


def _data_of(content: Any) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8")
    if isinstance(content, dict) and content.keys() == {"base64"}:
        return b64decode(content["base64"], validate=True)
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


async def _write_nodes(tree: Tree, nodes: Sequence[Create]) -> None:
    from kbroker.controller.tree import MAX_NODE_SIZE, TreeError, size_of

    batch: list[Create] = []
    room = MAX_NODE_SIZE
    try:
        for node in nodes:
            if batch and (size_of(node) > room or len(batch) == _MOST_IN_ONE_MULTI):
                await tree.multi(batch)
                batch, room = [], MAX_NODE_SIZE
            batch.append(node)
            room -= size_of(node)
        await tree.multi(batch)
    except TreeError as problem:
        raise UserError(f"node {problem.path} cannot be made: {type(problem).__name__}") from None


def _parse(file: TextIO) -> list[Create]:
    from kbroker.controller.tree import Create

    try:
        exported = json.load(file)
        if not isinstance(exported, dict) or exported.get("format") != FORMAT:
            raise ValueError(f"not an export of format {FORMAT}")
        return [Create(str(node["path"]), _data_of(node["data"])) for node in exported["nodes"]]
    except (ValueError, KeyError, TypeError) as problem:
        raise UserError(f"{file.name} is not what 'kbroker metadata export' writes: {problem}") from None
