"""`kbroker metadata`: exports the embedded metadata tree of a stopped broker to JSON, and imports it.

    {"format": 1, "nodes": [{"path": "/brokers/topics/orders", "data": {…}}, …]}

A node's data is JSON, a string, or {"base64": …}. Ephemeral nodes (live brokers, the controller) are not exported.
Parents precede their children.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from kbroker.cli.command import Command, Group
from kbroker.cli.output import pluralize
from kbroker.cli.stopped_broker import lock_data_dir, run_in_tree_file
from kbroker.errors import UserError
from kbroker.names import METADATA_FILE

if TYPE_CHECKING:
    from kbroker.controller.trees.tree import Create, Tree

__all__ = ["command"]

FORMAT: Final = 1
_MAX_NODES_PER_MULTI: Final = 500

_data_dir = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default="kbroker-data",
    show_default=True,
    help="Data directory of the broker.",
)


@click.group("metadata", cls=Group)
def command() -> None:
    """Export and import the metadata of a stopped broker."""


@command.command(
    "export",
    cls=Command,
    examples=[
        ("kbroker metadata export metadata.json --data-dir kbroker-data", "Export topics, configs and ids as JSON"),
        ("kbroker metadata export", "Print the metadata of the default data directory"),
    ],
)
@click.argument("file", type=click.File("w", encoding="utf-8", atomic=True), default="-")
@_data_dir
def export(file: TextIO, data_dir: Path) -> None:
    """Write topics, configs and ids as JSON to FILE or stdout.

    Records and committed offsets are not included. The broker must be stopped.
    """
    if not _tree_file(data_dir).is_file():
        raise UserError(f"No metadata in {data_dir}. Set the broker's data directory with --data-dir.")
    with lock_data_dir(data_dir):
        nodes = run_in_tree_file(_tree_file(data_dir), _read_nodes)
    json.dump({"format": FORMAT, "nodes": nodes}, file, indent=2, ensure_ascii=False)
    file.write("\n")
    click.echo(f"Exported {pluralize(len(nodes), 'node')}.", err=True)


@command.command(
    "import",
    cls=Command,
    examples=[
        ("kbroker metadata import metadata.json --data-dir new-data", "Import into a new data directory"),
        ("kbroker metadata import metadata.json --data-dir kbroker-data --replace", "Replace existing metadata"),
    ],
)
@click.argument("file", type=click.File("r", encoding="utf-8"), default="-")
@_data_dir
@click.option("--replace", is_flag=True, help="Replace existing metadata.")
def import_(file: TextIO, data_dir: Path, replace: bool) -> None:
    """Create the metadata of a data directory from a file written by export.

    The broker must be stopped.
    """
    nodes = _parse(file)
    data_dir.mkdir(parents=True, exist_ok=True)
    tree_file = _tree_file(data_dir)
    new_file = tree_file.with_name(f"{tree_file.name}.import")
    with lock_data_dir(data_dir):
        # Opening the old file also checkpoints its SQLite write-ahead log. A log left behind would be applied to the
        # new file.
        if tree_file.is_file() and run_in_tree_file(tree_file, _read_nodes) and not replace:
            raise UserError(f"{data_dir} already has metadata. Add --replace to overwrite it.")
        new_file.unlink(missing_ok=True)
        try:
            run_in_tree_file(new_file, lambda tree: _write_nodes(tree, nodes))
            os.replace(new_file, tree_file)
        finally:
            new_file.unlink(missing_ok=True)
    click.echo(f"Imported {pluralize(len(nodes), 'node')}.", err=True)


def _tree_file(data_dir: Path) -> Path:
    return data_dir / METADATA_FILE


async def _read_nodes(tree: Tree) -> list[dict[str, Any]]:
    """Returns all persistent nodes except the root, which always exists."""
    nodes = []
    pending = ["/"]
    while pending:
        path = pending.pop()
        children = [f"{path.rstrip('/')}/{name}" for name in await tree.children(path)]
        pending += reversed(children)
        node = await tree.get(path)
        if path != "/" and not node.stat.ephemeral_owner:
            nodes.append({"path": path, "data": _data_to_json(node.data)})
    return nodes


def _data_to_json(data: bytes) -> Any:
    """Returns JSON only if it converts back to the same bytes; otherwise a string or base64."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(data).decode("ascii")}
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    if isinstance(parsed, dict) and parsed.keys() != {"base64"} and _data_from_json(parsed) == data:
        return parsed
    return text


def _data_from_json(content: Any) -> bytes:
    if isinstance(content, str):
        return content.encode("utf-8")
    if isinstance(content, dict) and content.keys() == {"base64"}:
        return b64decode(content["base64"], validate=True)
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


async def _write_nodes(tree: Tree, nodes: Sequence[Create]) -> None:
    from kbroker.controller.trees.tree import MAX_NODE_SIZE, TreeError, size_of

    batch: list[Create] = []
    free_bytes = MAX_NODE_SIZE
    try:
        for node in nodes:
            if batch and (size_of(node) > free_bytes or len(batch) == _MAX_NODES_PER_MULTI):
                await tree.multi(batch)
                batch, free_bytes = [], MAX_NODE_SIZE
            batch.append(node)
            free_bytes -= size_of(node)
        await tree.multi(batch)
    except TreeError as problem:
        raise UserError(f"Could not create node {problem.path}: {type(problem).__name__}") from None


def _parse(file: TextIO) -> list[Create]:
    from kbroker.controller.trees.tree import Create

    try:
        exported = json.load(file)
        if not isinstance(exported, dict) or exported.get("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}")
        return [Create(str(node["path"]), _data_from_json(node["data"])) for node in exported["nodes"]]
    except (ValueError, KeyError, TypeError) as problem:
        raise UserError(f"{file.name} was not written by 'kbroker metadata export': {problem}") from None
