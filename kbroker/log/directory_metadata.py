"""The small files and the names of a data directory: meta.properties, partition.metadata, kbroker.format, and how a
partition's directory is called."""

from __future__ import annotations

import base64
import re

from kbroker.errors import UserError
from kbroker.log.filesystem import FileSystem

__all__ = [
    "FORMAT_VERSION",
    "PARTITION_METADATA",
    "check_format",
    "decode_partition_metadata",
    "deleted_name",
    "encode_partition_metadata",
    "future_name",
    "is_deleted_name",
    "partition_name",
    "read_meta_properties",
    "split_future_name",
    "split_partition_name",
    "write_meta_properties",
]

META_PROPERTIES = "meta.properties"
PARTITION_METADATA = "partition.metadata"
FORMAT_FILE = "kbroker.format"
FORMAT_VERSION = 1
_NAME_LIMIT = 255
_DELETED_SUFFIX = "-delete"
_FUTURE_NAME = re.compile(r"([a-zA-Z0-9._-]+-(?:0|[1-9][0-9]*))\.[^.]+-future")
_PARTITION_NAME = re.compile(r"([a-zA-Z0-9._-]+)-(0|[1-9][0-9]*)")


def partition_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def split_partition_name(name: str) -> tuple[str, int] | None:
    found = _PARTITION_NAME.fullmatch(name)
    return (found[1], int(found[2])) if found else None


def deleted_name(topic: str, partition: int, unique: str) -> str:
    """The topic's name is cut where the whole would be longer than a file name may be."""
    tail = f"-{partition}.{unique}{_DELETED_SUFFIX}"
    return topic[: _NAME_LIMIT - len(tail)] + tail


def is_deleted_name(name: str) -> bool:
    return name.endswith(_DELETED_SUFFIX) and "." in name


def future_name(topic: str, partition: int, unique: str) -> str | None:
    """Of a copy that will take the log's place; None if it would be longer than a file name may be."""
    name = f"{topic}-{partition}.{unique}-future"
    return name if len(name) <= _NAME_LIMIT else None


def split_future_name(name: str) -> tuple[str, int] | None:
    found = _FUTURE_NAME.fullmatch(name)
    return split_partition_name(found[1]) if found else None


def check_format(filesystem: FileSystem, path: str) -> None:
    """What a later kbroker wrote may mean something else: better not to touch it."""
    try:
        content = filesystem.read(f"{path}/{FORMAT_FILE}")
    except FileNotFoundError:
        filesystem.replace(f"{path}/{FORMAT_FILE}", f"{FORMAT_VERSION}\n".encode())
        return
    text = content.decode("ascii", "replace").strip()
    if not text.isdigit() or int(text) > FORMAT_VERSION:
        raise UserError(
            f"the data directory {path} has format {text!r}, this kbroker knows up to {FORMAT_VERSION}: "
            "use the kbroker that wrote it, or a newer one"
        )


def read_meta_properties(filesystem: FileSystem, path: str) -> dict[str, str]:
    try:
        lines = filesystem.read(f"{path}/{META_PROPERTIES}").decode().splitlines()
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError:
        raise UserError(
            f"{path}/{META_PROPERTIES} is damaged: restore it, or remove it to have it written anew"
        ) from None
    pairs = (line.partition("=") for line in lines if line and not line.startswith(("#", "!")))
    return {key.strip(): value.strip() for key, _equals, value in pairs}


def write_meta_properties(filesystem: FileSystem, path: str, *, broker_id: int, cluster_id: str | None) -> None:
    """As Kafka 3.9 does with ZooKeeper (version 0). Another broker's or another cluster's directory is refused."""
    found = read_meta_properties(filesystem, path)
    wanted = {"broker.id": str(broker_id), "version": "0"}
    if cluster_id is not None:
        wanted["cluster.id"] = cluster_id
    for key, value in wanted.items():
        if key in found and found[key] != value:
            raise UserError(
                f"the data directory {path} belongs to {key}={found[key]}, not {value}: "
                "name another --data-dir, or run with the settings that it was made with"
            )
    merged = found | wanted
    if merged != found:
        lines = ["#", *(f"{key}={value}" for key, value in sorted(merged.items())), ""]
        filesystem.replace(f"{path}/{META_PROPERTIES}", "\n".join(lines).encode())


def encode_partition_metadata(topic_id: bytes) -> bytes:
    return b"version: 0\ntopic_id: " + base64.urlsafe_b64encode(topic_id).rstrip(b"=") + b"\n"


def decode_partition_metadata(content: bytes) -> bytes | None:
    """The topic's id; None if the file makes no sense, as after a crash."""
    found = re.fullmatch(rb"version: 0\s+topic_id: ([A-Za-z0-9_-]{22})\s*", content)
    return base64.urlsafe_b64decode(found[1] + b"==") if found else None
